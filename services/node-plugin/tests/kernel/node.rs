use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::{Child, Command, Stdio};

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::without_open_files;
use tonic::Code;

use crate::world::{Client, SIZE, World, capability, refused, request, request_with, test, text, unmount};

#[test]
fn a_volume_lives_from_creation_to_a_pod_and_back_and_keeps_its_data() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let (volume, context) = a.staged("pvc-1", "a").await;
        a.publish(&volume, &context, "pod").await.unwrap();
        let mount = world.mount_at(&a.target("pod")).unwrap();
        assert_eq!((mount.fs_type.as_str(), mount.is_read_only()), ("ext4", false));
        fs::write(a.target("pod").join("data"), "kept").unwrap();
        a.unpublish(&volume, "pod").await.unwrap();
        assert!(!a.target("pod").try_exists().unwrap());
        a.unstage(&volume).await.unwrap();
        assert!(a.staging().try_exists().unwrap(), "the staging directory is the kubelet's");
        a.detach(&volume, "a").await.unwrap();

        let context = a.attach(&volume, "b").await.unwrap();
        b.stage(&volume, &context).await.unwrap();
        b.publish(&volume, &context, "pod").await.unwrap();
        assert_eq!(fs::read_to_string(b.target("pod").join("data")).unwrap(), "kept");
        b.unpublish(&volume, "pod").await.unwrap();
        b.remove(&volume).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn every_step_repeated_changes_nothing() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        for _ in 0..3 {
            client.stage(&volume, &context).await.unwrap();
        }
        for _ in 0..3 {
            client.publish(&volume, &context, "pod").await.unwrap();
        }
        assert_eq!(world.loops().len(), 1);
        let table = stowage_mount::MountTable::read().unwrap();
        assert_eq!(table.under(&world.root).count(), 2);
        for _ in 0..3 {
            client.unpublish(&volume, "pod").await.unwrap();
        }
        for _ in 0..3 {
            client.unstage(&volume).await.unwrap();
        }
        client.remove(&volume).await;
    });
}

#[test]
fn a_restarted_driver_knows_what_is_staged_from_the_kernel() {
    test(async |world| {
        let (volume, context) = world.node("a").await.staged("v", "a").await;
        let restarted = world.node("a").await;
        restarted.stage(&volume, &context).await.unwrap();
        assert_eq!(world.loops().len(), 1);
        restarted.publish(&volume, &context, "pod").await.unwrap();
        restarted.unpublish(&volume, "pod").await.unwrap();
        restarted.remove(&volume).await;
    });
}

/// It was checked as if nobody used it, which no tool does, and so never staged again.
#[test]
fn a_volume_whose_staging_mount_was_taken_away_while_a_pod_has_it_is_staged_again() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        client.publish(&volume, &context, "pod").await.unwrap();
        fs::write(client.target("pod").join("data"), "kept").unwrap();
        unmount(&client.staging());
        let restarted = world.node("a").await;
        restarted.stage(&volume, &context).await.unwrap();
        restarted.publish(&volume, &context, "second").await.unwrap();
        for seen in [restarted.staging(), restarted.target("pod"), restarted.target("second")] {
            assert_eq!(fs::read_to_string(seen.join("data")).unwrap(), "kept");
        }
        assert_eq!(world.loops().len(), 1);
        for pod in ["pod", "second"] {
            restarted.unpublish(&volume, pod).await.unwrap();
        }
        restarted.remove(&volume).await;
    });
}

#[test]
fn the_device_uses_direct_io_and_enforces_the_size() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let name = world.loops()[0].file_name().unwrap().to_owned();
        let direct = std::path::Path::new("/sys/block").join(name).join("loop/dio");
        assert_eq!(fs::read_to_string(direct).unwrap().trim(), "1");
        client.publish(&volume, &context, "pod").await.unwrap();
        let too_much = fs::write(client.target("pod").join("big"), vec![7u8; SIZE as usize]).unwrap_err();
        assert_eq!(too_much.raw_os_error(), Some(nix::libc::ENOSPC));

        let stats = stats(&client, &volume, &text(&client.target("pod"))).await.unwrap();
        assert!(stats.usage[0].total > SIZE / 2 && stats.usage[0].total <= SIZE, "{stats:?}");
        assert!(stats.usage[1].used > 0);
        client.unpublish(&volume, "pod").await.unwrap();
        client.remove(&volume).await;
    });
}

async fn stats(client: &Client, volume: &str, path: &str) -> Result<NodeGetVolumeStatsResponse, tonic::Status> {
    let request =
        NodeGetVolumeStatsRequest { volume_id: volume.into(), volume_path: path.into(), ..Default::default() };
    Ok(client.node().node_get_volume_stats(request).await?.into_inner())
}

