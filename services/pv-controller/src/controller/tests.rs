//! Who is decided on again when something changes: a hang starts with a row missing here.

use futures::FutureExt;
use serde_json::{Value, json};

use stowage_model::object::Projection;
use stowage_model::{Claim, Pod, Volume};
use stowage_runtime::engine::Controller as _;
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::recycler;

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

fn unreachable_server() -> Context {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nothing is sent here"))
    });
    Context::real(kube::Client::new(service, "default"), Arc::new(stowage_csi::UnixConnector), "test")
}

/// A controller whose caches wake its keys, behind a server.
fn controller_of(context: Context) -> Arc<Controller> {
    let setup = Setup::new(context, Tasks::new().spawner());
    let options = Options { parallel: 1, ..Options::default() };
    let controller = Arc::new(Controller::new(&setup, &options, &(Arc::new(LocalDisk::default()) as _)));
    engine::subscribe(&setup, &controller);
    controller
}

/// The same, whose every request would fail: nothing may be sent.
fn controller() -> Arc<Controller> {
    controller_of(unreachable_server())
}

/// Everybody who is to be decided on, in order of their names.
fn woken(controller: &Controller) -> Vec<String> {
    let mut woken = Vec::new();
    while let Some(key) = controller.queue.next().now_or_never() {
        controller.queue.done(&key);
        let kind = match key {
            Key::Claim(_) => "claim",
            Key::Volume(_) => "volume",
            Key::Pod(_) => "pod",
            Key::AttributesClass(_) => "attributes class",
        };
        woken.push(format!("{kind} {}", key.object().name));
    }
    woken.sort();
    woken
}

/// The claim was decided on and waits.
fn waits(controller: &Controller) {
    let claim = controller.caches.claims.get(&object::Key::namespaced("n", "c")).unwrap();
    let version = controller
        .caches
        .matchmaker
        .choice(&claim, stowage_model::matching::Place::Anywhere, false, |_| crate::matchmaker::Sight::Free)
        .version;
    controller.caches.matchmaker.decided(&claim, &crate::matchmaker::Outcome::Waits, version);
}

/// Decides and remembers it, as the engine does.
fn decide(controller: &Controller, key: &Key) -> Decision<Action> {
    let snapshot = controller.gather(key, &Reserved::default(), Timestamp::UNIX_EPOCH);
    let decision = Controller::decide(&snapshot, Timestamp::UNIX_EPOCH);
    controller.note(key, &snapshot, &decision, Timestamp::UNIX_EPOCH);
    decision
}

#[tokio::test]
async fn a_claim_wakes_itself_and_the_volumes_that_it_names_or_that_refer_to_it() {
    let controller = controller();
    controller.caches.volumes.watched(volume(refers()));
    woken(&controller);
    controller.caches.claims.watched(claim(json!({ "spec": { "volumeName": "other" } })));
    assert_eq!(woken(&controller), ["claim c", "volume other", "volume v"]);
    controller
        .caches
        .claims
        .watched(claim(newer(json!({ "spec": { "volumeName": "other" }, "status": { "phase": "Bound" } }))));
    assert_eq!(woken(&controller), ["claim c"], "a status concerns no volume");
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "c"), "u");
    assert_eq!(woken(&controller), ["claim c", "volume other", "volume v"]);
}

#[tokio::test]
async fn a_claim_that_comes_or_goes_wakes_the_pods_whose_ephemeral_volume_it_may_be() {
    let controller = controller();
    let ephemeral = json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    controller.caches.pods.watched(pod(json!({ "spec": { "volumes": ephemeral } })));
    assert_eq!(woken(&controller), ["claim p-data", "pod p"]);
    controller.caches.claims.watched(claim(json!({ "metadata": { "name": "p-data" } })));
    assert_eq!(woken(&controller), ["claim p-data", "pod p"]);
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "p-data"), "u");
    assert_eq!(woken(&controller), ["claim p-data", "pod p"]);
}

#[tokio::test]
async fn a_claim_or_volume_that_leaves_an_attributes_class_wakes_the_class() {
    let controller = controller();
    let named = |name: &str| json!({ "spec": { "volumeAttributesClassName": name } });
    controller.caches.claims.watched(claim(named("gold")));
    controller.caches.volumes.watched(volume(named("gold")));
    woken(&controller);
    controller.caches.claims.watched(claim(newer(named("silver"))));
    assert_eq!(woken(&controller), ["attributes class gold", "claim c"]);
    controller.caches.volumes.watched(volume(newer(named("silver"))));
    assert_eq!(woken(&controller), ["attributes class gold", "volume v"]);
}

