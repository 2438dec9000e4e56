//! What volumes cost, each number beside the pool's own: `cargo bench -p node-plugin --bench volumes`. Needs root.
//!
//! The pool is a temporary directory, or `STOWAGE_BENCH_POOL`. Everything is removed at the end.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use node_plugin::args::PoolOption;
use node_plugin::{Driver, Kind, Mode, Options};
use stowage_csi::Channel;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use stowage_csi::v1::*;
use stowage_mount::{Access, FileSystem, Host, LinuxMounter, LoopOptions, MountOptions, Mounter};

const MIB: usize = 1 << 20;
/// Sequential bytes; enough to see past the disk's own cache on small machines.
const STREAM: usize = 512 * MIB;
const MANY: usize = 1000;
const DIRECT_IO_LEAST: f64 = 0.90;

struct Bench {
    root: std::path::PathBuf,
    channel: Channel,
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: access_mode::Mode::SingleNodeMultiWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

impl Bench {
    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.join("kubelet").join(name)
    }

    async fn create(&self, name: &str, bytes: usize, thin: bool) -> String {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            parameters: [("thin".to_owned(), thin.to_string())].into(),
            ..Default::default()
        };
        self.controller().create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id
    }

    async fn delete(&self, volume_id: String) {
        let request = DeleteVolumeRequest { volume_id, ..Default::default() };
        self.controller().delete_volume(request).await.unwrap();
    }

    async fn stage(&self, volume: &str) {
        let request = NodeStageVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: text(&self.path("stage")),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.node().node_stage_volume(request).await.unwrap();
    }

    async fn publish(&self, volume: &str) {
        let request = NodePublishVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: text(&self.path("stage")),
            target_path: text(&self.path("pod")),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.unwrap();
    }

    async fn stats(&self, volume: &str) {
        let (volume_id, volume_path) = (volume.to_owned(), text(&self.path("pod")));
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        self.node().node_get_volume_stats(request).await.unwrap();
    }

    async fn give_back(&self, volume: &str) {
        let (volume_id, target_path) = (volume.to_owned(), text(&self.path("pod")));
        self.node().node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id, target_path }).await.unwrap();
        let (volume_id, staging_target_path) = (volume.to_owned(), text(&self.path("stage")));
        self.node().node_unstage_volume(NodeUnstageVolumeRequest { volume_id, staging_target_path }).await.unwrap();
    }
}

async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let begin = Instant::now();
    let result = work.await;
    (begin.elapsed(), result)
}

fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// The disk's own limit for small durable changes: a record is a synced file, a rename and a synced folder.
fn syncs_per_second(pool: &Path) -> f64 {
    let (count, begin) = (200, Instant::now());
    for index in 0..count {
        let (new, old) = (pool.join("sync.new"), pool.join("sync"));
        let mut file = File::create(&new).unwrap();
        file.write_all(index.to_string().as_bytes()).unwrap();
        file.sync_all().unwrap();
        fs::rename(new, old).unwrap();
        File::open(pool).unwrap().sync_all().unwrap();
    }
    fs::remove_file(pool.join("sync")).unwrap();
    per_second(count, begin.elapsed())
}

async fn creation(bench: &Bench) {
    let own = syncs_per_second(&bench.root.join("pool"));
    println!("durable small files in the bare pool: {own:.0}/s");
    for (thin, word) in [(true, "thin"), (false, "thick")] {
        let count = 200;
        let (made, ids) = timed(async {
            let mut ids = Vec::new();
            for index in 0..count {
                ids.push(bench.create(&format!("{word}-{index}"), 16 * MIB, thin).await);
            }
            ids
        })
        .await;
        let (removed, ()) = timed(async {
            for id in ids {
                bench.delete(id).await;
            }
        })
        .await;
        let (made, removed) = (per_second(count, made), per_second(count, removed));
        println!("{word}: create {made:.0}/s ({:.2} of the pool's), delete {removed:.0}/s", made / own);
    }
}

async fn steps(bench: &Bench) {
    let volume = bench.create("steps", 1 << 30, true).await;
    let (first, ()) = timed(bench.stage(&volume)).await;
    let (published, ()) = timed(bench.publish(&volume)).await;
    let (again, ()) = timed(bench.publish(&volume)).await;
    let (stats, ()) = timed(bench.stats(&volume)).await;
    let (back, ()) = timed(bench.give_back(&volume)).await;
    let (second, ()) = timed(bench.stage(&volume)).await;
    bench.publish(&volume).await;
    bench.give_back(&volume).await;
    bench.delete(volume).await;
    println!(
        "stage with mkfs {first:.1?}, stage again {second:.1?}, publish {published:.1?}, publish again {again:.1?}"
    );
    println!("stats {stats:.1?}, unpublish and unstage {back:.1?}");

    let (host, image, target) = (LinuxMounter, bench.root.join("pool/steps.img"), bench.path("steps"));
    host.create_image(&image, 1 << 30).await.unwrap();
    host.create_dir(&target).await.unwrap();
    let (attach, device) = timed(host.attach_loop(&image, "stowage-bench", LoopOptions::default())).await;
    let device = device.unwrap();
    let (probe, _) = timed(host.probe(&device.path)).await;
    let (mkfs, _) = timed(host.make_filesystem(&device.path, FileSystem::Ext4, &[])).await;
    let (check, _) = timed(host.check_filesystem(&device.path, FileSystem::Ext4)).await;
    let source = text(&device.path);
    let (mounting, mounted) = timed(host.mount(&source, &target, "ext4", &MountOptions::default())).await;
    mounted.unwrap();
    host.create_dir(&bench.path("bound")).await.unwrap();
    let (bind, bound) = timed(host.bind(&target, &bench.path("bound"), Access::ReadWrite)).await;
    bound.unwrap();
    println!(
        "of which: loop {attach:.1?}, probe {probe:.1?}, mkfs {mkfs:.1?}, fsck {check:.1?}, mount {mounting:.1?}, bind {bind:.1?}"
    );
    host.unmount(&bench.path("bound")).await.unwrap();
    host.unmount(&target).await.unwrap();
    host.detach_loop(&device).await.unwrap();
    host.remove_file(&image).await.unwrap();
}

