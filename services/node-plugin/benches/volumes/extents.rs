//! Snapshots and clones of volumes in more and more pieces, on a pool that shares blocks.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use stowage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use stowage_csi::v1::*;

use crate::{Bench, MIB, capability, timed};

/// Small ones vary, large ones take long.
fn rounds(count: usize) -> usize {
    if count <= 1000 { 5 } else { 1 }
}

fn images(pool: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(pool.join("volumes")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "img")).collect()
}

/// Gives an image this many extents: pieces with holes between them, which no file system joins.
fn fill(image: &Path, count: usize, bytes: usize) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let block = vec![0x5A; bytes];
    for index in 0..count {
        file.write_all_at(&block, (index * 2 * bytes.max(4096)) as u64).unwrap();
    }
    file.sync_all().unwrap();
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn create_from(bench: &Bench, name: &str, source: Type) -> String {
    let request = CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..Default::default()
    };
    bench.controller().create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id
}

pub async fn measure(root: &Path) {
    let root = root.join("reflink");
    let (disk, pool) = (root.join("disk"), root.join("pool"));
    fs::create_dir_all(&pool).unwrap();
    fs::create_dir_all(root.join("kubelet")).unwrap();
    File::create_new(&disk).unwrap().set_len(16 << 30).unwrap();
    if !Command::new("mkfs.xfs").arg("-q").arg(&disk).status().is_ok_and(|status| status.success()) {
        println!("skipped: extents need mkfs.xfs");
        return;
    }
    assert!(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&pool).status().unwrap().success());
    let xfs = Bench::start(root.clone()).await;
    let mut before = None;
    for (count, bytes) in [(1, 4096), (1, 64 * MIB), (1, 1024 * MIB), (1000, 4096), (100_000, 4096)] {
        let volume = xfs.create("source", 2048 * MIB, true).await;
        fill(&images(&pool)[0], count, bytes);
        let (mut cuts, mut restores, mut clones, mut bare) = (vec![], vec![], vec![], vec![]);
        for round in 0..rounds(count) {
            let begin = Instant::now();
            let copied =
                Command::new("cp").arg("--reflink=always").arg(&images(&pool)[0]).arg(pool.join("bare")).status();
            assert!(copied.unwrap().success());
            File::open(pool.join("bare")).unwrap().sync_all().unwrap();
            bare.push(begin.elapsed());
            fs::remove_file(pool.join("bare")).unwrap();

            let (source_volume_id, name) = (volume.clone(), format!("cut-{round}"));
            let request = CreateSnapshotRequest { source_volume_id, name, ..Default::default() };
            let (took, answer) = timed(xfs.controller().create_snapshot(request)).await;
            cuts.push(took);
            let snapshot_id = answer.unwrap().into_inner().snapshot.unwrap().snapshot_id;
            let source = Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id.clone() });
            let (took, restored) = timed(create_from(&xfs, "restored", source)).await;
            restores.push(took);
            let source = Type::Volume(VolumeSource { volume_id: volume.clone() });
            let (took, cloned) = timed(create_from(&xfs, "cloned", source)).await;
            clones.push(took);
            for copy in [restored, cloned] {
                xfs.delete(copy).await;
            }
            let request = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
            xfs.controller().delete_snapshot(request).await.unwrap();
        }
        let [cut, restore, clone, own] = [cuts, restores, clones, bare].map(middle);
        let (base_cut, base_clone) = *before.get_or_insert((cut, clone));
        let each = |took: Duration, base: Duration| match count {
            1 => String::new(),
            _ => format!(" ({:.1} µs for each extent)", took.saturating_sub(base).as_secs_f64() * 1e6 / count as f64),
        };
        println!(
            "{count} extents of {} KiB: snapshot {cut:.1?}{}, restore {restore:.1?}, clone {clone:.1?}{}; cp --reflink and \
             sync {own:.1?}",
            bytes >> 10,
            each(cut, base_cut),
            each(clone, base_clone)
        );
        xfs.delete(volume).await;
    }
    drop(xfs);
    umount2(&pool, MntFlags::empty()).unwrap();
    fs::remove_dir_all(root).unwrap();
}