#[tokio::test]
async fn a_volume_wakes_itself_its_claims_of_now_and_before_and_those_that_name_it() {
    let controller = controller();
    controller.caches.claims.watched(claim(json!({ "metadata": { "name": "names" }, "spec": { "volumeName": "v" } })));
    woken(&controller);
    controller.caches.volumes.watched(volume(refers()));
    assert_eq!(woken(&controller), ["claim c", "claim names", "volume v"]);
    controller.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(woken(&controller), ["claim c", "claim names", "volume v"]);
}

#[tokio::test]
async fn s4_05a_4_05b_and_14_14_a_volume_that_refers_to_a_claim_without_volume_leaves_it_to_the_claim() {
    let marked = json!({ "pv.kubernetes.io/bound-by-controller": "yes" });
    let block = json!({ "spec": { "volumeMode": "Block" } });
    for (phase, annotations, both) in [
        ("Bound", marked.clone(), json!({})),
        ("Bound", json!({}), json!({})),
        ("Available", marked.clone(), block),
        ("Available", marked, json!({})),
    ] {
        let controller = controller();
        controller.caches.claims.watched(claim(both.clone()));
        woken(&controller);
        let mut theirs = refers();
        json_patch::merge(&mut theirs, &both);
        theirs["metadata"] = json!({ "annotations": annotations, "finalizers": ["kubernetes.io/pv-protection"] });
        theirs["status"] = json!({ "phase": phase });
        controller.caches.volumes.watched(volume(theirs));
        assert_eq!(woken(&controller), ["claim c", "volume v"]);
        let key = Key::Volume(object::Key::cluster("v"));
        let decision = decide(&controller, &key);
        assert!(decision.actions.is_empty(), "{:?}", decision.actions);
    }
}

#[tokio::test]
async fn a_volume_that_becomes_free_wakes_the_claim_that_waits() {
    let controller = controller();
    controller.caches.claims.watched(claim(json!({})));
    woken(&controller);
    waits(&controller);
    controller.caches.volumes.watched(volume(json!({ "status": { "phase": "Pending" } })));
    assert_eq!(woken(&controller), ["volume v"]);
    controller.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(woken(&controller), ["claim c", "volume v"]);
    // It goes before it took the volume.
    controller.caches.claims.watched(claim(json!({ "metadata": { "name": "next", "uid": "w" } })));
    woken(&controller);
    let next = controller.caches.claims.get(&object::Key::namespaced("n", "next")).unwrap();
    controller.caches.matchmaker.decided(&next, &crate::matchmaker::Outcome::Waits, 2);
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "c"), "u");
    assert_eq!(woken(&controller), ["claim c", "claim next"]);
}

/// Two claims wait, and a volume is offered to the first.
fn offered() -> Arc<Controller> {
    let controller = controller();
    controller.caches.claims.watched(claim(json!({})));
    controller.caches.claims.watched(claim(json!({ "metadata": { "name": "next", "uid": "w" } })));
    waits(&controller);
    let next = controller.caches.claims.get(&object::Key::namespaced("n", "next")).unwrap();
    controller.caches.matchmaker.decided(&next, &crate::matchmaker::Outcome::Waits, 0);
    woken(&controller);
    controller.caches.volumes.watched(volume(json!({})));
    assert_eq!(woken(&controller), ["claim c", "volume v"]);
    controller
}

#[tokio::test]
async fn a_volume_that_a_claim_is_refused_is_offered_to_the_next() {
    let controller = offered();
    let (first, next) = (object::Key::namespaced("n", "c"), object::Key::namespaced("n", "next"));
    assert_eq!(controller.caches.matchmaker.refused(&first, "v"), Some(next.clone()));
    waits(&controller);
    assert_eq!(controller.caches.matchmaker.refused(&next, "v"), None, "what two are refused is not passed on");
    controller.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(woken(&controller), ["claim c", "volume v"], "unless it changes");
}

#[tokio::test]
async fn a_volume_offered_to_a_claim_that_nobody_can_read_any_more_is_offered_to_the_next() {
    let controller = offered();
    let first = object::Key::namespaced("n", "c");
    controller.caches.claims.mark_unreadable(first.clone());
    let decision = decide(&controller, &Key::Claim(first));
    assert!(decision.actions.is_empty());
    assert_eq!(woken(&controller), ["claim next"]);
}