struct Speed {
    write: f64,
    read: f64,
    random_write: f64,
    random_read: f64,
}

/// Requests under way at once, in the volume and in the bare pool alike.
const DEPTH: usize = 8;

/// Does `work` for the numbers below `count`, `DEPTH` at a time.
fn in_parallel(count: usize, work: impl Fn(usize, &mut [u8]) + Sync) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..DEPTH {
            let work = &work;
            scope.spawn(move || {
                let mut memory = vec![0x5A; MIB + 4096];
                let start = memory.as_ptr().align_offset(4096);
                let block = &mut memory[start..start + MIB];
                (thread..count).step_by(DEPTH).for_each(|index| work(index, block));
            });
        }
    });
    per_second(count, begin.elapsed())
}

/// MiB/s in 1 MiB blocks and operations/s in 4 KiB blocks, past the page cache.
fn speed(path: &Path) -> Speed {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    let file = options.open(path).unwrap();
    let write = || {
        let speed = in_parallel(STREAM / MIB, |index, block| file.write_all_at(block, (index * MIB) as u64).unwrap());
        file.sync_all().unwrap();
        speed
    };
    // Once for the space and once for the time: allocation is not what is compared.
    write();
    let place = |index: usize| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % (STREAM as u64 / 4096) * 4096;
    Speed {
        write: write(),
        read: in_parallel(STREAM / MIB, |index, block| file.read_exact_at(block, (index * MIB) as u64).unwrap()),
        random_write: in_parallel(8000, |index, block| file.write_all_at(&block[..4096], place(index)).unwrap()),
        random_read: in_parallel(8000, |index, block| file.read_exact_at(&mut block[..4096], place(index)).unwrap()),
    }
}

async fn throughput(bench: &Bench) {
    let volume = bench.create("speed", 2 * STREAM, true).await;
    bench.stage(&volume).await;
    bench.publish(&volume).await;
    let bare_file = bench.root.join("pool/bare");
    // In turns, so that both see the same neighbours; the better of each counts.
    let (mut bare, mut inside) = (speed(&bare_file), speed(&bench.path("pod/file")));
    for _ in 0..2 {
        let (b, i) = (speed(&bare_file), speed(&bench.path("pod/file")));
        for (best, new) in [(&mut bare, b), (&mut inside, i)] {
            best.write = best.write.max(new.write);
            best.read = best.read.max(new.read);
            best.random_write = best.random_write.max(new.random_write);
            best.random_read = best.random_read.max(new.random_read);
        }
    }
    fs::remove_file(bare_file).unwrap();
    bench.give_back(&volume).await;
    bench.delete(volume).await;
    for (word, unit, bare, inside, aim) in [
        ("sequential write", "MiB/s", bare.write, inside.write, true),
        ("sequential read", "MiB/s", bare.read, inside.read, true),
        ("random 4k write", "/s", bare.random_write, inside.random_write, false),
        ("random 4k read", "/s", bare.random_read, inside.random_read, false),
    ] {
        let aim = if aim { format!(" (aim {DIRECT_IO_LEAST:.2})") } else { String::new() };
        println!("{word}: volume {inside:.0} {unit}, bare pool {bare:.0} {unit}: {:.2}{aim}", inside / bare);
    }
}

fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

async fn memory(bench: &Bench) {
    let mut ids = vec![bench.create("memory-0", 16 * MIB, true).await];
    let one = resident();
    for index in 1..MANY {
        ids.push(bench.create(&format!("memory-{index}"), 16 * MIB, true).await);
    }
    let listed = bench.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.entries.len(), MANY);
    drop(listed);
    println!("resident: {one:.1} MiB with 1 volume, {:.1} MiB with {MANY} (limit 15; caller included)", resident());
    bench.stage(&ids[0]).await;
    let (published, ()) = timed(bench.publish(&ids[0])).await;
    let (stats, ()) = timed(bench.stats(&ids[0])).await;
    println!("beside {MANY} others: publish {published:.1?}, stats {stats:.1?}");
    bench.give_back(&ids[0]).await;
    for id in ids {
        bench.delete(id).await;
    }
}

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounts and loop devices need root");
        return;
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    let place = std::env::var_os("STOWAGE_BENCH_POOL").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(place).unwrap();
    let root = dir.path().canonicalize().unwrap();
    for name in ["pool", "kubelet"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let options = Options {
        kind: Kind::Local,
        driver_name: "local.csi.stowage.dev".into(),
        endpoint: "unix:///unused.sock".parse().unwrap(),
        socket_mode: Default::default(),
        node_id: "bench".into(),
        pools: vec![PoolOption { name: "main".into(), path: root.join("pool") }],
        mode: Mode::All,
        overcommit: 1.0,
        max_volumes: 0,
        target_roots: vec![root.join("kubelet")],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let driver = Driver::new(&options, Arc::new(LinuxMounter));
        let bench = Bench { root, channel: Channel::in_process(driver.routes()) };
        memory(&bench).await;
        creation(&bench).await;
        steps(&bench).await;
        throughput(&bench).await;
    });
}