#[test]
fn statistics_are_for_mounted_volumes_only() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, _) = client.staged("v", "a").await;
        stats(&client, &volume, &text(&client.staging())).await.unwrap();
        assert_eq!(refused(stats(&client, &volume, "/some/path").await, &["/some/path"]), Code::NotFound);
        assert_eq!(refused(stats(&client, &volume, &text(&world.root)).await, &[]), Code::NotFound);
        assert_eq!(refused(stats(&client, "other", "/x").await, &["other"]), Code::NotFound);
        assert_eq!(refused(stats(&client, "", "/x").await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(stats(&client, &volume, "").await, &["volume_path"]), Code::InvalidArgument);
        client.remove(&volume).await;
    });
}

#[test]
fn a_read_only_publish_refuses_writes_and_a_writable_repeat() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let request = NodePublishVolumeRequest { readonly: true, ..client.publish_request(&volume, &context, "pod") };
        client.node().node_publish_volume(request.clone()).await.unwrap();
        client.node().node_publish_volume(request).await.unwrap();
        let written = fs::write(client.target("pod").join("x"), "x").unwrap_err();
        assert_eq!(written.raw_os_error(), Some(nix::libc::EROFS));
        assert_eq!(refused(client.publish(&volume, &context, "pod").await, &["read-only"]), Code::AlreadyExists);
        client.publish(&volume, &context, "writer").await.unwrap();
        fs::write(client.target("writer").join("x"), "x").unwrap();
        for pod in ["pod", "writer"] {
            client.unpublish(&volume, pod).await.unwrap();
        }
        client.remove(&volume).await;
    });
}

#[test]
fn nothing_is_published_that_is_not_staged_and_nothing_unstaged_that_is_published() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let early = client.publish(&volume, &context, "pod").await;
        assert_eq!(refused(early, &["not staged", "NodeStageVolume"]), Code::FailedPrecondition);
        assert!(!client.target("pod").try_exists().unwrap());
        let bare = NodePublishVolumeRequest {
            staging_target_path: String::new(),
            ..client.publish_request(&volume, &context, "pod")
        };
        let answer = client.node().node_publish_volume(bare).await;
        assert_eq!(refused(answer, &["staging_target_path"]), Code::FailedPrecondition);

        client.stage(&volume, &context).await.unwrap();
        client.publish(&volume, &context, "pod").await.unwrap();
        assert_eq!(refused(client.unstage(&volume).await, &["pods/pod"]), Code::FailedPrecondition);
        client.detach(&volume, "a").await.unwrap();
        assert_eq!(refused(client.delete(&volume).await, &["/dev/loop"]), Code::FailedPrecondition);
        fs::write(client.target("pod").join("still"), "there").unwrap();
        client.unpublish(&volume, "pod").await.unwrap();
        client.remove(&volume).await;
    });
}

#[test]
fn staging_differently_is_a_conflict() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let elsewhere = NodeStageVolumeRequest {
            staging_target_path: text(&client.kubelet.join("other")),
            ..client.stage_request(&volume, &context)
        };
        let answer = client.node().node_stage_volume(elsewhere).await;
        assert_eq!(refused(answer, &["globalmount"]), Code::AlreadyExists);
        let mount = MountVolume { mount_flags: vec!["noatime".into()], ..Default::default() };
        let flags = VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            ..capability(AccessMode::SingleNodeWriter)
        };
        let request =
            NodeStageVolumeRequest { volume_capability: Some(flags), ..client.stage_request(&volume, &context) };
        let answer = client.node().node_stage_volume(request.clone()).await;
        assert_eq!(refused(answer, &["staged"]), Code::AlreadyExists);
        client.unstage(&volume).await.unwrap();
        client.node().node_stage_volume(request).await.unwrap();
        assert!(world.mount_at(&client.staging()).unwrap().options.contains(&"noatime".into()));
        client.remove(&volume).await;
    });
}