#[tokio::test]
async fn a_class_wakes_the_claims_that_wait_for_it_or_for_any() {
    let controller = controller();
    controller.caches.claims.watched(claim(json!({ "spec": { "storageClassName": "gold" } })));
    controller.caches.claims.watched(claim(json!({ "metadata": { "name": "d" } })));
    controller
        .caches
        .claims
        .watched(claim(json!({ "metadata": { "name": "e" }, "spec": { "storageClassName": "silver" } })));
    woken(&controller);
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "provisioner": "d" });
    controller.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(woken(&controller), ["claim c"]);
    let default = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    let class = json!({
        "metadata": { "name": "gold", "uid": "x", "resourceVersion": "6", "annotations": default }, "provisioner": "d",
    });
    controller.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(woken(&controller), ["claim c", "claim d"]);
}

#[tokio::test]
async fn a_pod_wakes_its_claims_of_now_and_before_and_the_volumes_kept_for_them() {
    let controller = controller();
    let mut recycled = refers();
    recycled["spec"]["persistentVolumeReclaimPolicy"] = "Recycle".into();
    controller.caches.volumes.watched(volume(recycled));
    // Nothing but recycling waits for pods.
    let mut retained = refers();
    retained["metadata"] = json!({ "name": "w", "uid": "w" });
    controller.caches.volumes.watched(volume(retained));
    woken(&controller);
    controller.caches.pods.watched(pod(json!({})));
    assert_eq!(woken(&controller), ["claim c", "volume v"]);
    controller.caches.pods.watched(pod(newer(json!({ "spec": { "volumes": [] } }))));
    assert_eq!(woken(&controller), ["claim c", "volume v"]);
    controller.caches.pods.observe_gone(&object::Key::namespaced("n", "p"), "p");
    assert_eq!(woken(&controller), Vec::<String>::new());
}

#[tokio::test]
async fn whoever_waits_for_a_recycler_pod_is_told_of_any_of_that_name() {
    let controller = controller();
    let mut pods_moved = controller.pods_moved.subscribe();
    controller.caches.pods.watched(pod(json!({})));
    assert!(!pods_moved.has_changed().unwrap());
    controller.caches.pods.watched(pod(json!({ "metadata": { "name": "recycler-for-v" } })));
    assert!(pods_moved.has_changed().unwrap());
    pods_moved.mark_unchanged();
    controller.caches.pods.observe_gone(&object::Key::namespaced("n", "recycler-for-v"), "p");
    assert!(pods_moved.has_changed().unwrap());
}

#[tokio::test]
async fn an_attributes_class_wakes_itself() {
    let controller = controller();
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "driverName": "d" });
    controller.caches.attributes_classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(woken(&controller), ["attributes class gold"]);
}

#[tokio::test]
async fn a_volume_wakes_the_recycler_that_may_have_become_useless() {
    let controller = controller();
    let recycle = json!({ "spec": { "persistentVolumeReclaimPolicy": "Recycle" } });
    controller.caches.volumes.watched(volume(recycle));
    let task = json!({ "stowage.dev/recycles-volume": "v", "stowage.dev/recycles-claim": "u" });
    let recycler =
        pod(json!({ "metadata": { "name": "recycler-for-v", "annotations": task }, "spec": { "volumes": [] } }));
    assert!(recycler::task(&recycler).is_some());
    controller.caches.pods.watched(recycler);
    woken(&controller);
    controller.caches.volumes.watched(volume(newer(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }))));
    assert_eq!(woken(&controller), ["pod recycler-for-v", "volume v"]);
}

