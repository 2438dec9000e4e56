use serde_json::{Value, json};

use crate::explain::tests::{create, define, delete, send, server, tell};

use super::*;

fn data() -> Key {
    Key::namespaced("default", "data")
}

/// What was read of claim `data` and around it, and with how many requests.
async fn asked(api: &Api) -> (usize, Gathered) {
    let mut reader = Reader::new(api);
    let gathered = read(&mut reader, Wanted::Claim(data())).await.unwrap();
    (reader.asked, gathered)
}

async fn claim(api: &Api, name: &str, spec: Value) {
    let mut body = json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    for (field, value) in spec.as_object().unwrap() {
        body["spec"][field] = value.clone();
    }
    create(api, kinds::CLAIM, body).await;
}

async fn pod(api: &Api, name: &str, node: &str, claims: &[&str]) {
    let volume = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    let body = json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }],
                  "volumes": claims.iter().map(volume).collect::<Vec<_>>() },
    });
    create(api, kinds::POD, body).await;
}

/// More pods with the claim, each on a node of its own and with another claim of its own.
async fn users(api: &Api, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let own = format!("own-{number}");
        claim(api, &own, json!({ "volumeName": format!("pv-{number}") })).await;
        pod(api, &format!("pod-{number}"), &format!("node-{number}"), &["data", &own]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_pods_use_a_claim_the_requests_are_as_many() {
    let (_server, api) = server();
    claim(&api, "data", json!({ "volumeName": "pv" })).await;
    users(&api, 0..30).await;
    create(&api, kinds::NODE, json!({ "metadata": { "name": "node-7" } })).await;
    tell(&api, ("Pod", "pod-7"), "Warning", "FailedMount", "2026-01-01T00:00:00Z").await;
    tell(&api, ("Pod", "pod-8"), "Normal", "Pulled", "2026-01-01T00:00:00Z").await;
    tell(&api, ("Pod", "pod-9"), "Normal", "SandboxKilled", "2026-01-01T00:00:00Z").await;
    tell(&api, ("Pod", "another"), "Warning", "FailedMount", "2026-01-01T00:00:00Z").await;
    let (few, gathered) = asked(&api).await;
    let told: Vec<&str> = gathered.events.all().iter().map(|told| told.subject().2).collect();
    assert_eq!(told, ["pod-7", "pod-8"]);
    assert_eq!((gathered.pods.all().len(), gathered.claims.all().len(), gathered.nodes.all().len()), (30, 31, 1));
    assert!(gathered.nodes.is_known && gathered.claims.is_known && gathered.events.is_known, "{gathered:#?}");
    users(&api, 30..60).await;
    let (many, gathered) = asked(&api).await;
    assert_eq!(gathered.pods.all().len(), 60);
    assert_eq!(many, few);
    assert!(many <= 60, "{many}");
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_and_snapshots_of_others_cost_no_request() {
    let (_server, api) = server();
    define(&api).await;
    claim(&api, "data", json!({ "volumeName": "pv" })).await;
    let (alone, _) = asked(&api).await;
    for number in 0..9 {
        let name = format!("job-{number}");
        pod(&api, &name, &format!("node-{number}"), &["data"]).await;
        let path = format!("{}/status", kinds::POD.object_path(&Key::namespaced("default", name.as_str())));
        send(&api, "PATCH", &path, json!({ "status": { "phase": "Succeeded" } })).await;
        let snapshot = json!({
            "metadata": { "namespace": "default", "name": format!("snap-{number}") },
            "spec": { "source": { "persistentVolumeClaimName": "another" } },
        });
        create(&api, kinds::VOLUME_SNAPSHOT, snapshot).await;
    }
    let (with_others, gathered) = asked(&api).await;
    assert_eq!((gathered.pods.all().len(), gathered.snapshots.all().len()), (9, 9));
    assert_eq!(with_others, alone);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_filled_from_a_deleted_one_has_its_pods_with_it() {
    let (_server, api) = server();
    let finalizers = ["provisioner.storage.kubernetes.io/cloning-protection"];
    let source = json!({
        "metadata": { "namespace": "default", "name": "data", "finalizers": finalizers },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    create(&api, kinds::CLAIM, source).await;
    claim(&api, "copy", json!({ "dataSource": { "kind": "PersistentVolumeClaim", "name": "data" } })).await;
    pod(&api, "user", "node-1", &["copy"]).await;
    delete(&api, kinds::CLAIM, &data()).await;
    let (_, gathered) = asked(&api).await;
    assert!(gathered.pods.look(&Key::namespaced("default", "user")).there().is_some(), "{gathered:#?}");
}
