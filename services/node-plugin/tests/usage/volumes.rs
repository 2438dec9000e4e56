//! The local driver: no attachments, all file systems, blocks and directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use node_plugin::{Kind, Options};
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, BlockVolume, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::{Host, LinuxMounter, run_program};
use tonic::Code;

use crate::world::{Answer, Client, MIB, World, capability, of_snapshot, refused, request, run, test, text, unmount};

/// No context: there is nothing to attach.
pub const FREE: &BTreeMap<String, String> = &BTreeMap::new();

/// The file systems of this machine: one whose tools are missing is left out with a word.
pub fn file_systems() -> Vec<&'static str> {
    let there = |name: &&str| {
        let found = run_program(Command::new(format!("mkfs.{name}")).arg("-V")).is_ok();
        if !found {
            eprintln!("skipped: mkfs.{name} is not installed");
        }
        found
    };
    ["ext4", "xfs", "btrfs"].into_iter().filter(there).collect()
}

/// The smallest size all of them can have, and room to grow.
pub const ROOM: i64 = 320 * MIB;

/// Whether this machine lets anybody grow a mounted ext4; where not, that is said.
pub fn may_grow(kind: &str) -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let allowed = u64::from_str_radix(mask.trim(), 16).unwrap() >> SYS_RESOURCE & 1 == 1;
    if kind == "ext4" && !allowed {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| eprintln!("skipped: growing a mounted ext4 needs CAP_SYS_RESOURCE; it grows unmounted"));
    }
    kind != "ext4" || allowed
}

impl World {
    pub fn local_options(&self, node: &str) -> Options {
        let options = self.options(node);
        Options { kind: Kind::Local, driver_name: "local.csi.stowage.dev".into(), overcommit: 100.0, ..options }
    }

    pub async fn local(&self, node: &str) -> Client {
        self.local_on(node, Arc::new(LinuxMounter))
    }

    pub fn local_on(&self, node: &str, host: Arc<dyn Host>) -> Client {
        self.start(self.local_options(node), host)
    }
}

/// What a volume is made of, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Of(&'static str),
    Block,
    Directory,
}

impl Made {
    pub fn capability(self) -> VolumeCapability {
        let block = Some(AccessType::Block(BlockVolume {}));
        let good = capability(AccessMode::SingleNodeMultiWriter);
        if self == Made::Block { VolumeCapability { access_type: block, ..good } } else { good }
    }

    pub fn request(self, name: &str, bytes: i64) -> CreateVolumeRequest {
        let mut request = request(name);
        request.capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
        request.volume_capabilities = vec![self.capability()];
        let (key, value) = match self {
            Made::Of(kind) => ("fsType", kind),
            Made::Block => ("pool", "main"),
            Made::Directory => ("backend", "directory"),
        };
        request.parameters = BTreeMap::from([(key.into(), value.into())]);
        request
    }

    pub async fn create(self, client: &Client, name: &str, bytes: i64) -> Answer<String> {
        Ok(client.create(self.request(name, bytes)).await?.volume_id)
    }

    pub async fn stage(self, client: &Client, volume: &str) -> Answer<()> {
        let volume_capability = Some(self.capability());
        let request = NodeStageVolumeRequest { volume_capability, ..client.stage_request(volume, FREE) };
        client.node().node_stage_volume(request).await.map(drop)
    }

    pub async fn publish(self, client: &Client, volume: &str, pod: &str, readonly: bool) -> Answer<()> {
        let volume_capability = Some(self.capability());
        let request =
            NodePublishVolumeRequest { volume_capability, readonly, ..client.publish_request(volume, FREE, pod) };
        client.node().node_publish_volume(request).await.map(drop)
    }

    /// Creates, stages and publishes.
    pub async fn used(self, client: &Client, name: &str) -> String {
        let volume = self.create(client, name, ROOM).await.unwrap();
        self.stage(client, &volume).await.unwrap();
        self.publish(client, &volume, "pod", false).await.unwrap();
        volume
    }
}

impl Client {
    /// All the way back, from published.
    pub async fn give_back(&self, volume: &str) {
        self.unpublish(volume, "pod").await.unwrap();
        self.unstage(volume).await.unwrap();
        self.delete(volume).await.unwrap();
    }

    pub async fn stats_of(&self, volume: &str, path: &Path) -> Answer<NodeGetVolumeStatsResponse> {
        let request =
            NodeGetVolumeStatsRequest { volume_id: volume.into(), volume_path: text(path), ..Default::default() };
        Ok(self.node().node_get_volume_stats(request).await?.into_inner())
    }
}

