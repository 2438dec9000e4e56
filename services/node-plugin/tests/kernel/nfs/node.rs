use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, MountTable};
use tonic::Code;

use crate::nfs_world::{publish, test, with};
use crate::world::{Client, block, refused, text, unmount};

async fn stats(client: &Client, volume: &str, path: &str) -> Result<NodeGetVolumeStatsResponse, tonic::Status> {
    let (volume_id, volume_path) = (volume.into(), path.into());
    let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
    Ok(client.node().node_get_volume_stats(request).await?.into_inner())
}

#[test]
fn a_pod_sees_its_directory_and_another_what_it_writes_there() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[("mountPermissions", "2770")])).await.unwrap();
        let (one, two) = (client.target("one"), client.target("two"));
        for pod in ["one", "two"] {
            publish(&client, world.publish_request(&client, &volume, pod)).await.unwrap();
            publish(&client, world.publish_request(&client, &volume, pod)).await.unwrap();
        }
        fs::write(one.join("file"), "hello").unwrap();
        assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "hello");
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o7777, 0o2770);
        let mounts = MountTable::read().unwrap().under(&client.kubelet).count();
        assert_eq!(mounts, 2, "each is mounted once");
        for pod in ["one", "two"] {
            client.unpublish(&volume.volume_id, pod).await.unwrap();
            client.unpublish(&volume.volume_id, pod).await.unwrap();
            assert!(!client.target(pod).try_exists().unwrap());
        }
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn a_volume_of_any_id_is_mounted_by_its_context_alone() {
    test(async |world| {
        let client = world.client().await;
        fs::create_dir_all(world.directory.join("by/hand-x")).unwrap();
        fs::write(world.directory.join("by/hand-x/file"), "x").unwrap();
        let share = format!("{}/by/", world.share());
        let context = [
            ("Server", world.server.as_str()),
            ("share", share.as_str()),
            ("subDir", "hand-${pod.metadata.name}"),
            ("csi.storage.k8s.io/pod.name", "x"),
        ];
        let volume = Volume {
            volume_id: "chosen by hand".into(),
            volume_context: crate::world::map(&context),
            ..Default::default()
        };
        publish(&client, world.publish_request(&client, &volume, "pod")).await.unwrap();
        assert!(client.target("pod").join("file").is_file());
        client.unpublish("chosen by hand", "pod").await.unwrap();
        fs::remove_dir_all(world.directory.join("by")).unwrap();
    });
}