#[tokio::test]
async fn a_claim_that_is_known_again_wakes_the_pods_that_rested_meanwhile() {
    let controller = controller();
    let ephemeral = json!([{ "name": "c", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    controller.caches.pods.watched(pod(json!({ "spec": { "volumes": ephemeral } })));
    let theirs = claim(json!({ "metadata": { "name": "p-c" } }));
    controller.caches.claims.watched(theirs.clone());
    woken(&controller);
    controller.caches.claims.mark_unknown(&theirs.key());
    controller.caches.claims.observe(theirs);
    assert_eq!(woken(&controller), ["claim p-c", "pod p"]);
}

#[tokio::test]
async fn a_claim_that_could_never_be_read_wakes_the_volumes_of_its_name_when_it_goes() {
    let controller = controller();
    controller.caches.volumes.watched(volume(refers()));
    controller.caches.claims.mark_unreadable(object::Key::namespaced("n", "c"));
    woken(&controller);
    controller.caches.claims.watched_deletion(&claim(json!({})).meta);
    assert_eq!(woken(&controller), ["claim c", "volume v"]);
}

#[tokio::test(start_paused = true)]
async fn what_changed_between_a_decision_and_its_write_is_decided_on_again() {
    let controller = controller();
    controller.caches.claims.watched(claim(json!({ "metadata": { "finalizers": ["kubernetes.io/pvc-protection"] } })));
    controller.caches.volumes.watched(volume(json!({ "metadata": { "finalizers": ["kubernetes.io/pv-protection"] } })));
    let key = Key::Claim(object::Key::namespaced("n", "c"));
    let decide = || {
        let mut actions = decide(&controller, &key).actions;
        assert!(matches!(actions[0], Action::Claim(ClaimAction::Reserve { .. }, _)), "{actions:?}");
        actions.remove(0)
    };
    let action = decide();
    // An administrator puts a finalizer on it.
    let finalizers = json!(["kubernetes.io/pv-protection", "example.org/kept"]);
    controller.caches.volumes.observe(volume(newer(json!({ "metadata": { "finalizers": finalizers } }))));
    assert!(matches!(controller.carry_out(&key, action).await, Err(Error::Stale(_))));
    // As it is decided on now the write is tried, and the server cannot be reached.
    assert!(matches!(controller.carry_out(&key, decide()).await, Err(Error::Write { .. })));
}

#[tokio::test]
async fn one_look_at_a_missing_class_serves_for_the_pairs_that_were_known_before() {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let service = tower::service_fn({
        let asked = Arc::clone(&asked);
        move |_: http::Request<kube::client::Body>| {
            asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let absent = json!({ "status": "Failure", "code": 404, "reason": "NotFound" }).to_string();
            let answer = http::Response::builder().status(404).body(kube::client::Body::from(absent.into_bytes()));
            async move { Ok::<_, std::io::Error>(answer.unwrap()) }
        }
    });
    let client = kube::Client::new(service, "default");
    let controller = controller_of(Context::real(client, Arc::new(stowage_csi::UnixConnector), "test"));
    let manual = json!({ "spec": { "storageClassName": "manual" } });
    let (first, found) = (claim(manual.clone()), volume(manual.clone()));
    controller.caches.claims.watched(first.clone());
    controller.caches.volumes.watched(found.clone());
    let times = || asked.load(std::sync::atomic::Ordering::Relaxed);
    for _ in 0..3 {
        controller.look_for_class(&first, &found).await.unwrap();
        assert_eq!(times(), 1);
    }
    let later = claim(newer(manual));
    controller.caches.claims.watched(later.clone());
    for _ in 0..2 {
        controller.look_for_class(&later, &found).await.unwrap();
        assert_eq!(times(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_between_a_decision_without_it_and_the_write_is_heeded() {
    let controller = controller();
    let of_gold = |meta: Value| json!({ "metadata": meta, "spec": { "storageClassName": "gold" } });
    controller.caches.claims.watched(claim(of_gold(json!({ "finalizers": ["kubernetes.io/pvc-protection"] }))));
    controller.caches.volumes.watched(volume(of_gold(json!({ "finalizers": ["kubernetes.io/pv-protection"] }))));
    let key = Key::Claim(object::Key::namespaced("n", "c"));
    let decide = || decide(&controller, &key).actions.remove(0);
    let (looks, comes_late) = (decide(), decide());
    assert!(matches!(looks, Action::Claim(ClaimAction::Reserve { .. }, _)), "{looks:?}");
    assert!(matches!(controller.carry_out(&key, looks).await, Err(Error::Read { .. })), "looked for at the server");
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "provisioner": "d" });
    controller.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert!(matches!(controller.carry_out(&key, comes_late).await, Err(Error::Stale(_))));
}

#[tokio::test]
async fn s5_06_deleting_is_timed_from_the_moment_the_claim_is_gone() {
    let controller = controller();
    let mut released = refers();
    released["metadata"] = json!({
        "annotations": { "pv.kubernetes.io/provisioned-by": "d" }, "finalizers": ["kubernetes.io/pv-protection"],
    });
    released["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    released["status"] = json!({ "phase": "Released" });
    controller.caches.volumes.watched(volume(released));
    decide(&controller, &Key::Volume(object::Key::cluster("v")));
    assert!(controller.begun.since("v").is_some());
    controller.caches.volumes.observe_gone(&object::Key::cluster("v"), "v");
    assert!(controller.begun.since("v").is_none());
}

/// A claim and the external volume that it has, of which deleting would be timed.
fn bound_pair(controller: &Controller) -> (Key, Key) {
    let mut theirs = refers();
    theirs["metadata"] = json!({
        "annotations": { "pv.kubernetes.io/provisioned-by": "d" }, "finalizers": ["kubernetes.io/pv-protection"],
    });
    theirs["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    theirs["status"] = json!({ "phase": "Bound" });
    controller.caches.volumes.watched(volume(theirs));
    let bound = json!({
        "metadata": {
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" }, "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": { "volumeName": "v" },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } },
    });
    controller.caches.claims.watched(claim(bound));
    (Key::Claim(object::Key::namespaced("n", "c")), Key::Volume(object::Key::cluster("v")))
}

#[tokio::test]
async fn s5_07_a_volume_that_goes_before_its_claim_is_not_timed() {
    let controller = controller();
    let (claim, volume) = bound_pair(&controller);
    assert_eq!(decide(&controller, &volume).why, Why::Settled);
    controller.caches.volumes.observe_gone(&object::Key::cluster("v"), "v");
    assert_eq!(decide(&controller, &claim).why, Why::Lost);
    assert_eq!(decide(&controller, &volume).why, Why::Gone);
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "c"), "u");
    assert_eq!((decide(&controller, &claim).why, decide(&controller, &volume).why), (Why::Gone, Why::Gone));
    assert!(controller.begun.since("v").is_none() && controller.begun.since("n/c").is_none());
}

#[tokio::test]
async fn a_volume_that_its_claim_leaves_is_timed_once_it_is_released() {
    let controller = controller();
    let (_, key) = bound_pair(&controller);
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "c"), "u");
    assert_eq!(decide(&controller, &key).why, Why::ClaimGone);
    assert!(controller.begun.since("v").is_none(), "another writer may find the claim after all");
    let bound = controller.caches.volumes.get(&object::Key::cluster("v")).unwrap();
    let mut released = Volume::clone(&bound);
    released.meta.revision += 1;
    released.status.phase = stowage_model::phase::VolumePhase::Released;
    controller.caches.volumes.observe(released);
    assert_eq!(decide(&controller, &key).why, Why::ClaimGone);
    assert!(controller.begun.since("v").is_some());
}

#[tokio::test]
async fn s5_08_a_pending_claim_that_goes_is_not_timed_any_more() {
    let controller = controller();
    let meta = json!({ "name": "gold", "uid": "x", "resourceVersion": "5" });
    let class = json!({ "metadata": meta, "provisioner": "d", "volumeBindingMode": "Immediate" });
    controller.caches.classes.watched(serde_json::from_value(class).unwrap());
    let pending = json!({
        "metadata": { "finalizers": ["kubernetes.io/pvc-protection"] }, "spec": { "storageClassName": "gold" },
    });
    controller.caches.claims.watched(claim(pending));
    assert_eq!(decide(&controller, &Key::Claim(object::Key::namespaced("n", "c"))).why, Why::Provision);
    assert!(controller.begun.since("n/c").is_some());
    controller.caches.claims.observe_gone(&object::Key::namespaced("n", "c"), "u");
    assert!(controller.begun.since("n/c").is_none());
}

#[tokio::test]
async fn a_claim_that_comes_back_under_its_name_wakes_what_its_forerunner_left() {
    let controller = controller();
    for (name, policy) in [("recycled", "Recycle"), ("deleted", "Delete"), ("kept", "Retain")] {
        let mut left = refers();
        left["metadata"] = json!({ "name": name, "uid": name });
        left["spec"]["claimRef"]["uid"] = "earlier".into();
        left["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        left["status"] = json!({ "phase": "Released" });
        controller.caches.volumes.watched(volume(left));
    }
    woken(&controller);
    controller.caches.claims.watched(claim(json!({})));
    assert_eq!(woken(&controller), ["claim c", "volume deleted", "volume recycled"]);
    let known = controller.caches.claims.get(&object::Key::namespaced("n", "c")).unwrap();
    controller.caches.claims.mark_unknown(&known.key());
    controller.caches.claims.observe(Claim::clone(&known));
    assert_eq!(woken(&controller), ["claim c", "volume deleted", "volume recycled"]);
}

#[tokio::test]
async fn what_was_told_of_a_volume_is_forgotten_with_its_claim() {
    let controller = controller();
    controller.caches.volumes.watched(volume(refers()));
    let (key, note) =
        (Key::Volume(object::Key::cluster("v")), Note::normal("VolumeRecycled", "volume v is erased and free again"));
    controller.told.note(key.clone(), Source::Binder, note, true, Timestamp::UNIX_EPOCH);
    controller
        .caches
        .volumes
        .watched(volume(json!({ "metadata": { "resourceVersion": "2" }, "spec": refers()["spec"] })));
    assert!(!controller.told.known(&key).is_empty(), "the same claim's");
    controller.caches.volumes.watched(volume(newer(json!({}))));
    assert!(controller.told.known(&key).is_empty());
}

/// One of each: waiting, bound, on its way out, asked for, released, erased, made for a pod, protected.
fn populated() -> Arc<Controller> {
    let controller = controller();
    let (caches, protected) = (&controller.caches, json!(["kubernetes.io/pvc-protection"]));
    for (name, provisioner) in [("gold", "d"), ("manual", "kubernetes.io/no-provisioner")] {
        let meta = json!({ "name": name, "uid": name, "resourceVersion": "5" });
        let class = json!({ "metadata": meta, "provisioner": provisioner, "volumeBindingMode": "Immediate" });
        caches.classes.watched(serde_json::from_value(class).unwrap());
    }
    bound_pair(&controller);
    let named = |name: &str| json!({ "name": name, "uid": name, "finalizers": protected });
    let deleted = json!({ "name": "going", "uid": "going", "finalizers": protected, "deletionTimestamp": "2026-01-01T00:00:00Z" });
    for change in [
        json!({ "metadata": named("waits") }),
        json!({ "metadata": named("asks"), "spec": { "storageClassName": "gold" } }),
        json!({ "metadata": named("unmade"), "spec": { "storageClassName": "manual" } }),
        json!({ "metadata": named("unclassed"), "spec": { "storageClassName": "missing" } }),
        json!({ "metadata": named("names"), "spec": { "volumeName": "missing" } }),
        json!({ "metadata": { "name": "unprotected", "uid": "unprotected" } }),
        json!({ "metadata": deleted }),
    ] {
        caches.claims.watched(claim(change));
    }
    let held = json!({ "namespace": "n", "name": "gone", "uid": "gone" });
    for (name, policy) in [("kept", "Retain"), ("erased", "Recycle"), ("deleted", "Delete")] {
        let mut left =
            json!({ "metadata": named(name), "spec": { "claimRef": held }, "status": { "phase": "Released" } });
        left["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        caches.volumes.watched(volume(left));
    }
    caches.volumes.watched(volume(json!({ "metadata": named("free"), "spec": { "capacity": { "storage": "1Ki" } } })));
    let ephemeral = json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    caches.pods.watched(pod(json!({ "spec": { "volumes": ephemeral } })));
    let class = json!({ "metadata": { "name": "silver", "uid": "x", "resourceVersion": "5" }, "driverName": "d" });
    caches.attributes_classes.watched(serde_json::from_value(class).unwrap());
    controller
}

#[tokio::test(start_paused = true)]
async fn looking_changes_nothing() {
    let controller = populated();
    woken(&controller);
    let is_quiet = || {
        engine::assert_quiet(&*controller, Timestamp::UNIX_EPOCH);
        assert_eq!(woken(&controller), Vec::<String>::new());
    };
    assert_eq!(controller.keys().len(), 15);
    is_quiet();
    assert!(controller.begun.since("n/asks").is_none(), "only what is carried out is timed");
    // The same once all was decided on, something told, and a look at the pods asked for.
    for key in controller.keys() {
        for action in decide(&controller, &key).actions.into_iter().filter(Action::is_told) {
            controller.carry_out(&key, action).now_or_never();
        }
    }
    let going = object::Key::namespaced("n", "going");
    controller.pod_lookups.ask(&going, 1);
    woken(&controller);
    is_quiet();
    let decision = decide(&controller, &Key::Claim(going));
    assert!(decision.is_half_way && decision.actions.is_empty(), "{decision:?}");
    assert!(controller.begun.since("n/asks").is_some());
}
