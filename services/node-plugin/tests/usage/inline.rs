//! Inline volumes of pods.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop};
use tonic::Code;

use crate::world::{Answer, Client, capability, refused, test, text, unmount};

fn handle(digit: char) -> String {
    format!("csi-{}", digit.to_string().repeat(64))
}

fn inline(client: &Client, pod: &str, attributes: &[(&str, &str)]) -> NodePublishVolumeRequest {
    let mut volume_context = BTreeMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned())]);
    volume_context.extend(attributes.iter().map(|(key, value)| (key.to_string(), value.to_string())));
    NodePublishVolumeRequest {
        volume_id: handle('a'),
        target_path: text(&client.target(pod)),
        volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
        volume_context,
        ..Default::default()
    }
}

async fn publish(client: &Client, request: &NodePublishVolumeRequest) -> Answer<()> {
    client.node().node_publish_volume(request.clone()).await.map(drop)
}

#[test]
fn an_inline_volume_comes_with_its_pod_and_goes_with_it() {
    test(async |world| {
        for client in [world.node("a").await, world.local("b").await] {
            let request = inline(&client, "pod", &[("size", "32Mi"), ("csi.storage.k8s.io/pod.name", "web")]);
            publish(&client, &request).await.unwrap();
            publish(&client, &request).await.unwrap();
            fs::write(client.target("pod").join("scratch"), "x").unwrap();
            assert_eq!(world.loops().len(), 1);
            let stats = client.stats_of(&handle('a'), &client.target("pod")).await.unwrap();
            assert!(stats.usage[0].total <= 32 << 20);
            let differently = NodePublishVolumeRequest { readonly: true, ..request };
            assert_eq!(refused(publish(&client, &differently).await, &["other options"]), Code::AlreadyExists);
            for _ in 0..2 {
                client.unpublish(&handle('a'), "pod").await.unwrap();
            }
            assert!(!client.target("pod").try_exists().unwrap());
            assert_eq!(world.files(), Vec::<String>::new());
        }
    });
}

#[test]
fn a_bad_inline_volume_is_refused_by_attribute() {
    test(async |world| {
        let client = world.local("a").await;
        client.info().await.unwrap();
        for (attributes, word) in [(&[("size", "much")][..], "much"), (&[("colour", "red")], "colour")] {
            let answer = publish(&client, &inline(&client, "pod", attributes)).await;
            assert_eq!(refused(answer, &[word]), Code::InvalidArgument);
        }
        let request = NodePublishVolumeRequest { volume_id: "other".into(), ..inline(&client, "pod", &[]) };
        assert_eq!(refused(publish(&client, &request).await, &["other"]), Code::NotFound);
        assert_eq!(world.files(), Vec::<String>::new());
        assert!(!client.target("pod").try_exists().unwrap());
    });
}

#[test]
fn an_inline_volume_that_cannot_be_mounted_leaves_nothing() {
    test(async |world| {
        let client = world.local("a").await;
        client.info().await.unwrap();
        let taken = client.target("taken");
        fs::create_dir_all(&taken).unwrap();
        let nothing = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), &taken, Some("tmpfs"), nothing, None::<&str>).unwrap();
        let request = inline(&client, "taken", &[("size", "32Mi")]);
        assert_eq!(refused(publish(&client, &request).await, &["mount point"]), Code::FailedPrecondition);
        assert_eq!(world.files(), Vec::<String>::new());
        unmount(&taken);

        let mut request = inline(&client, "pod", &[("size", "32Mi")]);
        let mount = MountVolume { mount_flags: vec!["no-such-flag".into()], ..Default::default() };
        request.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Mount(mount));
        assert_eq!(refused(publish(&client, &request).await, &["cannot mount"]), Code::Internal);
        assert_eq!(world.files(), Vec::<String>::new());
        assert!(!client.target("pod").try_exists().unwrap());
        publish(&client, &inline(&client, "pod", &[("size", "32Mi")])).await.unwrap();
        client.unpublish(&handle('a'), "pod").await.unwrap();
    });
}

#[test]
fn a_driver_killed_at_any_change_leaves_nothing_of_an_inline_volume_behind() {
    test(async |world| {
        let attributes = &[("size", "32Mi")];
        // A new pool is prepared only once.
        world.local("a").await.info().await.unwrap();
        let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let client = world.local_on("a", counting.clone());
        publish(&client, &inline(&client, "pod", attributes)).await.unwrap();
        client.unpublish(&handle('a'), "pod").await.unwrap();
        for at in 1..=counting.changes().len() as u64 {
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(at)));
            let dying = world.local_on("a", dying);
            if publish(&dying, &inline(&dying, "pod", attributes)).await.is_ok() {
                let answer = dying.unpublish(&handle('a'), "pod").await;
                assert!(answer.is_err(), "change {at} of {:#?}", counting.changes());
            }
            let restarted = world.local("a").await;
            restarted.unpublish(&handle('a'), "pod").await.unwrap();
            assert_eq!(world.files(), Vec::<String>::new(), "stopped after change {at}");
            assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new(), "stopped after change {at}");
            assert!(!client.target("pod").try_exists().unwrap(), "stopped after change {at}");
        }
    });
}

#[test]
fn a_read_only_inline_directory_cannot_be_written() {
    test(async |world| {
        let client = world.local("a").await;
        let request = inline(&client, "pod", &[("backend", "directory")]);
        publish(&client, &NodePublishVolumeRequest { readonly: true, ..request }).await.unwrap();
        let written = fs::write(client.target("pod").join("data"), "x").unwrap_err();
        assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        client.unpublish(&handle('a'), "pod").await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}
