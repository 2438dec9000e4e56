//! Tables of what is decided about one item, and that it comes to rest.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use stowage_model::storage_capacity::StorageCapacity;
use stowage_model::topology::Segments;

use super::book::{Answer, Seen};
use super::decide::{Action, ItemSnapshot, Snapshot, Why, decide, is_published};
use super::item::Item;
use super::owner::Owner;
use crate::fixture::{DRIVER, class_with, read};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn item() -> Item {
    Item::new(&Arc::new(Segments::from([("zone".to_owned(), "a".to_owned())])), "fast")
}

fn object(name: &str, spoil: impl FnOnce(&mut Value)) -> Arc<StorageCapacity> {
    let good = json!({
        "metadata": { "namespace": "n", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7" },
        "storageClassName": "fast",
        "nodeTopology": { "matchLabels": { "zone": "a" } },
        "capacity": "5Gi",
    });
    Arc::new(read(good, spoil))
}

fn owner() -> Owner {
    let text = |text: &str| text.to_owned();
    Owner { api_version: text("apps/v1"), kind: text("Deployment"), name: text("d"), uid: text("uid-d") }
}

fn answered(seconds_ago: i64) -> Seen {
    let at = NOW - SignedDuration::from_secs(seconds_ago);
    Seen { answer: Some(Answer { available: 5 << 30, largest: None, at }), is_stale: false }
}

/// Published, and the driver was asked half a minute ago.
fn settled() -> ItemSnapshot {
    ItemSnapshot {
        item: item(),
        class: Some(Arc::new(class_with(|_| {}))),
        objects: vec![object("one", |_| {})],
        seen: answered(30),
        owner: None,
        poll_interval: Duration::from_secs(60),
    }
}

fn decided(spoil: impl FnOnce(&mut ItemSnapshot)) -> (Why, Vec<&'static str>, Option<i64>) {
    let mut s = settled();
    spoil(&mut s);
    let decision = decide(&Snapshot::Item(Box::new(s)), NOW);
    let name = |action: &Action| match action {
        Action::Ask { .. } => "ask",
        Action::Create { .. } => "create",
        Action::Update { .. } => "update",
        Action::Delete(_) => "delete",
    };
    let actions = decision.actions.iter().map(name).collect();
    (decision.why, actions, decision.wake_at.map(Timestamp::as_second))
}

#[test]
fn each_state_of_an_item_has_its_one_next_step() {
    let rests = |at| (Why::Published, vec![], Some(at));
    let acts = |why, action| (why, vec![action], None);
    assert_eq!(decided(|_| {}), rests(30));
    assert_eq!(decided(|s| s.seen = Seen::default()), acts(Why::Unasked, "ask"));
    assert_eq!(decided(|s| s.seen = answered(60)), acts(Why::Poll, "ask"));
    assert_eq!(decided(|s| s.seen.is_stale = true), acts(Why::Stale, "ask"));
    // What happens right after an answer waits for the second to pass, and what is known is published meanwhile.
    assert_eq!(decided(|s| s.seen = Seen { is_stale: true, ..answered(0) }), rests(1));
    let unpublished = |s: &mut ItemSnapshot| (s.seen, s.objects) = (Seen { is_stale: true, ..answered(0) }, vec![]);
    assert_eq!(decided(unpublished), acts(Why::Unpublished, "create"));
    assert_eq!(decided(|s| s.objects = vec![]), acts(Why::Unpublished, "create"));
    assert_eq!(decided(|s| s.class = None), acts(Why::Unwanted, "delete"));
    let nothing_left = |s: &mut ItemSnapshot| (s.class, s.objects) = (None, vec![]);
    assert_eq!(decided(nothing_left), (Why::Unwanted, vec![], None));
    let twice = |s: &mut ItemSnapshot| s.objects.push(object("two", |_| {}));
    assert_eq!(decided(twice), acts(Why::Duplicate, "delete"));
}

#[test]
fn an_object_is_updated_for_each_field_that_the_original_compares() {
    type Spoil = fn(&mut Value);
    let differing: [Spoil; 3] =
        [|o| o["capacity"] = "4Gi".into(), |o| o["capacity"] = Value::Null, |o| o["maximumVolumeSize"] = "1Gi".into()];
    for spoil in differing {
        assert_eq!(decided(|s| s.objects = vec![object("one", spoil)]).1, ["update"]);
    }
    // The same number in another spelling is the same.
    assert_eq!(decided(|s| s.objects = vec![object("one", |o| o["capacity"] = "5368709120".into())]).0, Why::Published);
    let owned = |uid: &'static str, controller: bool| {
        decided(move |s| {
            let reference = json!([{ "kind": "Deployment", "name": "d", "uid": uid, "controller": controller }]);
            s.objects = vec![object("one", |o| o["metadata"]["ownerReferences"] = reference)];
            s.owner = Some(Arc::new(owner()));
        })
    };
    assert_eq!(owned("uid-d", true).0, Why::Published);
    assert_eq!(owned("uid-d", false).1, ["update"]);
    assert_eq!(owned("uid-other", true).1, ["update"]);
}