#[test]
fn what_a_volume_cannot_do_is_refused_when_it_is_staged_and_when_it_is_published() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let mounted = |fs_type: &str, flags: &[&str]| {
            let mount_flags = flags.iter().map(|flag| flag.to_string()).collect();
            let mount = MountVolume { fs_type: fs_type.into(), mount_flags, ..Default::default() };
            VolumeCapability { access_type: Some(AccessType::Mount(mount)), ..capability(AccessMode::SingleNodeWriter) }
        };
        for (asked_for, word) in [
            (capability(AccessMode::MultiNodeMultiWriter), "one node at a time"),
            (crate::world::block(), "a file system"),
            (mounted("xfs", &[]), "xfs"),
            (mounted("ntfs", &[]), "ntfs"),
        ] {
            let volume_capability = Some(asked_for);
            let stage = client.stage_request(&volume, &context);
            let stage = NodeStageVolumeRequest { volume_capability: volume_capability.clone(), ..stage };
            let answer = client.node().node_stage_volume(stage).await;
            assert_eq!(refused(answer, &[word]), Code::FailedPrecondition);
            let publish = client.publish_request(&volume, &context, "pod");
            let publish = NodePublishVolumeRequest { volume_capability, ..publish };
            let answer = client.node().node_publish_volume(publish).await;
            assert_eq!(refused(answer, &[word]), Code::FailedPrecondition);
        }
        let publish = NodePublishVolumeRequest {
            volume_capability: Some(mounted("ext4", &["noatime,data=journal"])),
            ..client.publish_request(&volume, &context, "pod")
        };
        let answer = client.node().node_publish_volume(publish).await;
        assert_eq!(refused(answer, &["without mount flag \"noatime\""]), Code::FailedPrecondition);
        assert!(!client.target("pod").try_exists().unwrap());
        client.remove(&volume).await;
    });
}

#[test]
fn mkfs_options_shape_the_file_system_and_belong_to_the_volume() {
    test(async |world| {
        let client = world.node("a").await;
        let few = request_with("few", &[("mkfsOptions", "-N 512")]);
        let volume = client.create(few.clone()).await.unwrap().volume_id;
        for options in ["-N 1024", ""] {
            let other = client.create(request_with("few", &[("mkfsOptions", options)])).await;
            assert_eq!(refused(other, &["mkfsOptions", "-N 512"]), Code::AlreadyExists);
        }
        assert_eq!(client.create(few).await.unwrap().volume_id, volume);
        let path = client.stage_beside(&volume, "a").await;
        assert_eq!(nix::sys::statvfs::statvfs(&path).unwrap().files(), 512);
        client.unstage_beside(&volume).await;
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn foreign_data_is_never_formatted() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let image = world.only_image();
        // At the start, far behind where signatures are, and where an old RAID has its superblock.
        for at in [0, 8 << 20, SIZE as usize - (128 << 10)] {
            let mut foreign = vec![0u8; SIZE as usize];
            foreign[at..at + 15].copy_from_slice(b"somebody's data");
            fs::write(&image, &foreign).unwrap();
            let answer = client.stage(&volume, &context).await;
            assert_eq!(refused(answer, &["unknown data", "left as it is"]), Code::FailedPrecondition, "at {at}");
            assert!(fs::read(&image).unwrap() == foreign, "the image was changed");
            assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
        }
        client.detach(&volume, "a").await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_path_that_is_taken_is_not_covered_and_not_freed() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let taken = client.target("pod");
        fs::create_dir_all(&taken).unwrap();
        let nothing = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), &taken, Some("tmpfs"), nothing, None::<&str>).unwrap();
        let publish = client.publish(&volume, &context, "pod").await;
        assert_eq!(refused(publish, &["mount point"]), Code::FailedPrecondition);
        assert_eq!(refused(client.unpublish(&volume, "pod").await, &["mount point"]), Code::FailedPrecondition);
        let staging = NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path: text(&client.staging()) };
        let answer = client.node().node_unpublish_volume(staging).await;
        assert_eq!(refused(answer, &["globalmount"]), Code::FailedPrecondition);
        unmount(&taken);

        let victim = world.root.join("victim");
        fs::create_dir(&victim).unwrap();
        symlink(&victim, client.target("link")).unwrap();
        let through = client.publish(&volume, &context, "link").await;
        assert_eq!(refused(through, &["target_path", "not a directory"]), Code::InvalidArgument);
        assert_eq!(world.mount_at(&victim), None);
        client.remove(&volume).await;
    });
}

#[test]
fn a_volume_is_unstaged_even_when_its_pool_is_gone() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        client.publish(&volume, &context, "pod").await.unwrap();
        let away = world.root.join("away");
        fs::rename(world.pool(), &away).unwrap();
        client.unpublish(&volume, "pod").await.unwrap();
        client.unstage(&volume).await.unwrap();
        fs::rename(away, world.pool()).unwrap();
        client.remove(&volume).await;
    });
}

/// Another mount namespace that has copies of all mounts of this moment, as a container that was started now.
struct Container {
    process: Child,
    /// It ends when this is closed.
    gate: Option<fs::File>,
}

