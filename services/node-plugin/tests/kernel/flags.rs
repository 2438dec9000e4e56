//! How volumes are mounted and made, whatever classes and records say.

use std::fs;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;
use tonic::Code;

use crate::world::{capability, refused, request, request_with, test, text};

fn with_flags(flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let access_type = Some(AccessType::Mount(MountVolume { mount_flags, ..Default::default() }));
    VolumeCapability { access_type, ..capability(AccessMode::SingleNodeWriter) }
}

#[test]
fn volumes_are_mounted_nosuid_and_nodev_unless_their_class_asks_otherwise() {
    test(async |world| {
        let client = world.node("a").await;
        for (backend, flags, nosuid, nodev) in [
            ("image", &[][..], true, true),
            ("image", &["noatime,suid"], false, true),
            ("image", &["suid", "dev"], false, false),
            ("directory", &[], true, true),
            ("directory", &["suid", "dev"], false, false),
        ] {
            let volume_capability = Some(with_flags(flags));
            let create = CreateVolumeRequest {
                volume_capabilities: volume_capability.iter().cloned().collect(),
                ..request_with("v", &[("backend", backend)])
            };
            let volume = client.create(create).await.unwrap().volume_id;
            let context = client.attach(&volume, "a").await.unwrap();
            let stage = NodeStageVolumeRequest {
                volume_capability: volume_capability.clone(),
                ..client.stage_request(&volume, &context)
            };
            client.node().node_stage_volume(stage).await.unwrap();
            let publish =
                NodePublishVolumeRequest { volume_capability, ..client.publish_request(&volume, &context, "pod") };
            client.node().node_publish_volume(publish).await.unwrap();
            for path in [client.staging(), client.target("pod")] {
                let options = world.mount_at(&path).unwrap().options;
                let has = |word: &str| options.iter().any(|option| option == word);
                assert_eq!((has("nosuid"), has("nodev")), (nosuid, nodev), "{backend} {flags:?} {}", path.display());
            }
            client.unpublish(&volume, "pod").await.unwrap();
            client.remove(&volume).await;
        }
    });
}

#[test]
fn an_inline_volume_is_mounted_nosuid_and_nodev() {
    test(async |world| {
        let client = world.node("a").await;
        let volume_id = format!("csi-{}", "a".repeat(64));
        let target_path = text(&client.target("pod"));
        let publish = NodePublishVolumeRequest {
            volume_id: volume_id.clone(),
            target_path: target_path.clone(),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            volume_context: [("csi.storage.k8s.io/ephemeral", "true"), ("size", "32Mi")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        };
        client.node().node_publish_volume(publish).await.unwrap();
        let options = world.mount_at(&client.target("pod")).unwrap().options;
        assert!(["nosuid", "nodev"].iter().all(|word| options.iter().any(|option| option == word)), "{options:?}");
        client.node().node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id, target_path }).await.unwrap();
    });
}

#[test]
fn mkfs_options_that_somebody_wrote_into_a_record_are_not_used() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let path = world.only_image().with_extension("json");
        let victim = world.root.join("victim");
        fs::create_dir(&victim).unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // This would copy a directory of the machine into the volume.
        record["mkfsOptions"] = serde_json::json!(["-d", text(&victim)]);
        fs::write(&path, record.to_string()).unwrap();
        let refusal = client.stage(&volume, &context).await;
        assert_eq!(refused(refusal, &["mkfsOptions", "\"-d\""]), Code::FailedPrecondition);
        assert!(world.loops().is_empty() && world.mount_at(&client.staging()).is_none());
        assert!(!world.files().iter().any(|name| name.contains("formatting")), "{:?}", world.files());
        client.detach(&volume, "a").await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}