#[test]
fn an_object_that_speaks_of_no_item_goes() {
    let stray = object("stray", |o| o["nodeTopology"] = Value::Null);
    assert_eq!(Item::of(&stray), None);
    let decision = decide(&Snapshot::Stray(Some(Arc::clone(&stray))), NOW);
    assert_eq!(decision.actions, [Action::Delete(stray)]);
    assert_eq!(decide(&Snapshot::Stray(None), NOW).why, Why::Gone);
    assert_eq!(Item::of(&object("one", |_| {})), Some(item()));
    let everywhere = object("one", |o| o["nodeTopology"] = json!({}));
    assert_eq!(Item::of(&everywhere).unwrap().to_string(), "fast in");
}

#[test]
fn classes_of_others_and_those_that_bind_at_once_are_not_published() {
    let class = |mode: Value| class_with(|class| class["volumeBindingMode"] = mode);
    assert!(is_published(&class("WaitForFirstConsumer".into()), DRIVER, false));
    assert!(!is_published(&class("Immediate".into()), DRIVER, false));
    assert!(is_published(&class("Immediate".into()), DRIVER, true));
    // As the original: a class that does not say is not one that binds at once.
    assert!(is_published(&class(Value::Null), DRIVER, false));
    assert!(!is_published(&class("WaitForFirstConsumer".into()), "other.csi.example", true));
}

proptest! {
    /// Whatever there was, and however the driver answers: a few rounds later nothing is left to do until the next poll.
    #[test]
    fn deciding_comes_to_rest(
        wanted: bool,
        objects in 0_usize..4,
        capacity in 0_i64..3,
        seen in prop::option::of((0_i64..120, any::<bool>())),
        owned: bool,
        answers in prop::collection::vec((0_i64..3, prop::option::of(0_i64..3)), 8),
    ) {
        let spoil = |o: &mut Value| o["capacity"] = capacity.into();
        let mut s = ItemSnapshot {
            class: settled().class.filter(|_| wanted),
            objects: (0..objects).map(|n| object(&format!("o{n}"), spoil)).collect(),
            seen: seen.map_or_else(Seen::default, |(ago, is_stale)| Seen { is_stale, ..answered(ago) }),
            owner: owned.then(|| Arc::new(owner())),
            ..settled()
        };
        let mut answers = answers.into_iter();
        for round in 0.. {
            let decision = decide(&Snapshot::Item(Box::new(s.clone())), NOW);
            if decision.actions.is_empty() {
                prop_assert_eq!(s.objects.len(), usize::from(wanted));
                prop_assert_eq!(decision.wake_at.is_some(), wanted);
                break;
            }
            prop_assert!(round < 5, "no rest: {:?}", decision);
            for action in decision.actions {
                let write = |answer: &Answer| object("written", |o| {
                    o["capacity"] = answer.available.into();
                    o["maximumVolumeSize"] = answer.largest.into();
                    if owned {
                        o["metadata"]["ownerReferences"] = json!([owner().reference()]);
                    }
                });
                match action {
                    Action::Ask { .. } => {
                        let (available, largest) = answers.next().unwrap();
                        s.seen = Seen { answer: Some(Answer { available, largest, at: NOW }), is_stale: false };
                    }
                    Action::Create { answer, .. } => s.objects.push(write(&answer)),
                    Action::Update { answer, .. } => s.objects = vec![write(&answer)],
                    Action::Delete(gone) => s.objects.retain(|kept| kept.meta.name != gone.meta.name),
                }
            }
        }
    }
}
