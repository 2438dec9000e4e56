//! The memory of a driver that runs as a process of its own.

use std::fs;
use std::path::Path;

use stowage_csi::v1::ListVolumesRequest;

use crate::{Bench, MIB, timed};

const MANY: usize = 1000;
const LIMIT: f64 = 15.0;

/// Resident now and at the highest, in MB.
fn resident(bench: &Bench) -> [f64; 2] {
    let status = fs::read_to_string(format!("/proc/{}/status", bench.process.id())).unwrap();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
    })
}

fn tell(bench: &Bench, when: &str) {
    let [now, highest] = resident(bench);
    println!("resident {when}: {now:.1} MB, at the highest {highest:.1} MB (limit {LIMIT})");
}

pub async fn measure(root: &Path) {
    let far = Bench::start(root.join("memory")).await;
    let mut ids = vec![far.create("memory-0", 16 * MIB, true).await];
    far.stage(&ids[0]).await;
    far.publish(&ids[0]).await;
    tell(&far, "with 1 volume, published");
    for index in 1..MANY {
        ids.push(far.create(&format!("memory-{index}"), 16 * MIB, true).await);
    }
    let listed = far.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.entries.len(), MANY);
    tell(&far, &format!("with {MANY} volumes, all listed"));
    let (published, ()) = timed(far.publish(&ids[0])).await;
    let (stats, ()) = timed(far.stats(&ids[0])).await;
    println!("beside {MANY} others: publish again {published:.1?}, stats {stats:.1?}");
    let mut calls = Vec::new();
    for id in &ids[1..] {
        let (mut client, volume_id) = (far.controller(), id.clone());
        calls.push(tokio::spawn(async move {
            let request = stowage_csi::v1::DeleteVolumeRequest { volume_id, ..Default::default() };
            client.delete_volume(request).await.unwrap();
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
    tell(&far, &format!("after {} deletions at once", MANY - 1));
    far.give_back(&ids[0]).await;
    far.delete(ids.remove(0)).await;
    let root = far.root.clone();
    drop(far);
    fs::remove_dir_all(root).unwrap();
}
