//! Who is decided on again when something changes: a hang starts with a row missing here.

use futures::FutureExt;
use serde_json::{Value, json};

use stowage_model::{Claim, Pod};
use stowage_runtime::clock::SystemClock;

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

struct Desk {
    memory: Memory,
    metrics: Arc<Metrics>,
    caches: Caches,
    queue: Queue<Subject>,
    pods_moved: signal::Receiver<u64>,
}

impl Desk {
    fn new() -> Self {
        let context = unreachable_server();
        let (caches, queue) = (Caches::default(), Queue::new(Backoff::QUEUE));
        let operations = Operations::new(Tasks::new().spawner(), Arc::new(SystemClock), RECLAIM, |_| {});
        let metrics = Metrics::of(&context.metrics, Some(&caches));
        let (moved, pods_moved) = signal::channel(0);
        let memory = Memory::default();
        let wakes = Wakes { queue: queue.clone(), caches: caches.clone(), memory: memory.clone() };
        wakes.subscribe(&metrics, &operations, &context, moved);
        Self { memory, metrics, caches, queue, pods_moved }
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
            .choice(&claim, stowage_model::matching::Place::Anywhere, false, |_| crate::matchmaker::Sight::Free)
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
async fn s4_05a_4_05b_and_14_14_a_volume_that_refers_to_a_claim_without_volume_leaves_it_to_the_claim() {
    let marked = json!({ "pv.kubernetes.io/bound-by-controller": "yes" });
    let block = json!({ "spec": { "volumeMode": "Block" } });
    for (phase, annotations, both) in [
        ("Bound", marked.clone(), json!({})),
        ("Bound", json!({}), json!({})),
        ("Available", marked.clone(), block),
        ("Available", marked, json!({})),
    ] {
        let desk = Desk::new();
        desk.caches.claims.watched(claim(both.clone()));
        desk.woken();
        let mut theirs = refers();
        json_patch::merge(&mut theirs, &both);
        theirs["metadata"] = json!({ "annotations": annotations, "finalizers": ["kubernetes.io/pv-protection"] });
        theirs["status"] = json!({ "phase": phase });
        desk.caches.volumes.watched(volume(theirs));
        assert_eq!(desk.woken(), ["claim c", "volume v"]);
        let subject = Subject::Volume(Key::cluster("v"));
        let decision = binder(&desk).decide(&subject, Timestamp::UNIX_EPOCH, &Reserved::default());
        assert!(decision.actions.is_empty(), "{:?}", decision.actions);
    }
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

/// Two claims wait, and a volume is offered to the first.
fn offered() -> Desk {
    let desk = Desk::new();
    desk.caches.claims.watched(claim(json!({})));
    desk.caches.claims.watched(claim(json!({ "metadata": { "name": "next", "uid": "w" } })));
    desk.waits();
    let next = desk.caches.claims.get(&Key::namespaced("n", "next")).unwrap();
    desk.caches.matchmaker.decided(&next, &crate::matchmaker::Outcome::Waits, 0);
    desk.woken();
    desk.caches.volumes.watched(volume(json!({})));
    assert_eq!(desk.woken(), ["claim c", "volume v"]);
    desk
}

#[tokio::test]
async fn a_volume_that_a_claim_is_refused_is_offered_to_the_next() {
    let desk = offered();
    let (first, next) = (Key::namespaced("n", "c"), Key::namespaced("n", "next"));
    assert_eq!(desk.caches.matchmaker.refused(&first, "v"), Some(next.clone()));
    desk.waits();
    assert_eq!(desk.caches.matchmaker.refused(&next, "v"), None, "what two are refused is not passed on");
    desk.caches.volumes.watched(volume(newer(json!({}))));
    assert_eq!(desk.woken(), ["claim c", "volume v"], "unless it changes");
}

#[tokio::test]
async fn a_volume_offered_to_a_claim_that_nobody_can_read_any_more_is_offered_to_the_next() {
    let desk = offered();
    let binder = binder(&desk);
    let first = Key::namespaced("n", "c");
    desk.caches.claims.mark_unreadable(first.clone());
    let decision = binder.decide(&Subject::Claim(first), Timestamp::UNIX_EPOCH, &Reserved::default());
    assert!(decision.actions.is_empty());
    assert_eq!(desk.woken(), ["claim next"]);
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
    assert_eq!(desk.woken(), ["claim c"]);
    let default = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    let class = json!({
        "metadata": { "name": "gold", "uid": "x", "resourceVersion": "6", "annotations": default }, "provisioner": "d",
    });
    desk.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert_eq!(desk.woken(), ["claim c", "claim d"]);
}

#[tokio::test]
async fn a_pod_wakes_its_claims_of_now_and_before_and_the_volumes_kept_for_them() {
    let desk = Desk::new();
    let mut recycled = refers();
    recycled["spec"]["persistentVolumeReclaimPolicy"] = "Recycle".into();
    desk.caches.volumes.watched(volume(recycled));
    // Nothing but recycling waits for pods.
    let mut retained = refers();
    retained["metadata"] = json!({ "name": "w", "uid": "w" });
    desk.caches.volumes.watched(volume(retained));
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

#[tokio::test]
async fn a_volume_wakes_the_recycler_that_may_have_become_useless() {
    let desk = Desk::new();
    let recycle = json!({ "spec": { "persistentVolumeReclaimPolicy": "Recycle" } });
    desk.caches.volumes.watched(volume(recycle));
    let task = json!({ "stowage.dev/recycles-volume": "v", "stowage.dev/recycles-claim": "u" });
    let recycler =
        pod(json!({ "metadata": { "name": "recycler-for-v", "annotations": task }, "spec": { "volumes": [] } }));
    assert!(recycler::task(&recycler).is_some());
    desk.caches.pods.watched(recycler);
    desk.woken();
    desk.caches.volumes.watched(volume(newer(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }))));
    assert_eq!(desk.woken(), ["pod recycler-for-v", "volume v"]);
}

#[tokio::test]
async fn a_claim_that_is_known_again_wakes_the_pods_that_rested_meanwhile() {
    let desk = Desk::new();
    let ephemeral = json!([{ "name": "c", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    desk.caches.pods.watched(pod(json!({ "spec": { "volumes": ephemeral } })));
    let theirs = claim(json!({ "metadata": { "name": "p-c" } }));
    desk.caches.claims.watched(theirs.clone());
    desk.woken();
    desk.caches.claims.mark_unknown(&theirs.key());
    desk.caches.claims.observe(theirs);
    assert_eq!(desk.woken(), ["claim p-c", "pod p"]);
}

#[tokio::test]
async fn a_claim_that_could_never_be_read_wakes_the_volumes_of_its_name_when_it_goes() {
    let desk = Desk::new();
    desk.caches.volumes.watched(volume(refers()));
    desk.caches.claims.mark_unreadable(Key::namespaced("n", "c"));
    desk.woken();
    desk.caches.claims.watched_deletion(&claim(json!({})).meta);
    assert_eq!(desk.woken(), ["claim c", "volume v"]);
}

/// A controller whose every request would fail: nothing may be sent.
fn binder(desk: &Desk) -> Binder {
    let context = unreachable_server();
    let tasks = Tasks::new();
    let recorders = Recorders::start(&context, &tasks.spawner());
    let options = Options::default();
    Binder {
        reclaimer: Reclaimer {
            api: context.api.clone(),
            caches: desk.caches.clone(),
            recycling: options.recycling.clone(),
            disk: Arc::new(LocalDisk::default()),
            permit: permit(&context),
            turns: Turns::new(1),
            pods_moved: desk.pods_moved.clone(),
            recorder: recorders.binder.clone(),
            random: context.random.clone(),
        },
        recorders,
        looking: Looking::new(context.api.clone(), desk.caches.pods.clone(), tasks.spawner(), |_| {}),
        missing_classes: MissingClasses::default(),
        caches: desk.caches.clone(),
        writes: Semaphore::new(1),
        ephemeral_parallel: None,
        rules: options.rules(),
        queue: desk.queue.clone(),
        metrics: Arc::clone(&desk.metrics),
        operations: Operations::new(tasks.spawner(), Arc::new(SystemClock), RECLAIM, |_| {}),
        memory: Memory::default(),
        context,
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_between_a_decision_and_its_write_is_decided_on_again() {
    let desk = Desk::new();
    desk.caches.claims.watched(claim(json!({ "metadata": { "finalizers": ["kubernetes.io/pvc-protection"] } })));
    desk.caches.volumes.watched(volume(json!({ "metadata": { "finalizers": ["kubernetes.io/pv-protection"] } })));
    let binder = binder(&desk);
    let subject = Subject::Claim(Key::namespaced("n", "c"));
    let decide = || {
        let mut steps = binder.decide(&subject, Timestamp::UNIX_EPOCH, &Reserved::default()).actions;
        assert!(matches!(steps[0].action, Action::Claim(ClaimAction::Reserve { .. })), "{steps:?}");
        steps.remove(0)
    };
    let step = decide();
    // An administrator puts a finalizer on it.
    let finalizers = json!(["kubernetes.io/pv-protection", "example.org/kept"]);
    desk.caches.volumes.observe(volume(newer(json!({ "metadata": { "finalizers": finalizers } }))));
    assert!(matches!(binder.carry_out(subject.clone(), step).await, Err(Error::Stale(_))));
    // As it is decided on now the write is tried, and the server cannot be reached.
    assert!(matches!(binder.carry_out(subject.clone(), decide()).await, Err(Error::Write(_))));
}

#[tokio::test]
async fn one_look_at_a_missing_class_serves_for_the_pairs_that_were_known_before() {
    let desk = Desk::new();
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
    let mut binder = binder(&desk);
    let client = kube::Client::new(service, "default");
    binder.context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "test");
    let manual = json!({ "spec": { "storageClassName": "manual" } });
    let (first, found) = (claim(manual.clone()), volume(manual.clone()));
    desk.caches.claims.watched(first.clone());
    desk.caches.volumes.watched(found.clone());
    let times = || asked.load(std::sync::atomic::Ordering::Relaxed);
    for _ in 0..3 {
        binder.look_for_class(&first, &found).await.unwrap();
        assert_eq!(times(), 1);
    }
    let later = claim(newer(manual));
    desk.caches.claims.watched(later.clone());
    for _ in 0..2 {
        binder.look_for_class(&later, &found).await.unwrap();
        assert_eq!(times(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_between_a_decision_without_it_and_the_write_is_heeded() {
    let desk = Desk::new();
    let of_gold = |meta: Value| json!({ "metadata": meta, "spec": { "storageClassName": "gold" } });
    desk.caches.claims.watched(claim(of_gold(json!({ "finalizers": ["kubernetes.io/pvc-protection"] }))));
    desk.caches.volumes.watched(volume(of_gold(json!({ "finalizers": ["kubernetes.io/pv-protection"] }))));
    let binder = binder(&desk);
    let subject = Subject::Claim(Key::namespaced("n", "c"));
    let decide = || binder.decide(&subject, Timestamp::UNIX_EPOCH, &Reserved::default()).actions.remove(0);
    let (looks, comes_late) = (decide(), decide());
    assert!(matches!(looks.action, Action::Claim(ClaimAction::Reserve { .. })), "{looks:?}");
    assert!(matches!(binder.carry_out(subject.clone(), looks).await, Err(Error::Read(_))), "looked for at the server");
    let class = json!({ "metadata": { "name": "gold", "uid": "x", "resourceVersion": "5" }, "provisioner": "d" });
    desk.caches.classes.watched(serde_json::from_value(class).unwrap());
    assert!(matches!(binder.carry_out(subject.clone(), comes_late).await, Err(Error::Stale(_))));
}

fn decide(binder: &Binder, subject: Subject) -> Why {
    binder.decide(&subject, Timestamp::UNIX_EPOCH, &Reserved::default()).why
}

#[tokio::test]
async fn s5_06_deleting_is_timed_from_the_moment_the_claim_is_gone() {
    let desk = Desk::new();
    let mut released = refers();
    released["metadata"] = json!({
        "annotations": { "pv.kubernetes.io/provisioned-by": "d" }, "finalizers": ["kubernetes.io/pv-protection"],
    });
    released["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    released["status"] = json!({ "phase": "Released" });
    desk.caches.volumes.watched(volume(released));
    decide(&binder(&desk), Subject::Volume(Key::cluster("v")));
    assert!(desk.metrics.is_started("v"));
    desk.caches.volumes.observe_gone(&Key::cluster("v"), "v");
    assert!(!desk.metrics.is_started("v"));
}

/// A claim and the external volume that it has, of which deleting would be timed.
fn bound_pair(desk: &Desk) -> (Subject, Subject) {
    let mut theirs = refers();
    theirs["metadata"] = json!({
        "annotations": { "pv.kubernetes.io/provisioned-by": "d" }, "finalizers": ["kubernetes.io/pv-protection"],
    });
    theirs["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    theirs["status"] = json!({ "phase": "Bound" });
    desk.caches.volumes.watched(volume(theirs));
    let bound = json!({
        "metadata": {
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" }, "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": { "volumeName": "v" },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } },
    });
    desk.caches.claims.watched(claim(bound));
    (Subject::Claim(Key::namespaced("n", "c")), Subject::Volume(Key::cluster("v")))
}

#[tokio::test]
async fn s5_07_a_volume_that_goes_before_its_claim_is_not_timed() {
    let desk = Desk::new();
    let (claim, volume) = bound_pair(&desk);
    let binder = binder(&desk);
    assert_eq!(decide(&binder, volume.clone()), Why::Settled);
    desk.caches.volumes.observe_gone(&Key::cluster("v"), "v");
    assert_eq!(decide(&binder, claim.clone()), Why::Lost);
    assert_eq!(decide(&binder, volume.clone()), Why::Gone);
    desk.caches.claims.observe_gone(&Key::namespaced("n", "c"), "u");
    assert_eq!((decide(&binder, claim), decide(&binder, volume)), (Why::Gone, Why::Gone));
    assert!(!desk.metrics.is_started("v") && !desk.metrics.is_started("n/c"));
}

#[tokio::test]
async fn a_volume_that_its_claim_leaves_is_timed_once_it_is_released() {
    let desk = Desk::new();
    let (_, subject) = bound_pair(&desk);
    let binder = binder(&desk);
    desk.caches.claims.observe_gone(&Key::namespaced("n", "c"), "u");
    assert_eq!(decide(&binder, subject.clone()), Why::ClaimGone);
    assert!(!desk.metrics.is_started("v"), "another writer may find the claim after all");
    let bound = desk.caches.volumes.get(&Key::cluster("v")).unwrap();
    let mut released = Volume::clone(&bound);
    released.meta.revision += 1;
    released.status.phase = stowage_model::phase::VolumePhase::Released;
    desk.caches.volumes.observe(released);
    assert_eq!(decide(&binder, subject), Why::ClaimGone);
    assert!(desk.metrics.is_started("v"));
}

#[tokio::test]
async fn s5_08_a_pending_claim_that_goes_is_not_timed_any_more() {
    let desk = Desk::new();
    let meta = json!({ "name": "gold", "uid": "x", "resourceVersion": "5" });
    let class = json!({ "metadata": meta, "provisioner": "d", "volumeBindingMode": "Immediate" });
    desk.caches.classes.watched(serde_json::from_value(class).unwrap());
    let pending = json!({
        "metadata": { "finalizers": ["kubernetes.io/pvc-protection"] }, "spec": { "storageClassName": "gold" },
    });
    desk.caches.claims.watched(claim(pending));
    assert_eq!(decide(&binder(&desk), Subject::Claim(Key::namespaced("n", "c"))), Why::Provision);
    assert!(desk.metrics.is_started("n/c"));
    desk.caches.claims.observe_gone(&Key::namespaced("n", "c"), "u");
    assert!(!desk.metrics.is_started("n/c"));
}

#[tokio::test]
async fn a_claim_that_comes_back_under_its_name_wakes_what_its_forerunner_left() {
    let desk = Desk::new();
    for (name, policy) in [("recycled", "Recycle"), ("deleted", "Delete"), ("kept", "Retain")] {
        let mut left = refers();
        left["metadata"] = json!({ "name": name, "uid": name });
        left["spec"]["claimRef"]["uid"] = "earlier".into();
        left["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
        left["status"] = json!({ "phase": "Released" });
        desk.caches.volumes.watched(volume(left));
    }
    desk.woken();
    desk.caches.claims.watched(claim(json!({})));
    assert_eq!(desk.woken(), ["claim c", "volume deleted", "volume recycled"]);
    let known = desk.caches.claims.get(&Key::namespaced("n", "c")).unwrap();
    desk.caches.claims.mark_unknown(&known.key());
    desk.caches.claims.observe(Claim::clone(&known));
    assert_eq!(desk.woken(), ["claim c", "volume deleted", "volume recycled"]);
}

#[tokio::test]
async fn what_was_told_of_a_volume_is_forgotten_with_its_claim() {
    let desk = Desk::new();
    desk.caches.volumes.watched(volume(refers()));
    let (subject, note) =
        (Subject::Volume(Key::cluster("v")), Note::normal("VolumeRecycled", "volume v is erased and free again"));
    desk.memory.note(subject.clone(), Source::Binder, note, true, Timestamp::UNIX_EPOCH);
    desk.caches.volumes.watched(volume(json!({ "metadata": { "resourceVersion": "2" }, "spec": refers()["spec"] })));
    assert!(!desk.memory.known(&subject).is_empty(), "the same claim's");
    desk.caches.volumes.watched(volume(newer(json!({}))));
    assert!(desk.memory.known(&subject).is_empty());
}
