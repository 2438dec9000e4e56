//! What this service does besides: conditions, exact reasons, waking, and what upstream leaves undone.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::Volume;
use stowage_model::matching::Place;
use stowage_model::object::{self, ObjectId, kinds};
use stowage_runtime::engine::Reserved;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};

use super::expect::*;
use super::fixtures::{Fixture, claim, claim_named, class, pod, volume};
use super::scenarios;
use super::world::{NOW, World};
use crate::decide::{Action, ClaimAction, Source, VolumeAction};
use crate::matchmaker::{Outcome, Sight};
use crate::snapshot::{Known, Snapshot, VolumeSnapshot};
use crate::watches::Key;

fn told(objects: impl IntoIterator<Item = Fixture>) -> World {
    World::new(objects).rules(|rules| {
        rules.unbound_condition = true;
        rules.unused_condition = true;
    })
}

fn unbound(reason: &str) -> Value {
    json!({ "type": "Unbound", "status": "True", "reason": reason, "lastTransitionTime": NOW })
}

fn first(reason: &str) -> String {
    line("pvc/c/status", json!({ "status": { "conditions": [unbound(reason)] } }))
}

fn other(reason: &str) -> String {
    line("pvc/c/status", json!([{ "op": "replace", "path": "/status/conditions/0", "value": unbound(reason) }]))
}

fn bound_with(conditions: Value) -> String {
    let mut operations = json!([
        { "op": "add", "path": "/status/phase", "value": "Bound" },
        { "op": "add", "path": "/status/accessModes", "value": ["ReadWriteOnce", "ReadOnlyMany"] },
        { "op": "add", "path": "/status/capacity", "value": { "storage": "1Gi" } },
    ]);
    operations.as_array_mut().unwrap().extend(conditions.as_array().unwrap().iter().cloned());
    line("pvc/c/status", operations)
}

fn unused(holds: bool) -> Value {
    let (status, reason, message) = if holds {
        ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC")
    } else {
        ("False", "PodUsingPVC", "A pod is currently referencing this PVC")
    };
    json!({ "type": "Unused", "status": status, "reason": reason, "lastTransitionTime": NOW, "message": message })
}

fn bound(holds: bool) -> Vec<String> {
    vec![
        pv_ref_marked("v"),
        pv_phase("v", "Bound"),
        pvc_done_marked("v"),
        line(
            "pvc/c/status",
            json!({ "status": {
                "phase": "Bound",
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "capacity": { "storage": "1Gi" },
                "conditions": [unused(holds)],
            } }),
        ),
    ]
}

