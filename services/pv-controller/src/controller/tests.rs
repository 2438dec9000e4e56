//! Who is decided on again when something changes: a hang starts with a row missing here.

use futures::FutureExt;
use serde_json::{Value, json};

use stowage_runtime::clock::SystemClock;

use super::*;

fn claim(change: Value) -> Claim {
    let mut tree = json!({
        "metadata": { "namespace": "n", "name": "c", "uid": "u", "resourceVersion": "1" },
        "spec": { "resources": { "requests": { "storage": "1Gi" } }, "accessModes": ["ReadWriteOnce"] },
        "status": { "phase": "Pending" },
    });
    json_patch::merge(&mut tree, &change);
    serde_json::from_value(tree).unwrap()
}

fn volume(change: Value) -> Volume {
    let mut tree = json!({
        "metadata": { "name": "v", "uid": "v", "resourceVersion": "1" },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" } },
        "status": { "phase": "Available" },
    });
    json_patch::merge(&mut tree, &change);
    serde_json::from_value(tree).unwrap()
}

fn pod(change: Value) -> Pod {
    let mut tree = json!({
        "metadata": { "namespace": "n", "name": "p", "uid": "p", "resourceVersion": "1" },
        "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c" } }] },
    });
    json_patch::merge(&mut tree, &change);
    serde_json::from_value(tree).unwrap()
}

fn refers() -> Value {
    json!({ "spec": { "claimRef": { "namespace": "n", "name": "c", "uid": "u" } } })
}

fn newer(mut change: Value) -> Value {
    change["metadata"]["resourceVersion"] = "9".into();
    change
}

struct Desk {
    caches: Caches,
    queue: Queue<Subject>,
    pods_moved: signal::Receiver<u64>,
}

impl Desk {
    fn new() -> Self {
        let context = Context::real(
            kube::Client::new(
                tower::service_fn(|_: http::Request<kube::client::Body>| async {
                    Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nothing is sent here"))
                }),
                "default",
            ),
            Arc::new(stowage_csi::UnixConnector),
            "test",
        );
        let (caches, queue) = (Caches::default(), Queue::new(Backoff::QUEUE));
        let operations = Operations::new(Tasks::new().spawner(), Arc::new(SystemClock), RECLAIM, |_| {});
        let metrics = Metrics::of(&context.metrics, &caches);
        let (moved, pods_moved) = signal::channel(0);
        let wakes = Wakes { queue: queue.clone(), caches: caches.clone(), memory: Memory::default() };
        wakes.subscribe(&metrics, &operations, &context, moved);
        Self { caches, queue, pods_moved }
    }

    /// Everybody who is to be decided on, in order of their names.
    fn woken(&self) -> Vec<String> {
        let mut woken = Vec::new();
        while let Some(subject) = self.queue.next().now_or_never() {
            self.queue.done(&subject);
            woken.push(match subject {
                Subject::Claim(key) => format!("claim {}", key.name),
                Subject::Volume(key) => format!("volume {}", key.name),
                Subject::Pod(key) => format!("pod {}", key.name),
                Subject::AttributesClass(key) => format!("attributes class {}", key.name),
            });
        }
        woken.sort();
        woken
    }

    /// The claim was decided on and waits.
    fn waits(&self) {
        let claim = self.caches.claims.get(&Key::namespaced("n", "c")).unwrap();
        let version = self
            .caches
            .matchmaker
            .choice(&claim, stowage_model::matching::Place::Anywhere, false, |_| true, |_| false)
            .version;
        self.caches.matchmaker.decided(&claim, &crate::matchmaker::Outcome::Waits, version);
    }
}

#[tokio::test]
async fn a_claim_wakes_itself_and_the_volumes_that_it_names_or_that_refer_to_it() {
    let desk = Desk::new();
    desk.caches.volumes.watched(volume(refers()));
    desk.woken();
    desk.caches.claims.watched(claim(json!({ "spec": { "volumeName": "other" } })));
    assert_eq!(desk.woken(), ["claim c", "volume other", "volume v"]);
    desk.caches
        .claims
        .watched(claim(newer(json!({ "spec": { "volumeName": "other" }, "status": { "phase": "Bound" } }))));
    assert_eq!(desk.woken(), ["claim c"], "a status concerns no volume");
    desk.caches.claims.observe_gone(&Key::namespaced("n", "c"), "u");
    assert_eq!(desk.woken(), ["claim c", "volume other", "volume v"]);
}