#[test]
fn every_file_system_lives_keeps_its_data_and_tells_its_usage() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let made = Made::Of(kind);
            let volume = made.used(&client, kind).await;
            let target = client.target("pod");
            assert_eq!(world.mount_at(&target).unwrap().fs_type, kind);
            fs::write(target.join("data"), kind).unwrap();
            let stats = client.stats_of(&volume, &target).await.unwrap();
            assert!(stats.usage[0].total > ROOM / 2 && stats.usage[0].total <= ROOM, "{kind}: {stats:?}");
            assert!(!stats.volume_condition.unwrap().abnormal);

            // A driver that has just started knows it all from the kernel.
            let restarted = world.local("a").await;
            made.stage(&restarted, &volume).await.unwrap();
            made.publish(&restarted, &volume, "pod", false).await.unwrap();
            assert_eq!(world.loops().len(), 1);
            restarted.unpublish(&volume, "pod").await.unwrap();
            restarted.unstage(&volume).await.unwrap();
            made.stage(&client, &volume).await.unwrap();
            made.publish(&client, &volume, "pod", false).await.unwrap();
            assert_eq!(fs::read_to_string(target.join("data")).unwrap(), kind);
            client.give_back(&volume).await;
        }
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_volume_that_holds_another_file_system_is_refused_and_left_alone() {
    test(async |world| {
        let client = world.local("a").await;
        if !file_systems().contains(&"xfs") {
            return;
        }
        let made = Made::Of("xfs");
        let volume = made.create(&client, "v", ROOM).await.unwrap();
        let image = world.only_image();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let answer = made.stage(&client, &volume).await;
        assert_eq!(refused(answer, &["nothing or xfs", "ext4", "left as it is"]), Code::FailedPrecondition);
        assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
        let other = VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume { fs_type: "ext4".into(), ..Default::default() })),
            ..made.capability()
        };
        let request = NodeStageVolumeRequest { volume_capability: Some(other), ..client.stage_request(&volume, FREE) };
        let answer = client.node().node_stage_volume(request).await;
        assert_eq!(refused(answer, &["xfs", "ext4"]), Code::FailedPrecondition);
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_block_volume_is_a_device_of_the_asked_size_and_a_read_only_one_refuses_writes() {
    test(async |world| {
        use std::os::unix::fs::FileExt;
        let client = world.local("a").await;
        let made = Made::Block;
        let volume = made.used(&client, "v").await;
        let target = client.target("pod");
        made.stage(&client, &volume).await.unwrap();
        made.publish(&client, &volume, "pod", false).await.unwrap();
        let device = fs::OpenOptions::new().read(true).write(true).open(&target).unwrap();
        device.write_all_at(b"raw bytes", 4096).unwrap();
        device.sync_all().unwrap();
        let stats = client.stats_of(&volume, &target).await.unwrap();
        assert_eq!((stats.usage.len(), stats.usage[0].total), (1, ROOM));

        made.publish(&client, &volume, "reader", true).await.unwrap();
        made.publish(&client, &volume, "reader", true).await.unwrap();
        assert_eq!(refused(made.publish(&client, &volume, "reader", false).await, &["read-only"]), Code::AlreadyExists);
        let reader = fs::File::open(client.target("reader")).unwrap();
        let mut bytes = [0; 9];
        reader.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!(&bytes, b"raw bytes");
        let writing = fs::OpenOptions::new().write(true).open(client.target("reader"));
        let written = writing.and_then(|device| device.write_all_at(b"x", 0).and_then(|()| device.sync_all()));
        assert!(written.is_err(), "a reader can write");
        drop((device, reader));

        assert_eq!(refused(client.unstage(&volume).await, &["pods/"]), Code::FailedPrecondition);
        client.unpublish(&volume, "reader").await.unwrap();
        assert!(!client.target("reader").try_exists().unwrap());
        client.give_back(&volume).await;
        assert_eq!(fs::read_dir(client.staging()).unwrap().count(), 0, "the staged node is left");
    });
}