scenarios! {
    binding_takes_four_writes_and_the_unused_condition_rides_on_the_last:
        settle told([claim(), volume("v", "1Gi").available()]) => bound(true);
    a_pod_that_waits_for_the_claim_counts_at_once:
        settle told([claim(), volume("v", "1Gi").available(), pod("p").unplaced()]) => bound(false);
    the_kind_of_reason_is_a_condition: settle told([claim()])
        => vec![first("NoFittingVolume"), text("Normal FailedBinding pvc/c")];
    a_named_volume_that_is_missing_is_a_condition: settle told([claim().names("v")])
        => vec![first("VolumeNotFound"), text("Normal FailedBinding pvc/c")];
    waiting_for_a_consumer_is_no_reason: settle told([claim().class("late"), class("late", "d").late()])
        => vec![text("Normal WaitForFirstConsumer pvc/c")];
    waiting_for_a_provisioner_is_no_reason: settle told([claim().class("gold"), class("gold", "d")])
        => vec![pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
    an_unbound_claim_that_is_deleted_gets_nothing: settle World::new([claim().deleting(), volume("v", "1Gi").available()])
        => vec![text("list pods n"), line("pvc/c", json!({ "metadata": { "finalizers": [] } }))];
    without_the_binder_nothing_is_bound:
        settle World::new([claim(), volume("v", "1Gi")]).rules(|rules| rules.controllers.binder = false) => vec![];
}

#[test]
fn the_condition_changes_with_the_kind_of_reason_and_goes_with_the_binding() {
    let mut world = told([claim().class("gold")]);
    assert_eq!(world.settle(), [first("ClassNotFound"), text("Warning ProvisioningFailed pvc/c")]);
    world.put(class("gold", "kubernetes.io/no-provisioner"));
    assert_eq!(world.settle(), [other("NoProvisioner"), text("Warning ProvisioningFailed pvc/c")]);
    world.put(volume("small", "1Mi").available().class("gold"));
    assert_eq!(world.settle(), [text("Warning ProvisioningFailed pvc/c")], "another text, the same kind of reason");
    world.put(volume("v", "1Gi").available().class("gold"));
    let last = bound_with(json!([
        { "op": "add", "path": "/status/conditions/-", "value": unused(true) },
        { "op": "remove", "path": "/status/conditions/0" },
    ]));
    assert_eq!(world.settle().last(), Some(&last));
}

#[test]
fn without_provisioning_the_reason_is_the_missing_volume_and_nothing_is_told() {
    let mut world = told([claim().class("gold")]);
    assert_eq!(world.settle(), [first("ClassNotFound"), text("Warning ProvisioningFailed pvc/c")]);
    world.rules.provisioning = false;
    assert_eq!(world.settle(), [other("NoFittingVolume")]);
    world.put(class("gold", "d"));
    assert_eq!(world.settle(), Vec::<String>::new());
}

#[test]
fn a_condition_of_earlier_goes_with_the_binding_where_nobody_wants_it_any_more() {
    let mut world = told([claim()]);
    assert_eq!(world.settle(), [first("NoFittingVolume"), text("Normal FailedBinding pvc/c")]);
    world.rules.unbound_condition = false;
    world.put(volume("v", "1Gi").available());
    world.settle();
    let claim = world.get(kinds::CLAIM, &object::Key::namespaced("n", "c")).unwrap();
    assert_eq!(claim["status"]["conditions"].as_array().unwrap().len(), 1, "{claim}");
    assert_eq!(claim["status"]["conditions"][0]["type"], "Unused");
}

#[test]
fn the_default_class_is_looked_for_only_where_it_can_matter() {
    let found = |claim: Fixture| {
        let world = World::new([claim, class("gold", "d").default_class(), class("silver", "d")]);
        let Snapshot::Claim(snapshot) = world.gather(&Key::Claim(object::Key::namespaced("n", "c"))) else { panic!() };
        snapshot.default_class
    };
    assert_eq!(found(claim()).as_deref(), Some("gold"));
    for settled in [claim().class(""), claim().names("v"), claim().completed("v"), claim().deleting()] {
        assert_eq!(found(settled.clone()), None, "{settled:?}");
    }
}

#[test]
fn conditions_of_others_are_kept_word_for_word() {
    let resizing = json!({ "type": "Resizing", "status": "True", "lastProbeTime": NOW, "newer": { "x": 1 } });
    let mut world = told([claim().with("status.conditions", json!([resizing])), volume("v", "1Gi").available()]);
    world.settle();
    let claim = world.get(kinds::CLAIM, &object::Key::namespaced("n", "c")).unwrap();
    assert_eq!(claim["status"]["conditions"], json!([resizing, unused(true)]));
}

#[test]
fn a_claim_that_fits_nothing_says_why_in_numbers() {
    let mut world = World::new([claim().size("5Gi")]);
    for n in 0..7 {
        world.put(volume(&format!("small{n}"), "1Gi").available());
    }
    for n in 0..5 {
        world.put(volume(&format!("gold{n}"), "9Gi").available().class("gold"));
    }
    let (actions, _) = world.decide(&Key::Claim(object::Key::namespaced("n", "c")));
    let [Action::Claim(ClaimAction::Tell(_, note), _)] = &actions[..] else { panic!("{actions:?}") };
    assert!(note.message.contains("12 volumes: 7 too small, 5 other class"), "{}", note.message);
}

#[test]
fn a_claim_waits_for_the_write_to_the_only_volume_that_fits_and_says_nothing() {
    let world = World::new([claim(), volume("v", "1Gi").available(), volume("small", "1Mi").available()]);
    let key = object::Key::namespaced("n", "c");
    let busy = |name: &str| ObjectId { kind: kinds::VOLUME, key: object::Key::cluster(name) };
    let decide = |reserved: &Reserved| {
        let snapshot = world.with_sources(reserved, |sources| sources.claim(&key, Known::default())).unwrap();
        crate::decide::claim(&snapshot, world.now)
    };
    let waits = decide(&Reserved::of([busy("v")]));
    assert_eq!((waits.actions, waits.after), (vec![], Some(busy("v"))));
    let takes = decide(&Reserved::of([busy("small")]));
    assert_eq!(takes.actions, [ClaimAction::Reserve { volume: "v".into(), marked: true }]);
    assert_eq!(takes.after, None);
}

#[test]
fn a_volume_meant_for_the_claim_is_waited_for_although_another_is_free() {
    let meant = volume("meant", "5Gi").available().with("spec.claimRef", json!({ "namespace": "n", "name": "c" }));
    let world = World::new([claim(), meant, volume("free", "1Gi").available()]);
    let key = object::Key::namespaced("n", "c");
    let decide = |reserved: &Reserved| {
        let snapshot = world.with_sources(reserved, |sources| sources.claim(&key, Known::default())).unwrap();
        crate::decide::claim(&snapshot, world.now)
    };
    let busy = ObjectId { kind: kinds::VOLUME, key: object::Key::cluster("meant") };
    let waits = decide(&Reserved::of([busy.clone()]));
    assert_eq!((waits.actions, waits.after), (vec![], Some(busy.clone())));
    world.caches.volumes.mark_unknown(&busy.key);
    assert_eq!(decide(&Reserved::default()).actions, []);
    // One that nobody can read is nothing to wait for.
    world.caches.volumes.mark_unreadable(busy.key.clone());
    assert_eq!(decide(&Reserved::default()).actions, [ClaimAction::Reserve { volume: "free".into(), marked: true }]);
    let mut read = Volume::clone(&world.caches.volumes.get(&busy.key).unwrap());
    read.meta.revision += 1000;
    world.caches.volumes.observe(read);
    let takes = decide(&Reserved::default());
    assert_eq!(takes.actions, [ClaimAction::Reserve { volume: "meant".into(), marked: false }]);
}

#[test]
fn what_an_earlier_claim_of_the_name_has_left_is_not_looked_at() {
    let left = |n: usize| {
        let held = json!({ "namespace": "n", "name": "c", "uid": format!("earlier-{n}") });
        volume(&format!("left{n}"), "1Gi").phase("Released").with("spec.claimRef", held)
    };
    let world = World::new([claim(), volume("free", "1Gi").available()].into_iter().chain((0..5).map(left)));
    let Snapshot::Claim(snapshot) = world.gather(&Key::Claim(object::Key::namespaced("n", "c"))) else { panic!() };
    assert_eq!(snapshot.candidates.iter().map(|volume| volume.meta.name.as_str()).collect::<Vec<_>>(), ["free"]);
}

#[test]
fn what_a_claim_would_take_goes_to_the_next_if_the_claim_goes_first() {
    let world = World::new([claim_named("first", "f"), claim_named("second", "s")]);
    let keys = ["first", "second"].map(|name| Key::Claim(object::Key::namespaced("n", name)));
    keys.iter().for_each(|key| _ = world.decide(key));
    let arrives = |version: &str, held: Option<&str>| {
        let mut tree = volume("v", "1Gi").available().with("metadata.resourceVersion", version);
        if let Some(name) = held {
            tree = tree.with("spec.claimRef", json!({ "namespace": "n", "name": name, "uid": name }));
        }
        world.caches.volumes.observe(tree.build::<Volume>());
        world.caches.matchmaker.file(&world.caches.volumes, &object::Key::cluster("v")).map(|key| key.name)
    };
    let first = object::Key::namespaced("n", "first");
    assert_eq!(arrives("1000", None).as_deref(), Some("first"));
    let claim = world.caches.claims.get(&first).unwrap();
    let version = world.caches.matchmaker.choice(&claim, Place::Anywhere, false, |_| Sight::Free).version;
    assert_eq!(world.caches.matchmaker.decided(&claim, &Outcome::Takes("v".into()), version), None);
    let next = world.caches.matchmaker.forget(&first).map(|key| key.name);
    assert_eq!(next.as_deref(), Some("second"));
    // Once it is seen to be taken, nothing is on offer any more: what is free again is offered anew, to one only.
    assert_eq!(arrives("1001", Some("second")), None);
    let claim = world.caches.claims.get(&first).unwrap();
    let version = world.caches.matchmaker.choice(&claim, Place::Anywhere, false, |_| Sight::Free).version;
    assert_eq!(world.caches.matchmaker.decided(&claim, &Outcome::Waits, version), None);
    assert_eq!(arrives("1002", None).as_deref(), Some("first"));
    assert_eq!(world.caches.matchmaker.forget(&object::Key::namespaced("n", "second")), None);
}

#[test]
fn a_claim_on_its_way_out_gets_nothing_also_if_it_names_a_volume() {
    let claim = claim().with("spec.volumeName", "v").finalizers(&["other"]).deleting();
    let mut world = World::new([claim, volume("v", "1Gi").available()]);
    assert_eq!(world.settle(), Vec::<String>::new());
}

#[test]
fn a_conflict_after_recycling_tells_nobody_again() {
    let held = json!({ "namespace": "n", "name": "gone", "uid": "gone" });
    let recycled = volume("v", "1Gi").phase("Released").with("spec.claimRef", held);
    let recycled = recycled.with("spec.persistentVolumeReclaimPolicy", "Recycle");
    let recycled = recycled.with("spec.hostPath", json!({ "path": "/x" })).with("spec.csi", Value::Null);
    let world = World::new([recycled]);
    let operation = Record { state: State::Done(()), since: world.now, failures: 0, retry_at: world.now };
    let Snapshot::Volume(snapshot) = world.gather(&Key::Volume(object::Key::cluster("v"))) else { panic!() };
    let mut snapshot = VolumeSnapshot { operation: Some(operation), ..*snapshot };
    let note = Note::normal("VolumeRecycled", "volume v is erased and free again");
    let decide = |snapshot: &VolumeSnapshot| crate::decide::volume(snapshot, world.now).actions;
    assert_eq!(decide(&snapshot), [VolumeAction::Tell(note.clone()), VolumeAction::Unbind]);
    snapshot.told = Known::of(Source::Binder, note, Timestamp::MAX);
    assert_eq!(decide(&snapshot), [VolumeAction::Unbind]);
}

#[test]
fn what_is_offered_to_a_claim_that_is_decided_on_again_stays_on_offer() {
    let world = World::new([claim_named("first", "f"), claim_named("second", "s")]);
    let keys = ["first", "second"].map(|name| Key::Claim(object::Key::namespaced("n", name)));
    keys.iter().for_each(|key| _ = world.decide(key));
    let free = |name: &str| {
        let tree = volume(name, "1Gi").available().with("metadata.resourceVersion", "1000");
        world.caches.volumes.observe(tree.build::<Volume>());
        world.caches.matchmaker.file(&world.caches.volumes, &object::Key::cluster(name)).map(|key| key.name)
    };
    let claim = world.caches.claims.get(&object::Key::namespaced("n", "first")).unwrap();
    let version = world.caches.matchmaker.choice(&claim, Place::Anywhere, false, |_| Sight::Free).version;
    assert_eq!(free("v").as_deref(), Some("first"));
    // It was being decided on before the volume came.
    let again = world.caches.matchmaker.decided(&claim, &Outcome::Waits, version);
    assert_eq!(again.map(|key| key.name).as_deref(), Some("first"));
    assert_eq!(
        world.caches.matchmaker.forget(&object::Key::namespaced("n", "first")).map(|key| key.name).as_deref(),
        Some("second")
    );
}

#[test]
fn what_still_holds_is_told_again_before_the_api_server_forgets_it() {
    let mut world = World::new([claim()]);
    assert_eq!(world.settle(), [text("Normal FailedBinding pvc/c")]);
    assert_eq!(world.settle(), Vec::<String>::new());
    let key = Key::Claim(object::Key::namespaced("n", "c"));
    let again = world.decision(&key).wake_at.expect("somebody has to look again");
    assert!(again > world.now && again < world.now + SignedDuration::from_hours(1));
    world.now = again;
    assert_eq!(world.settle(), [text("Normal FailedBinding pvc/c")]);
    world.put(volume("v", "1Gi").available());
    world.settle();
    assert_eq!(world.decision(&key).wake_at, None, "a bound claim waits for nothing");
}

#[test]
fn people_hear_of_a_provisioner_only_if_a_new_claim_still_waits_for_it_after_a_while() {
    let begin = World::new([claim()]).now.to_string();
    let new = claim().class("gold").with("metadata.creationTimestamp", begin.as_str());
    let mut world = World::new([new, class("gold", "d")]);
    assert_eq!(world.settle(), [pvc_asks("d")]);
    let again = world.decision(&Key::Claim(object::Key::namespaced("n", "c"))).wake_at.unwrap();
    assert!(again > world.now && again <= world.now + SignedDuration::from_secs(5));
    world.now = again;
    assert_eq!(world.settle(), [text("Normal ExternalProvisioning pvc/c")]);
}

#[test]
fn an_old_claim_that_had_to_wait_for_its_turn_is_new_to_its_provisioner() {
    let old = claim().class("gold").with("metadata.creationTimestamp", "2020-01-01T00:00:00Z");
    let mut world = World::new([old, class("gold", "d")]);
    world.asked_since = Some(world.now);
    assert_eq!(world.settle(), [pvc_asks("d")]);
    world.now = world.decision(&Key::Claim(object::Key::namespaced("n", "c"))).wake_at.unwrap();
    assert_eq!(world.settle(), [text("Normal ExternalProvisioning pvc/c")]);
}

#[test]
fn what_nobody_could_be_told_is_tried_again_soon() {
    let mut world = World::new([claim()]);
    let key = Key::Claim(object::Key::namespaced("n", "c"));
    let (actions, _) = world.decide(&key);
    let [Action::Claim(ClaimAction::Tell(source, note), _)] = &actions[..] else { panic!("{actions:?}") };
    world.told.note(key.clone(), *source, note.clone(), false, world.now);
    let again = world.decision(&key).wake_at.unwrap();
    assert!(again <= world.now + SignedDuration::from_mins(1));
    world.now = again;
    assert_eq!(world.decide(&key).0, actions);
}

#[test]
fn a_claim_that_lost_the_mark_of_its_binding_keeps_its_status_while_a_provisioner_is_asked() {
    let mut world = World::new([claim().class("gold").bound("1Gi"), class("gold", "d")]);
    assert_eq!(world.settle(), [pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")]);
}

#[test]
fn another_process_that_protects_volumes_removes_its_finalizer_itself() {
    let mut world = World::new([volume("v", "1Gi")
        .phase("Released")
        .refers("c", "u")
        .policy("Delete")
        .finalizers(&["kubernetes.io/pv-protection", "kubernetes.io/pv-controller"])])
    .rules(|rules| rules.controllers.volume_protection = false);
    let steps = world.settle();
    assert_eq!(steps[2..], [pv_finalizers("v", &["kubernetes.io/pv-protection"])], "{steps:?}");
}

#[test]
fn a_volume_that_becomes_free_wakes_the_best_waiting_claim_and_then_the_next() {
    let big = claim_named("big", "b").size("9Gi");
    let small = claim_named("small", "s").size("1Gi");
    let world = World::new([big, small, claim_named("huge", "h").size("99Gi")]);
    for name in ["big", "small", "huge"] {
        world.decide(&Key::Claim(object::Key::namespaced("n", name)));
    }
    let free = |name: &str| {
        let tree = volume(name, "10Gi").available().with("metadata.resourceVersion", "1000");
        world.caches.volumes.observe(tree.build::<Volume>());
        world.caches.matchmaker.file(&world.caches.volumes, &object::Key::cluster(name)).map(|key| key.name)
    };
    assert_eq!(free("v").as_deref(), Some("big"), "the tightest fit");
    assert_eq!(free("w").as_deref(), Some("small"), "the best is woken already");
    assert_eq!(free("x"), None, "nobody else fits");
    // The claim that was woken for `v` goes; `v` is offered to nobody, for all others are awake.
    assert_eq!(world.caches.matchmaker.forget(&object::Key::namespaced("n", "big")), None);
    assert_eq!(world.caches.matchmaker.forget(&object::Key::namespaced("n", "small")), None);
}

#[test]
fn a_waiting_claim_names_the_pods_that_wait_with_it() {
    let mut world =
        World::new([claim().class("late"), class("late", "d").late(), pod("p").unplaced(), pod("q").unplaced()]);
    assert_eq!(world.settle(), [text("Normal WaitForPodScheduled pvc/c")]);
    assert_eq!(
        world.said,
        [
            "persistentvolume-controller: claim n/c gets its volume when pod p,q has a node; the pod's own events say what it waits for"
        ]
    );
}