impl Container {
    fn start(world: &World) -> Self {
        let gate = world.root.join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", "read line < \"$0\""]).arg(&gate);
        let mut process = without_open_files(|| command.stdin(Stdio::null()).spawn().unwrap());
        // Can be opened when it has its mounts and reads.
        loop {
            match fs::File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&gate) {
                Ok(gate) => return Container { process, gate: Some(gate) },
                Err(error) => assert_eq!(error.raw_os_error(), Some(nix::libc::ENXIO)),
            }
            assert_eq!(process.try_wait().unwrap(), None, "unshare has ended");
            std::thread::yield_now();
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.gate.take());
        let _ = self.process.wait();
    }
}

#[test]
fn a_volume_that_another_mount_namespace_still_has_mounted_is_not_said_to_be_unstaged() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        fs::write(client.staging().join("data"), "kept").unwrap();
        let container = Container::start(&world);
        for client in [&client, &world.node("a").await] {
            assert_eq!(refused(client.unstage(&volume).await, &["somewhere else", "/dev/loop"]), Code::Unavailable);
            assert!(world.files().iter().any(|name| name.contains(".staged.a")), "{:?}", world.files());
        }
        // Nobody else gets the image either: two file systems on it would destroy each other.
        assert_eq!(refused(client.stage(&volume, &context).await, &["somewhere else"]), Code::Unavailable);
        client.detach(&volume, "a").await.unwrap();
        assert_eq!(refused(client.delete(&volume).await, &["in use"]), Code::FailedPrecondition);
        let other = world.node("b").await;
        let moved = client.attach(&volume, "b").await.unwrap();
        assert_eq!(refused(other.stage(&volume, &moved).await, &["another node made"]), Code::FailedPrecondition);

        drop(container);
        client.unstage(&volume).await.unwrap();
        assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
        other.stage(&volume, &moved).await.unwrap();
        assert_eq!(fs::read_to_string(other.staging().join("data")).unwrap(), "kept");
        other.remove(&volume).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn missing_fields_are_named() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let stage = client.stage_request(&volume, &context);
        for (request, field) in [
            (NodeStageVolumeRequest { volume_id: String::new(), ..stage.clone() }, "volume_id"),
            (NodeStageVolumeRequest { staging_target_path: String::new(), ..stage.clone() }, "staging_target_path"),
            (NodeStageVolumeRequest { staging_target_path: "/a/../b".into(), ..stage.clone() }, "/a/../b"),
            (NodeStageVolumeRequest { volume_capability: None, ..stage.clone() }, "volume_capability"),
        ] {
            assert_eq!(refused(client.node().node_stage_volume(request).await, &[field]), Code::InvalidArgument);
        }
        let bare = client.stage(&volume, &BTreeMap::new()).await;
        assert_eq!(refused(bare, &["publish_context", "ControllerPublishVolume"]), Code::FailedPrecondition);
        let unknown = client.stage(&volume.replace(&volume[5..9], "0000"), &context).await;
        assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
        let publish = client.publish_request(&volume, &context, "pod");
        for (request, field) in [
            (NodePublishVolumeRequest { volume_id: String::new(), ..publish.clone() }, "volume_id"),
            (NodePublishVolumeRequest { target_path: String::new(), ..publish.clone() }, "target_path"),
            (NodePublishVolumeRequest { volume_capability: None, ..publish.clone() }, "volume_capability"),
        ] {
            assert_eq!(refused(client.node().node_publish_volume(request).await, &[field]), Code::InvalidArgument);
        }
        let unpublish = NodeUnpublishVolumeRequest { volume_id: String::new(), target_path: "/x".into() };
        let answer = client.node().node_unpublish_volume(unpublish).await;
        assert_eq!(refused(answer, &["volume_id"]), Code::InvalidArgument);
        let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path: String::new() };
        let answer = client.node().node_unstage_volume(unstage).await;
        assert_eq!(refused(answer, &["staging_target_path"]), Code::InvalidArgument);
        assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn a_node_tells_its_name_and_no_topology() {
    test(async |world| {
        let info = world.node("a").await.info().await.unwrap();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("a", 0));
        assert_eq!(info.accessible_topology, None);
        let capabilities = world.node("a").await.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await;
        assert_eq!(capabilities.unwrap().into_inner().capabilities.len(), 5);
    });
}

#[test]
fn a_volume_that_does_not_exist_is_neither_staged_nor_published() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let unknown = format!("main.{}", "0".repeat(32));
        assert_eq!(refused(client.stage(&unknown, &context).await, &[&unknown]), Code::NotFound);
        assert_eq!(refused(client.publish(&unknown, &context, "pod").await, &[&unknown]), Code::NotFound);
        assert!(!client.target("pod").try_exists().unwrap());
        client.remove(&volume).await;
    });
}