#[test]
fn a_volume_is_used_as_it_was_made() {
    test(async |world| {
        let client = world.local("a").await;
        let (block, mounted) = (Made::Block, Made::Of("ext4"));
        let (raw, files) =
            (block.create(&client, "raw", ROOM).await.unwrap(), mounted.create(&client, "files", ROOM).await.unwrap());
        assert_eq!(refused(mounted.stage(&client, &raw).await, &["a block device"]), Code::FailedPrecondition);
        assert_eq!(refused(block.stage(&client, &files).await, &["a file system"]), Code::FailedPrecondition);
        client.delete(&raw).await.unwrap();
        client.delete(&files).await.unwrap();
    });
}

#[test]
fn a_directory_volume_is_a_bind_mount_without_a_device() {
    test(async |world| {
        let client = world.local("a").await;
        let made = Made::Directory;
        let volume = made.used(&client, "v").await;
        assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
        fs::write(client.target("pod").join("data"), "kept").unwrap();
        made.publish(&client, &volume, "reader", true).await.unwrap();
        let written = fs::write(client.target("reader").join("x"), "").unwrap_err();
        assert_eq!(written.raw_os_error(), Some(nix::libc::EROFS));
        client.stats_of(&volume, &client.target("pod")).await.unwrap();
        assert_eq!(refused(client.unstage(&volume).await, &["pods/"]), Code::FailedPrecondition);
        client.unpublish(&volume, "reader").await.unwrap();
        client.unpublish(&volume, "pod").await.unwrap();
        client.unstage(&volume).await.unwrap();

        let restarted = world.local("a").await;
        made.stage(&restarted, &volume).await.unwrap();
        made.publish(&restarted, &volume, "pod", false).await.unwrap();
        assert_eq!(fs::read_to_string(client.target("pod").join("data")).unwrap(), "kept");
        client.give_back(&volume).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_node_of_the_local_driver_tells_its_place_and_its_limit() {
    test(async |world| {
        let options = Options { max_volumes: 7, ..world.local_options("a") };
        let info = world.start(options, Arc::new(LinuxMounter)).info().await.unwrap();
        assert_eq!(info.max_volumes_per_node, 7);
        let segments = info.accessible_topology.unwrap().segments;
        assert_eq!(segments.into_iter().collect::<Vec<_>>(), [("topology.stowage.dev/node".into(), "a".into())]);
    });
}

#[test]
fn what_pods_delete_goes_back_to_the_pool_unless_it_was_allocated_in_advance() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let volume = Made::Of(kind).used(&client, kind).await;
            let allocated = || {
                use std::os::unix::fs::MetadataExt;
                fs::metadata(world.only_image()).unwrap().blocks() * 512
            };
            let file = client.target("pod").join("big");
            fs::write(&file, vec![7u8; 64 << 20]).unwrap();
            fs::File::open(&file).unwrap().sync_all().unwrap();
            let full = allocated();
            fs::remove_file(&file).unwrap();
            // Blocks are free once the removal is committed, which xfs does in the background.
            let mut rounds = 0;
            while allocated() + (48 << 20) > full {
                assert!(rounds < 200, "{kind}: {} of {full} bytes are still taken", allocated());
                let target = client.target("pod");
                run(Command::new("sync").arg("-f").arg(&target));
                let trimmed = run_program(Command::new("fstrim").arg(&target)).unwrap();
                assert!(trimmed.status.success(), "{kind}: {trimmed:?}");
                rounds += 1;
            }
            client.give_back(&volume).await;
        }
        let mut request = Made::Of("ext4").request("thick", 64 * MIB);
        request.parameters.insert("thin".into(), "false".into());
        let volume = client.create(request).await.unwrap().volume_id;
        let image = world.only_image();
        let blocks = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap()) * 512;
        assert!(blocks(&image) >= 64 << 20);
        Made::Of("ext4").stage(&client, &volume).await.unwrap();
        let _ = run_program(Command::new("fstrim").arg(client.staging())).unwrap();
        assert!(blocks(&image) >= 64 << 20, "a trim has given away what was allocated in advance");
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn mounts_that_propagate_to_a_second_place_do_not_keep_a_volume_staged() {
    test(async |world| {
        use nix::mount::{MsFlags, mount};
        let client = world.local("a").await;
        // As in a container that sees the host's kubelet directory twice.
        let (kubelet, twin) = (world.root.join("kubelet"), world.root.join("twin"));
        fs::create_dir(&twin).unwrap();
        let none = None::<&str>;
        mount(Some(&kubelet), &kubelet, none, MsFlags::MS_BIND, none).unwrap();
        mount(none, &kubelet, none, MsFlags::MS_SHARED, none).unwrap();
        mount(Some(&kubelet), &twin, none, MsFlags::MS_BIND, none).unwrap();
        for made in [Made::Of("ext4"), Made::Block, Made::Directory] {
            let volume = made.used(&client, &format!("{made:?}")).await;
            let copy = twin.join(client.target("pod").strip_prefix(&kubelet).unwrap());
            assert!(world.mount_at(&copy).is_some(), "the mount did not propagate");
            client.give_back(&volume).await;
            assert_eq!(world.mount_at(&copy), None);
        }
        unmount(&twin);
        unmount(&kubelet);
    });
}

#[test]
fn a_target_that_is_a_device_a_file_or_a_link_is_refused() {
    test(async |world| {
        use nix::sys::stat::{Mode, SFlag, mknod};
        let client = world.local("a").await;
        let made = Made::Of("ext4");
        let volume = made.create(&client, "v", 32 * MIB).await.unwrap();
        made.stage(&client, &volume).await.unwrap();
        fs::create_dir_all(client.target("")).unwrap();
        mknod(&client.target("null"), SFlag::S_IFCHR, Mode::S_IRUSR, nix::sys::stat::makedev(1, 3)).unwrap();
        fs::write(client.target("file"), "somebody's").unwrap();
        std::os::unix::fs::symlink("/etc", client.target("link")).unwrap();
        for pod in ["null", "file", "link"] {
            let answer = made.publish(&client, &volume, pod, false).await;
            assert_eq!(refused(answer, &["not a directory"]), Code::InvalidArgument, "{pod}");
            let answer = client.unpublish(&volume, pod).await;
            assert_eq!(refused(answer, &["target_path"]), Code::InvalidArgument, "{pod}");
            assert!(client.target(pod).symlink_metadata().is_ok(), "{pod} was removed");
        }
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_copy_of_a_volume_that_nobody_has_used_is_as_good_as_a_new_one() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let made = Made::Of(kind);
            let source = made.create(&client, &format!("{kind}-source"), ROOM).await.unwrap();
            let snapshot = client.snapshot(&source, kind).await.unwrap().snapshot_id;
            let mut request = made.request(&format!("{kind}-copy"), ROOM);
            request.volume_content_source = Some(VolumeContentSource { r#type: Some(of_snapshot(&snapshot)) });
            let copy = client.create(request).await.unwrap().volume_id;
            made.stage(&client, &copy).await.unwrap();
            made.publish(&client, &copy, "pod", false).await.unwrap();
            fs::write(client.target("pod").join("data"), "x").unwrap();
            client.give_back(&copy).await;
            client.delete_snapshot(&snapshot).await.unwrap();
            client.delete(&source).await.unwrap();
            assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
        }
    });
}

#[test]
fn a_directory_volume_is_mounted_with_the_flags_of_its_class() {
    test(async |world| {
        let client = world.local("a").await;
        let with = |flags: &[&str]| {
            let mount_flags = flags.iter().map(ToString::to_string).collect();
            let access_type = Some(AccessType::Mount(MountVolume { mount_flags, ..Default::default() }));
            VolumeCapability { access_type, ..capability(AccessMode::SingleNodeMultiWriter) }
        };
        let create = |name: &str, flags: &[&str]| CreateVolumeRequest {
            volume_capabilities: vec![with(flags)],
            ..Made::Directory.request(name, ROOM)
        };
        let unfit = client.create(create("unfit", &["nosuid", "data=ordered"])).await;
        assert_eq!(refused(unfit, &["\"data\"", "no file system of its own"]), Code::InvalidArgument);

        let flags = ["nosuid,nodev", "noexec", "noatime"];
        let volume = client.create(create("v", &flags)).await.unwrap().volume_id;
        let volume_capability = Some(with(&flags));
        let stage = NodeStageVolumeRequest {
            volume_capability: volume_capability.clone(),
            ..client.stage_request(&volume, FREE)
        };
        client.node().node_stage_volume(stage).await.unwrap();
        let publish = NodePublishVolumeRequest { volume_capability, ..client.publish_request(&volume, FREE, "pod") };
        client.node().node_publish_volume(publish).await.unwrap();
        for path in [client.staging(), client.target("pod")] {
            let options = world.mount_at(&path).unwrap().options;
            for word in ["rw", "nosuid", "nodev", "noexec", "noatime"] {
                assert!(options.iter().any(|option| option == word), "{word} is not in {options:?}");
            }
        }
        client.give_back(&volume).await;
    });
}