#[tokio::test]
async fn a_claim_that_comes_or_goes_wakes_the_pods_whose_ephemeral_volume_it_may_be() {
    let desk = Desk::new();
    let ephemeral = json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    desk.caches.pods.watched(pod(json!({ "spec": { "volumes": ephemeral } })));
    assert_eq!(desk.woken(), ["claim p-data", "pod p"]);
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "p-data" } })));
    assert_eq!(desk.woken(), ["claim p-data", "pod p"]);
    desk.caches.claims.observe_gone(&Key::namespaced("n", "p-data"), "u");
    assert_eq!(desk.woken(), ["claim p-data", "pod p"]);
}

#[tokio::test]
async fn a_claim_or_volume_that_leaves_an_attributes_class_wakes_the_class() {
    let desk = Desk::new();
    let named = |name: &str| json!({ "spec": { "volumeAttributesClassName": name } });
    desk.caches.claims.watched(claim(named("gold")));
    desk.caches.volumes.watched(volume(named("gold")));
    desk.woken();
    desk.caches.claims.watched(claim(newer(named("silver"))));
    assert_eq!(desk.woken(), ["attributes class gold", "claim c"]);
    desk.caches.volumes.watched(volume(newer(named("silver"))));
    assert_eq!(desk.woken(), ["attributes class gold", "volume v"]);
}

#[tokio::test]
async fn a_volume_wakes_itself_its_claims_of_now_and_before_and_those_that_name_it() {
    let desk = Desk::new();
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "names" }, "spec": { "volumeName": "v" } })));
    desk.woken();
    desk.caches.volumes.watched(volume(refers()));
    assert_eq!(desk.woken(), ["claim c", "claim names", "volume v"]);
    desk.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(desk.woken(), ["claim c", "claim names", "volume v"]);
}

#[tokio::test]
async fn a_volume_that_becomes_free_wakes_the_claim_that_waits() {
    let desk = Desk::new();
    desk.caches.claims.watched(claim(json!({})));
    desk.woken();
    desk.waits();
    desk.caches.volumes.watched(volume(json!({ "status": { "phase": "Pending" } })));
    assert_eq!(desk.woken(), ["volume v"]);
    desk.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(desk.woken(), ["claim c", "volume v"]);
    // It goes before it took the volume.
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "next", "uid": "w" } })));
    desk.woken();
    let next = desk.caches.claims.get(&Key::namespaced("n", "next")).unwrap();
    desk.caches.matchmaker.decided(&next, &crate::matchmaker::Outcome::Waits, 2);
    desk.caches.claims.observe_gone(&Key::namespaced("n", "c"), "u");
    assert_eq!(desk.woken(), ["claim c", "claim next"]);
}

#[tokio::test]
async fn a_class_wakes_the_claims_that_wait_for_it_or_for_any() {
    let desk = Desk::new();
    desk.caches.claims.watched(claim(json!({ "spec": { "storageClassName": "gold" } })));
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "d" } })));
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "e" }, "spec": { "storageClassName": "silver" } })));
    desk.woken();
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "provisioner": "d" });
    desk.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(desk.woken(), ["claim c", "claim d"]);
}

#[tokio::test]
async fn a_pod_wakes_its_claims_of_now_and_before_and_the_volumes_kept_for_them() {
    let desk = Desk::new();
    desk.caches.volumes.watched(volume(refers()));
    desk.woken();
    desk.caches.pods.watched(pod(json!({})));
    assert_eq!(desk.woken(), ["claim c", "volume v"]);
    desk.caches.pods.watched(pod(newer(json!({ "spec": { "volumes": [] } }))));
    assert_eq!(desk.woken(), ["claim c", "volume v"]);
    desk.caches.pods.observe_gone(&Key::namespaced("n", "p"), "p");
    assert_eq!(desk.woken(), Vec::<String>::new());
}

#[tokio::test]
async fn whoever_waits_for_a_recycler_pod_is_told_of_any_of_that_name() {
    let mut desk = Desk::new();
    desk.caches.pods.watched(pod(json!({})));
    assert!(!desk.pods_moved.has_changed().unwrap());
    desk.caches.pods.watched(pod(json!({ "metadata": { "name": "recycler-for-v" } })));
    assert!(desk.pods_moved.has_changed().unwrap());
    desk.pods_moved.mark_unchanged();
    desk.caches.pods.observe_gone(&Key::namespaced("n", "recycler-for-v"), "p");
    assert!(desk.pods_moved.has_changed().unwrap());
}

#[tokio::test]
async fn an_attributes_class_wakes_itself() {
    let desk = Desk::new();
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "driverName": "d" });
    desk.caches.attributes_classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(desk.woken(), ["attributes class gold"]);
}
