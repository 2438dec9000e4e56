//! Pods that hold more in an empty directory than they may.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use stowage_model::object::{Key, kinds};
use stowage_model::pod::Pod;
use stowage_mount::Mounter as _;

use crate::stage::{Cluster, POD, Stage, within};

const MESSAGE: &str = r#"Usage of EmptyDir volume "data" exceeds the limit "1Ki". "#;

fn volumes(limit: &str) -> Value {
    json!([{ "name": "data", "emptyDir": { "sizeLimit": limit } }])
}

fn dir(stage: &Stage, pod: &str) -> PathBuf {
    stage.root().join("pods").join(stage.uid(pod)).join("volumes/kubernetes.io~empty-dir/data")
}

async fn fill(stage: &Stage, dir: &Path, bytes: usize) {
    stage.memory.write_file(&dir.join("file"), &vec![b'x'; bytes]).await.unwrap();
}

async fn is_evicted(stage: &Stage, pod: &str) -> Value {
    let failed = async {
        loop {
            let seen = stage.raw(kinds::POD, &Key::namespaced("default", pod)).await;
            if seen["status"]["phase"] == "Failed" {
                return seen["status"].clone();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    within(failed).await
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_holds_more_than_it_may_is_told_and_failed_and_its_volumes_go() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..Cluster::default() }).await;
    let _node = stage.start();
    stage.create_pod_with(POD, volumes("1Ki")).await;
    stage.create_pod_with("modest", volumes("4Ki")).await;
    stage.create_pod_of("critical", json!({ "priority": 2_000_000_000, "volumes": volumes("1Ki") })).await;
    for pod in [POD, "modest", "critical"] {
        stage.pod_is_running(pod).await;
        fill(&stage, &dir(&stage, pod), 2048).await;
    }
    let dir = dir(&stage, POD);
    let begin = stage.elapsed();
    let status = is_evicted(&stage, POD).await;
    let took = stage.elapsed() - begin;
    assert!(took >= Duration::from_secs(9) && took <= Duration::from_secs(12), "{took:?}");
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!(MESSAGE)));
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    let conditions = status["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("PodFailed")));
    stage.event(POD, "Evicted", MESSAGE).await;
    within(async {
        while stage.memory.stat(&dir).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    for pod in ["modest", "critical"] {
        let pod: Pod = stage.get(pod).await;
        assert!(!pod.is_terminal(), "{}", pod.meta.name);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_what_is_too_much_is_found_again() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..Cluster::default() }).await;
    let node = stage.start();
    stage.create_pod_with(POD, volumes("1Ki")).await;
    stage.pod_is_running(POD).await;
    fill(&stage, &dir(&stage, POD), 1025).await;
    node.crash();
    let _node = stage.start();
    assert_eq!(is_evicted(&stage, POD).await["message"], MESSAGE);
}

/// On the disk of this machine, where the blocks of files count and not their lengths.
#[tokio::test(start_paused = true)]
async fn the_blocks_that_files_have_on_a_real_disk_count() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod_with(POD, volumes("1Mi")).await;
    stage.pod_is_running(POD).await;
    let dir = dir(&stage, POD);
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let pod: Pod = stage.get(POD).await;
    assert!(!pod.is_terminal(), "a hole takes no space");
    std::fs::create_dir(dir.join("sub")).unwrap();
    let mut full = std::fs::File::create(dir.join("sub/full")).unwrap();
    std::io::Write::write_all(&mut full, &vec![7; 2 << 20]).unwrap();
    full.sync_all().unwrap();
    let status = is_evicted(&stage, POD).await;
    assert_eq!(status["message"], r#"Usage of EmptyDir volume "data" exceeds the limit "1Mi". "#);
    stage.dirs_are_gone(&[&dir]).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_pods_plain_directories_hold_is_told_to_who_asks() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..Cluster::default() }).await;
    let _node = stage.start();
    let labels = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
    let volumes = json!([
        { "name": "data", "emptyDir": {} },
        { "name": "about", "downwardAPI": { "items": labels, "defaultMode": 420 } },
    ]);
    let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "about", "mountPath": "/about" }]);
    let containers = json!([{ "name": "main", "image": "none", "volumeMounts": mounts }]);
    stage.create_pod_of(POD, json!({ "volumes": volumes, "containers": containers })).await;
    stage.pod_is_running(POD).await;
    fill(&stage, &dir(&stage, POD), 5000).await;
    let manager = stage.manager().await;
    let told = manager.usage(&stage.uid(POD)).await.unwrap();
    let names: Vec<&str> = told.iter().map(|usage| usage.name.as_str()).collect();
    assert_eq!(names, ["about", "data"]);
    let before = told[1].used_bytes.unwrap();
    assert!(before >= 5000 && told[1].capacity_bytes.is_some(), "{told:?}");
    fill(&stage, &dir(&stage, POD), 9000).await;
    let after = manager.usage(&stage.uid(POD)).await.unwrap()[1].used_bytes.unwrap();
    assert_eq!(after - before, 4000, "it is counted when it is asked");
    assert!(manager.usage("nobody").await.is_err());
}
