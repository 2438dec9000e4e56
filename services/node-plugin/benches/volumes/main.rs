//! What volumes cost, each number beside the pool's own: `cargo bench -p node-plugin --bench volumes`. Needs root.
//!
//! The driver is a process of its own: the one of this build, or the binary `STOWAGE_BENCH_DRIVER`. The pool is in a
//! temporary directory, or in `STOWAGE_BENCH_POOL`. Names after `--` choose parts: memory, creation,
//! steps, speed, extents. Everything is removed at the end.
#![allow(clippy::unwrap_used)]

mod extents;
mod memory;
mod speed;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use stowage_csi::v1::*;
use stowage_csi::{Channel, Endpoint};
use stowage_mount::{Access, FileSystem, Host, Images, LinuxMounter, LoopOptions, MountOptions, Mounter, Space};

const MIB: usize = 1 << 20;

struct Bench {
    root: PathBuf,
    channel: Channel,
    process: Child,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
    /// Starts a driver as a process of its own, whose pool and kubelet directory are below `root`.
    async fn start(root: PathBuf) -> Self {
        let (pool, kubelet, socket) = (root.join("pool"), root.join("kubelet"), root.join("csi.sock"));
        for folder in [&pool, &kubelet] {
            fs::create_dir_all(folder).unwrap();
        }
        let binary =
            std::env::var_os("STOWAGE_BENCH_DRIVER").unwrap_or_else(|| env!("CARGO_BIN_EXE_node-plugin").into());
        let mut command = Command::new(binary);
        command.arg(format!("--endpoint=unix://{}", socket.display()));
        command.args(["--nodeid=bench", "--driver=local", "--mode=all"]);
        command.arg(format!("--state-dir={}", root.join("state").display()));
        command.arg(format!("--pool=main={}", pool.display())).arg(format!("--target-root={}", kubelet.display()));
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !socket.try_exists().unwrap() {
            tokio::task::yield_now().await;
        }
        let channel = Channel::unix(&Endpoint::at(&socket).unwrap());
        Bench { root, channel, process }
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
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
    host.make_image(&image, 1 << 30, Space::Sparse).await.unwrap();
    host.create_dir(&target).await.unwrap();
    // One in a create, two in the first stage and one in each later one; each goes again on the way back.
    let record = bench.root.join("pool/steps.json");
    let (write, written) = timed(host.write_file(&record, &[b' '; 500])).await;
    written.unwrap();
    let (remove, removed) = timed(host.remove_file(&record)).await;
    removed.unwrap();
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
    println!("of which: durable record {write:.1?}, its removal {remove:.1?}");
    println!(
        "of which: loop {attach:.1?}, probe {probe:.1?}, mkfs {mkfs:.1?}, fsck {check:.1?}, mount {mounting:.1?}, bind {bind:.1?}"
    );
    host.unmount(&bench.path("bound")).await.unwrap();
    host.unmount(&target).await.unwrap();
    host.detach_loop(&device).await.unwrap();
    host.remove_file(&image).await.unwrap();
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let chosen: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|word| word == part);
    runtime.block_on(async {
        let bench = Bench::start(root).await;
        if wants("memory") {
            memory::measure(&bench.root).await;
        }
        if wants("creation") {
            creation(&bench).await;
        }
        if wants("steps") {
            steps(&bench).await;
        }
        if wants("speed") {
            speed::measure(&bench).await;
        }
        if wants("extents") {
            extents::measure(&bench.root).await;
        }
    });
}