#[test]
fn a_read_only_volume_refuses_writes_and_is_not_changed_to_a_writable_one() {
    test(async |world| {
        let client = world.client_with(|options| options.mount_permissions = 0o777).await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        let request = NodePublishVolumeRequest { readonly: true, ..world.publish_request(&client, &volume, "pod") };
        publish(&client, request.clone()).await.unwrap();
        publish(&client, request).await.unwrap();
        let refusal = fs::write(client.target("pod").join("file"), "x").unwrap_err();
        assert_eq!(refusal.raw_os_error(), Some(nix::libc::EROFS));
        let writable = publish(&client, world.publish_request(&client, &volume, "pod")).await;
        assert_eq!(refused(writable, &["read-only"]), Code::AlreadyExists);
        client.unpublish(&volume.volume_id, "pod").await.unwrap();
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn what_is_mounted_or_lies_at_a_target_and_is_no_share_stays() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        let target = client.target("pod");
        fs::create_dir(&target).unwrap();
        mount(Some("x"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let request = || world.publish_request(&client, &volume, "pod");
        assert_eq!(refused(publish(&client, request()).await, &["no share"]), Code::FailedPrecondition);
        assert_eq!(refused(client.unpublish(&volume.volume_id, "pod").await, &["no share"]), Code::FailedPrecondition);
        unmount(&target);
        fs::remove_dir(&target).unwrap();
        fs::write(&target, "file").unwrap();
        assert_eq!(refused(publish(&client, request()).await, &["not a directory"]), Code::InvalidArgument);
        assert_eq!(refused(client.unpublish(&volume.volume_id, "pod").await, &[]), Code::InvalidArgument);
        fs::remove_file(&target).unwrap();
        symlink(&world.root, &target).unwrap();
        assert_eq!(refused(publish(&client, request()).await, &["not a directory"]), Code::InvalidArgument);
        fs::remove_file(&target).unwrap();
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn bad_targets_and_contexts_are_refused_by_field() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        let good = || world.publish_request(&client, &volume, "pod");
        symlink("/etc", client.kubelet.join("link")).unwrap();
        for (target, words) in [
            (String::new(), &["target_path", "missing"][..]),
            ("relative".into(), &["target_path", "absolute"]),
            (text(&client.kubelet.join("../../x")), &["target_path", ".."]),
            ("/etc/stowage".into(), &["target_path", "--target-root"]),
            (text(&client.kubelet.join("link/stowage")), &["target_path", "--target-root"]),
        ] {
            let request = NodePublishVolumeRequest { target_path: target, ..good() };
            assert_eq!(refused(publish(&client, request).await, words), Code::InvalidArgument);
        }
        for (pairs, words) in [
            (&[("server", "")][..], &["server"][..]),
            (&[("share", "")], &["share"]),
            (&[("server", "a b")], &["server"]),
            (&[("share", "/x/../..")], &["share"]),
            (&[("subdir", "..")], &["subDir"]),
            (&[("mountPermissions", "9")], &["mountPermissions"]),
            (&[("mountOptions", "a b")], &["mount option"]),
            (&[("subdir", "${pod.metadata.name}")], &["podInfoOnMount"]),
        ] {
            let request = NodePublishVolumeRequest { volume_context: with(&volume.volume_context, pairs), ..good() };
            assert_eq!(refused(publish(&client, request).await, words), Code::InvalidArgument);
        }
        let device = NodePublishVolumeRequest { volume_capability: Some(block()), ..good() };
        assert_eq!(refused(publish(&client, device).await, &["block"]), Code::InvalidArgument);
        let gone = with(&volume.volume_context, &[("subdir", "never-made")]);
        let gone = NodePublishVolumeRequest { volume_context: gone, ..good() };
        assert_eq!(refused(publish(&client, gone).await, &["never-made", "No such file"]), Code::Internal);
        assert!(!client.target("pod").try_exists().unwrap());
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn usage_is_told_of_what_is_mounted_and_remembered_for_a_while() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        let path = text(&client.target("pod"));
        assert_eq!(refused(stats(&client, "", &path).await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(stats(&client, "v", "").await, &["volume_path"]), Code::InvalidArgument);
        assert_eq!(refused(stats(&client, "v", &path).await, &["not mounted"]), Code::NotFound);
        publish(&client, world.publish_request(&client, &volume, "pod")).await.unwrap();
        let first = stats(&client, &volume.volume_id, &path).await.unwrap();
        let [bytes, inodes] = &first.usage[..] else { panic!("{first:?}") };
        let real = nix::sys::statvfs::statvfs(&world.directory).unwrap();
        assert_eq!(bytes.total, (real.blocks() * real.fragment_size()) as i64);
        assert!(bytes.available > 0 && bytes.used + bytes.available <= bytes.total);
        assert_eq!((bytes.unit(), inodes.unit()), (volume_usage::Unit::Bytes, volume_usage::Unit::Inodes));
        let file = fs::File::create_new(client.target("pod").join("file")).unwrap();
        std::io::Write::write_all(&mut &file, &vec![7; 8 << 20]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(stats(&client, &volume.volume_id, &path).await.unwrap(), first, "it is remembered");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(601)).await;
        tokio::time::resume();
        assert_ne!(stats(&client, &volume.volume_id, &path).await.unwrap(), first, "it is asked for anew");
        client.unpublish(&volume.volume_id, "pod").await.unwrap();
        assert_eq!(refused(stats(&client, &volume.volume_id, &path).await, &["not mounted"]), Code::NotFound);
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn a_pod_whose_server_is_gone_loses_its_mount_all_the_same() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        publish(&client, world.publish_request(&client, &volume, "pod")).await.unwrap();
        if !world.mood.hang() {
            client.unpublish(&volume.volume_id, "pod").await.unwrap();
            return client.delete(&volume.volume_id).await.unwrap();
        }
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        client.unpublish(&volume.volume_id, "pod").await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 30, "only what waits for longer is given up");
        tokio::time::resume();
        assert!(!client.target("pod").try_exists().unwrap());
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn a_mount_that_its_server_has_forgotten_is_made_anew() {
    test(async |world| {
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let client = world.start(&world.options(), counted.clone()).await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        publish(&client, world.publish_request(&client, &volume, "pod")).await.unwrap();
        if !world.mood.forget() {
            client.unpublish(&volume.volume_id, "pod").await.unwrap();
            return client.delete(&volume.volume_id).await.unwrap();
        }
        let before = counted.changes().len();
        publish(&client, world.publish_request(&client, &volume, "pod")).await.unwrap();
        let changes = counted.changes().split_off(before);
        assert!(changes[0].starts_with("unmount_network"), "{changes:#?}");
        assert!(client.target("pod").is_dir());
        assert_eq!(MountTable::read().unwrap().under(&client.kubelet).count(), 1);
        client.unpublish(&volume.volume_id, "pod").await.unwrap();
        client.delete(&volume.volume_id).await.unwrap();
    });
}
