//! Section 3 of reference/sidecars-and-csi.md: attach (3.5), detach (3.6), volume finalizer (3.7), crash points (3.10).

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use stowage_csi::v1::volume_capability::{AccessType, access_mode::Mode};
use stowage_model::{VolumeAttachment, annotations, finalizers};
use stowage_runtime::operation::{Failure, State};

use super::*;
use crate::calls::Kind;
use crate::snapshot::Room;

mod many;

const DRIVER: &str = "d.example";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn facts() -> Facts {
    Facts {
        name: DRIVER.into(),
        finalizer: finalizers::attacher(DRIVER),
        calls: [Call::PublishUnpublishVolume, Call::PublishReadonly].into(),
        default_fs_type: "ext4".into(),
        error_codes: true,
        workers: 10,
    }
}

fn volume_json() -> Value {
    json!({
        "metadata": { "name": "pv", "uid": "pv-uid", "resourceVersion": "5", "finalizers": [facts().finalizer] },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "mountOptions": ["noatime"],
            "csi": { "driver": DRIVER, "volumeHandle": "h", "volumeAttributes": { "pool": "fast" } },
        },
    })
}

fn attachment_json() -> Value {
    json!({
        "metadata": {
            "name": "csi-1", "uid": "va-uid", "resourceVersion": "7",
            "finalizers": [facts().finalizer],
            "annotations": { annotations::ATTACHMENT_NODE_ID: "node-id" },
        },
        "spec": { "attacher": DRIVER, "nodeName": "n", "source": { "persistentVolumeName": "pv" } },
    })
}

fn volume(spoil: impl FnOnce(&mut Value)) -> Arc<Volume> {
    let mut object = volume_json();
    spoil(&mut object);
    Arc::new(serde_json::from_value(object).unwrap())
}

/// An attachment with everything in place for its first publish; each test spoils it.
fn case(spoil: impl FnOnce(&mut Value)) -> Case {
    let mut object = attachment_json();
    spoil(&mut object);
    Case {
        attachment: Arc::new(serde_json::from_value::<VolumeAttachment>(object).unwrap()),
        unknown: false,
        doubted: false,
        source: Source::Volume(volume(|_| {})),
        node_id: Some("node-id".into()),
        calling: false,
        called: None,
        refused: None,
        publish: None,
        unpublish: None,
        unpublish_by_new: None,
    }
}

fn deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
}

fn record(state: State<PublishContext>, retry_at: i64) -> Option<Record<PublishContext>> {
    Some(Record { state, since: at(0), failures: 1, retry_at: at(retry_at) })
}

fn failure(code: &str) -> Failure {
    Failure { code: code.into(), message: format!("broken ({code})") }
}

fn snapshot(mut attachments: Vec<Case>) -> Snapshot {
    let mut calling = BTreeSet::new();
    for case in &mut attachments {
        case.calling = [&case.publish, &case.unpublish].into_iter().flatten().any(Record::is_running);
        calling.extend(case.attachment.node_id().filter(|_| case.calling).map(str::to_owned));
    }
    Snapshot { facts: Arc::new(facts()), attachments, calling, ..Snapshot::default() }
}

fn decide_one(case: Case, facts: &Facts, second: i64) -> Decision {
    decide(&Snapshot { facts: Arc::new(facts.clone()), ..snapshot(vec![case]) }, at(second))
}

/// Actions as short words.
fn words(actions: &[Action]) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Call { request, .. } => match request.kind() {
            Kind::Publish => format!("publish {}", request.node_id()),
            Kind::Unpublish => format!("unpublish {}", request.node_id()),
        },
        Action::ProtectVolume { volume, .. } => format!("protect {}", volume.name),
        Action::ReleaseVolume(meta) => format!("release {}", meta.name),
        Action::MarkAttachment { node_id, .. } => format!("mark {node_id}"),
        Action::ReleaseAttachment(meta) => format!("release {}", meta.name),
        Action::SaveAttached { metadata, .. } => format!("attached {metadata:?}"),
        Action::SaveDetached(_) => "detached".into(),
        Action::SaveTrouble { attachment, trouble, .. } if attachment.is_deleting() => {
            format!("detach error {}", trouble.message)
        }
        Action::SaveTrouble { trouble, .. } => format!("attach error {:?} {}", trouble.code, trouble.message),
        Action::RefreshAttachment(name) | Action::RefreshVolume(name) => format!("read {name}"),
    };
    actions.iter().map(word).collect()
}

#[test]
fn nothing_is_called_while_a_call_for_an_attachment_that_is_gone_is_under_way() {
    let mut waiting = snapshot(vec![case(|_| {})]);
    assert_eq!(words(&decide(&waiting, at(0)).actions), ["publish node-id"]);
    waiting.calling = ["other-id".to_owned()].into();
    assert!(decide(&waiting, at(0)).actions.is_empty());
}

fn act(case: Case) -> Vec<String> {
    words(&decide_one(case, &facts(), 0).actions)
}

const NOTHING: [String; 0] = [];

#[test]
fn an_attachment_goes_through_volume_finalizer_mark_publish_and_status_one_by_one() {
    let bare = |object: &mut Value| {
        object["metadata"]["finalizers"] = json!(null);
        object["metadata"]["annotations"] = json!(null);
    };
    let unprotected = volume(|volume| volume["metadata"]["finalizers"] = json!([]));
    assert_eq!(act(Case { source: Source::Volume(unprotected), ..case(bare) }), ["protect pv"]);
    assert_eq!(act(case(bare)), ["mark node-id"]);
    assert_eq!(act(case(|object| object["metadata"]["annotations"] = json!(null))), ["mark node-id"]);
    assert_eq!(act(case(|_| {})), ["publish node-id"]);
    assert_eq!(act(Case { publish: record(State::Running, 0), ..case(|_| {}) }), NOTHING);
    let context = PublishContext::from([("token".into(), "t".into())]);
    let published = Case { publish: record(State::Done(context), 0), ..case(|_| {}) };
    assert_eq!(act(published), ["attached {\"token\": Some(\"t\")}"]);
    assert_eq!(act(case(|object| object["status"] = json!({ "attached": true }))), NOTHING);
}

#[test]
fn the_publish_request_says_what_the_volume_says() {
    let actions = decide_one(case(|_| {}), &facts(), 0).actions;
    let [Action::Call { request: Request::Publish(request), secret: None, .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((request.volume_id.as_str(), request.node_id.as_str(), request.readonly), ("h", "node-id", false));
    assert_eq!(request.volume_context["pool"], "fast");
    let capability = request.volume_capability.clone().unwrap();
    assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("{capability:?}") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_owned()]));
}

#[test]
fn reading_only_is_asked_for_only_where_the_driver_knows_it_and_blocks_stay_blocks() {
    let spoiled = volume(|volume| {
        volume["spec"]["csi"]["readOnly"] = json!(true);
        volume["spec"]["volumeMode"] = json!("Block");
    });
    let case = Case { source: Source::Volume(spoiled), ..case(|_| {}) };
    for knows_read_only in [true, false] {
        let calls = knows_read_only.then_some(Call::PublishReadonly).into_iter().collect();
        let request = case.publish_request(&Facts { calls, ..facts() }).unwrap();
        assert_eq!(request.readonly, knows_read_only);
        assert!(matches!(request.volume_capability.unwrap().access_type, Some(AccessType::Block(_))));
    }
}

#[test]
fn what_keeps_the_driver_from_being_asked_is_shown_once_with_the_way_out() {
    let broken = volume(|volume| volume["spec"]["accessModes"] = json!([]));
    let going = volume(deleting);
    let foreign = volume(|volume| volume["spec"]["csi"]["driver"] = json!("other"));
    for (spoiled, expected) in [
        (Case { node_id: None, ..case(|_| {}) }, "node \"n\" has no driver \"d.example\" in its CSINode"),
        (
            Case { source: Source::Missing("pv".into()), ..case(|_| {}) },
            "PersistentVolume \"pv\" of spec.source does not exist",
        ),
        (Case { source: Source::Unclear, ..case(|_| {}) }, "spec.source must have exactly one"),
        (Case { source: Source::Volume(broken), ..case(|_| {}) }, "PersistentVolume \"pv\": spec.accessModes is empty"),
        (Case { source: Source::Volume(going), ..case(|_| {}) }, "PersistentVolume \"pv\" is being deleted"),
        (Case { source: Source::Volume(foreign), ..case(|_| {}) }, "the volume is not one of driver"),
    ] {
        let actions = decide_one(spoiled.clone(), &facts(), 0).actions;
        let [Action::SaveTrouble { trouble: error, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert!(error.message.starts_with(expected), "{}", error.message);
        let mut shown = (*spoiled.attachment).clone();
        shown.status.attach_error = Some(stowage_model::attachment::VolumeError {
            message: error.message.clone(),
            time: Some(error.time),
            error_code: None,
        });
        let shown = Case { attachment: Arc::new(shown), ..spoiled };
        assert_eq!(words(&decide_one(shown, &facts(), 100).actions), NOTHING);
    }
}

#[test]
fn a_failed_publish_is_shown_with_its_code_and_repeated_after_its_backoff() {
    for state in [State::Failed(failure("Internal")), State::Uncertain(failure("Internal"))] {
        let failed = Case { publish: record(state, 8), ..case(|_| {}) };
        let decision = decide_one(failed.clone(), &facts(), 1);
        assert_eq!(words(&decision.actions), ["attach error Some(13) broken (Internal)"]);
        assert_eq!(decision.wake_at, Some(at(8)));
        let shown = case(|object| {
            object["status"] = json!({ "attachError": { "message": "broken (Internal)", "time": at(0).to_string() } });
        });
        let shown = Case { publish: failed.publish, ..shown };
        assert_eq!(words(&decide_one(shown.clone(), &facts(), 1).actions), NOTHING);
        assert_eq!(words(&decide_one(shown, &facts(), 8).actions), ["publish node-id"]);
    }
}

#[test]
fn a_detach_goes_through_unpublish_finalizer_and_status_one_by_one() {
    assert_eq!(act(case(deleting)), ["unpublish node-id"]);
    assert_eq!(act(Case { unpublish: record(State::Running, 0), ..case(deleting) }), NOTHING);
    let done = || record(State::Done(PublishContext::new()), 0);
    assert_eq!(act(Case { unpublish: done(), ..case(deleting) }), ["release csi-1"]);
    let released = |others: Value| {
        case(|object| {
            deleting(object);
            object["metadata"]["finalizers"] = others;
            object["status"] = json!({ "attached": true });
        })
    };
    assert_eq!(act(released(json!([]))), NOTHING);
    assert_eq!(act(released(json!(["somebody/else"]))), ["detached"]);
}

#[test]
fn an_attachment_that_was_never_marked_was_never_published_and_needs_no_unpublish() {
    let unmarked = case(|object| {
        deleting(object);
        object["metadata"]["finalizers"] = json!(["somebody/else"]);
    });
    assert_eq!(act(unmarked), NOTHING);
}

#[test]
fn no_outcome_of_a_publish_lets_the_unpublish_be_skipped() {
    let context = PublishContext::new();
    for publish in [
        None,
        record(State::Failed(failure("InvalidArgument")), 500),
        record(State::Uncertain(failure("DeadlineExceeded")), 500),
        record(State::Done(context), 0),
    ] {
        assert_eq!(act(Case { publish, ..case(deleting) }), ["unpublish node-id"]);
    }
    // While it runs nothing is certain; its end comes back here.
    assert_eq!(act(Case { publish: record(State::Running, 0), ..case(deleting) }), NOTHING);
}

#[test]
fn a_failed_unpublish_keeps_the_finalizer_and_is_repeated() {
    let failed = Case { unpublish: record(State::Uncertain(failure("Unavailable")), 2), ..case(deleting) };
    let decision = decide_one(failed, &facts(), 0);
    assert_eq!(words(&decision.actions), ["detach error broken (Unavailable)"]);
    assert_eq!(decision.wake_at, Some(at(2)));
}

#[test]
fn a_detach_uses_the_node_id_of_the_publish_and_never_an_empty_one() {
    let moved = Case { node_id: Some("new-id".into()), ..case(deleting) };
    assert_eq!(act(moved), ["unpublish node-id"]);
    let forgotten = |node_id| {
        let unmarked = case(|object| {
            deleting(object);
            object["metadata"]["annotations"] = json!(null);
        });
        act(Case { node_id, ..unmarked })
    };
    assert_eq!(forgotten(Some("node-id".into())), ["unpublish node-id"]);
    assert!(forgotten(None)[0].starts_with("detach error node \"n\" has no driver"));
    let gone = act(Case { source: Source::Missing("pv".into()), ..case(deleting) });
    assert!(gone[0].starts_with("detach error PersistentVolume \"pv\""), "{gone:?}");
}

#[test]
fn a_node_with_a_new_id_is_unpublished_under_the_old_one_first() {
    let moved = || Case { node_id: Some("new-id".into()), ..case(|_| {}) };
    assert_eq!(act(moved()), ["unpublish node-id"]);
    let freed = Case { unpublish: record(State::Done(PublishContext::new()), 0), ..moved() };
    assert_eq!(act(freed), ["mark new-id"]);
}

/// A driver that forgot the old id used to keep the attachment waiting for ever.
#[test]
fn a_node_whose_old_id_the_driver_does_not_know_any_more_is_published_by_the_new_one() {
    let answered = |state| {
        let moved = Case { node_id: Some("new-id".into()), unpublish: record(state, 9), ..case(|_| {}) };
        act(moved)
    };
    for code in ["NotFound", "InvalidArgument"] {
        assert_eq!(answered(State::Failed(failure(code))), ["mark new-id"], "{code}");
    }
    assert!(answered(State::Failed(failure("Internal")))[0].starts_with("attach error"));
    assert!(answered(State::Uncertain(failure("Unavailable")))[0].starts_with("attach error"));
}

#[test]
fn a_detach_that_the_driver_refuses_by_the_old_id_is_tried_by_the_new_one() {
    let by_old = |code| Case {
        node_id: Some("new-id".into()),
        unpublish: record(State::Failed(failure(code)), 9),
        ..case(deleting)
    };
    assert_eq!(act(by_old("NotFound")), ["unpublish new-id"]);
    assert_eq!(act(by_old("Internal")), ["detach error broken (Internal)"]);
    let not_moved = Case { node_id: Some("node-id".into()), ..by_old("NotFound") };
    assert_eq!(act(not_moved), ["detach error broken (NotFound)"]);
    let unregistered = Case { node_id: None, ..by_old("NotFound") };
    assert_eq!(act(unregistered), ["detach error broken (NotFound)"]);
    let refused = Case { unpublish_by_new: record(State::Failed(failure("Internal")), 9), ..by_old("NotFound") };
    assert_eq!(act(refused), ["detach error broken (Internal)"]);
    let done = Case { unpublish_by_new: record(State::Done(PublishContext::new()), 0), ..by_old("NotFound") };
    assert_eq!(act(done), ["release csi-1"]);
}

/// It used to be unpublished by the old id first: a driver that knows the machine by both took away what was mounted.
#[test]
fn what_is_attached_and_doubted_on_a_node_with_a_new_id_is_published_by_that_and_never_unpublished() {
    let attached = case(|object| object["status"] = json!({ "attached": true }));
    let mut moved = Case { doubted: true, node_id: Some("new-id".into()), ..attached };
    let mut done = Vec::new();
    while let [action] = &decide_one(moved.clone(), &facts(), 0).actions[..] {
        done.extend(words(std::slice::from_ref(action)));
        take(&mut moved, action.clone());
        assert!(done.len() < 9, "{done:?}");
    }
    assert_eq!(done, ["mark new-id", "publish new-id", "attached {}"]);
}

#[test]
fn a_write_that_the_server_refuses_is_told_once_beside_the_next_try() {
    let bare = |object: &mut Value| object["metadata"]["finalizers"] = json!(null);
    let refusal = |what| Refusal { what, code: Some(500), text: format!("{what}: no") };
    let refused = |case: Case| Case { refused: Some(refusal("could not save VolumeAttachment")), ..case };
    let told = "attach error None could not save VolumeAttachment: no";
    assert_eq!(act(refused(case(bare))), ["mark node-id", told]);
    let known = case(|object| {
        bare(object);
        object["status"] =
            json!({ "attachError": { "message": "could not save VolumeAttachment: no", "time": at(0).to_string() } });
    });
    assert_eq!(act(refused(known)), ["mark node-id"]);
    let going = Case { unpublish: record(State::Done(PublishContext::new()), 0), ..case(deleting) };
    assert_eq!(act(refused(going.clone())), ["release csi-1"], "it is another write");
    let unreleased = Case { refused: Some(refusal("could not mark as detached")), ..going };
    assert_eq!(act(unreleased), ["release csi-1", "detach error could not mark as detached: no"]);
    assert_eq!(act(refused(case(|_| {}))), ["publish node-id"], "it is not that write any more");
}

/// `attached: false` beside `attached: true`: whichever came last stayed.
#[test]
fn nothing_is_told_beside_the_write_that_says_attached() {
    for what in ["could not save VolumeAttachment", "could not add PersistentVolume finalizer"] {
        let refused = Some(Refusal { what, code: Some(500), text: format!("{what}: no") });
        let published = Case { publish: record(State::Done(PublishContext::new()), 0), refused, ..case(|_| {}) };
        assert_eq!(act(published), ["attached {}"]);
    }
}

#[test]
fn one_call_at_a_time_per_handle_and_the_longest_waiting_goes_first() {
    let named = |name: &'static str, publish| {
        let named = case(|object| object["metadata"]["name"] = json!(name));
        Case { publish, ..named }
    };
    let waited = |second| record(State::Uncertain(failure("")), second);
    let snapshot = |publish: [Option<Record<PublishContext>>; 2]| {
        let [first, second] = publish;
        snapshot(vec![named("a", first), named("b", second)])
    };
    let started = |snapshot: Snapshot| {
        let calls = decide(&snapshot, at(10)).actions.into_iter();
        let names = calls.filter_map(|action| match action {
            Action::Call { attachment, .. } => Some(attachment.name),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(started(snapshot([waited(9), waited(3)])), ["b"]);
    assert_eq!(started(snapshot([waited(3), None])), ["b"], "one that always fails does not keep it out");
    assert_eq!(started(snapshot([waited(99), waited(3)])), ["b"]);
    assert_eq!(started(snapshot([record(State::Running, 0), waited(3)])), NOTHING);
}

#[test]
fn a_driver_that_does_not_attach_has_everything_attached_at_once_without_a_call() {
    let facts = Facts { calls: [].into(), ..facts() };
    let trivial = |spoil: fn(&mut Value)| words(&decide_one(case(spoil), &facts, 0).actions);
    assert_eq!(trivial(|_| {}), ["attached {}"]);
    assert_eq!(trivial(deleting), NOTHING);
    assert_eq!(trivial(|object| object["status"] = json!({ "attached": true })), NOTHING);
}

#[test]
fn a_volume_is_released_when_it_is_going_and_no_attachment_names_it() {
    let one = |volume| {
        let unnamed = vec![volume];
        words(&decide(&Snapshot { facts: Arc::new(facts()), unnamed, ..Snapshot::default() }, at(0)).actions)
    };
    assert_eq!(one(volume(deleting)), ["release pv"]);
    assert_eq!(one(volume(|_| {})), NOTHING);
    let free = |object: &mut Value| {
        deleting(object);
        object["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    };
    assert_eq!(one(volume(free)), NOTHING);
}

#[test]
fn what_is_unknown_is_read_first() {
    assert_eq!(act(Case { unknown: true, ..case(|_| {}) }), ["read csi-1"]);
    assert_eq!(act(Case { source: Source::Unknown("pv".into()), ..case(|_| {}) }), ["read pv"]);
}

#[test]
fn values_of_an_earlier_publish_are_removed_from_the_status() {
    let left = case(|object| object["status"] = json!({ "attachmentMetadata": { "old": "x", "token": "1" } }));
    let context = PublishContext::from([("token".into(), "2".into())]);
    let published = Case { publish: record(State::Done(context), 0), ..left };
    assert_eq!(act(published), ["attached {\"old\": None, \"token\": Some(\"2\")}"]);
}

/// What the API and the records show after an action, when calls end well.
fn take(case: &mut Case, action: Action) {
    let attachment = Arc::make_mut(&mut case.attachment);
    let shown = |error: Trouble| {
        Some(stowage_model::attachment::VolumeError {
            message: error.message,
            time: Some(error.time),
            error_code: error.code,
        })
    };
    match action {
        Action::Call { request, attachment: decided, .. } => {
            let is_right = is_right(&request, &decided, attachment, case.doubted, &facts().finalizer);
            assert!(is_right, "{request:?} is refused after its fresh read, for ever");
            let done =
                Some(Record { state: State::Done(PublishContext::new()), since: at(0), failures: 0, retry_at: at(0) });
            let is_recorded = attachment.node_id().is_none_or(|recorded| recorded == request.node_id());
            (case.publish, case.unpublish, case.unpublish_by_new) = match request.kind() {
                Kind::Publish => (done, None, None),
                Kind::Unpublish if is_recorded => (None, done, case.unpublish_by_new.take()),
                Kind::Unpublish => (None, case.unpublish.take(), done),
            };
        }
        Action::ProtectVolume { .. } => {
            case.source = Source::Volume(volume(|_| {}));
            case.refused = None;
        }
        Action::MarkAttachment { node_id, .. } => {
            attachment.meta.finalizers.push(facts().finalizer.into());
            if attachment.node_id() != Some(node_id.as_str()) {
                // Each id has records of its own.
                (case.publish, case.unpublish, case.unpublish_by_new) = (None, case.unpublish_by_new.take(), None);
            }
            attachment.meta.annotations.insert(annotations::ATTACHMENT_NODE_ID.into(), node_id);
            case.refused = None;
        }
        Action::ReleaseAttachment(_) => {
            attachment.meta.finalizers.retain(|finalizer| finalizer.as_str() != facts().finalizer);
            (case.publish, case.unpublish, case.unpublish_by_new) = (None, None, None);
            (case.doubted, case.refused) = (false, None);
        }
        Action::SaveAttached { .. } => {
            attachment.status.attached = true;
            (case.publish, case.unpublish, case.unpublish_by_new) = (None, None, None);
            (case.doubted, case.refused) = (false, None);
        }
        Action::SaveDetached(_) => attachment.status.attached = false,
        Action::SaveTrouble { attachment: meta, trouble, .. } if meta.is_deleting() => {
            attachment.status.detach_error = shown(trouble);
        }
        Action::SaveTrouble { trouble, .. } => attachment.status.attach_error = shown(trouble),
        Action::RefreshAttachment(_) => case.unknown = false,
        Action::RefreshVolume(_) => case.source = Source::Missing("pv".into()),
        Action::ReleaseVolume(_) => {}
    }
}

prop_compose! {
    fn any_record()(kind in 0..5, retry_at in -5_i64..5) -> Option<Record<PublishContext>> {
        match kind {
            0 => record(State::Failed(failure("NotFound")), retry_at),
            1 => record(State::Uncertain(failure("Aborted")), retry_at),
            2 => record(State::Done(PublishContext::new()), retry_at),
            _ => None,
        }
    }
}

prop_compose! {
    fn any_case()(going: bool, marked: bool, other: bool, recorded in 0..3, attached: bool, unknown: bool, doubted: bool,
                  source in 0..5, node in 0..3, publish in any_record(), unpublish in any_record(),
                  unpublish_by_new in any_record(), refused: bool) -> Case {
        let mut finalizers = Vec::new();
        finalizers.extend(marked.then(|| facts().finalizer));
        finalizers.extend(other.then(|| "somebody/else".to_owned()));
        let id = |n| ["node-id", "new-id"].get(n as usize).map(|id| (*id).to_owned());
        let spoiled = case(|object| {
            if going { deleting(object) }
            object["metadata"]["finalizers"] = json!(finalizers);
            object["metadata"]["annotations"] = json!({});
            if let Some(id) = id(recorded) {
                object["metadata"]["annotations"][annotations::ATTACHMENT_NODE_ID] = json!(id);
            }
            object["status"] = json!({ "attached": attached });
        });
        Case {
            unknown,
            doubted,
            node_id: id(node),
            source: match source {
                0 => Source::Missing("pv".into()),
                1 => Source::Unknown("pv".into()),
                2 => Source::Volume(volume(|volume| volume["metadata"]["finalizers"] = json!([]))),
                _ => Source::Volume(volume(|_| {})),
            },
            refused: refused.then(|| Refusal {
                what: "could not save VolumeAttachment",
                code: Some(403),
                text: "could not save VolumeAttachment: no".to_owned(),
            }),
            publish,
            unpublish,
            unpublish_by_new: unpublish_by_new.filter(|_| recorded != node),
            ..spoiled
        }
    }
}

proptest! {
    #[test]
    fn repeated_deciding_reaches_a_fixpoint_and_never_drops_a_finalizer_without_unpublish(mut case in any_case()) {
        for _ in 0..12 {
            let actions = decide_one(case.clone(), &facts(), 10).actions;
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                if matches!(action, Action::ReleaseAttachment(_)) {
                    let unpublished = [&case.unpublish, &case.unpublish_by_new]
                        .into_iter()
                        .any(|record| matches!(record, Some(Record { state: State::Done(_), .. })));
                    prop_assert!(unpublished, "released without unpublish");
                }
                take(&mut case, action);
            }
        }
        prop_assert!(false, "no fixpoint: {:?}", decide_one(case, &facts(), 10));
    }
}

#[test]
fn a_call_without_room_in_its_lane_waits_for_its_turn_and_one_of_the_other_lane_goes() {
    let full = Room { publish: 1, unpublish: 0 };
    let going = Case { source: Source::Volume(of_mode("ReadWriteMany")), ..case(deleting) };
    let mut waiting = snapshot(vec![going]);
    waiting.room = full;
    let decision = decide(&waiting, at(0));
    let in_line = vec![(Kind::Unpublish, "va-uid".to_owned())];
    assert_eq!((words(&decision.actions).len(), decision.why.turns), (0, in_line.clone()));
    assert_eq!(decision.wake_at, None, "its turn wakes it");
    waiting.attachments.push(elsewhere("ReadWriteMany"));
    let decision = decide(&waiting, at(0));
    let goes = vec!["publish other-id".to_owned()];
    assert_eq!((words(&decision.actions), decision.why.turns), (goes, in_line), "it keeps its place meanwhile");
}

/// An attach to a node used to wait for the calls for all other nodes.
#[test]
fn a_volume_for_many_nodes_is_called_for_once_per_node_at_a_time() {
    let on = |node: &str, spoil: fn(&mut Value)| {
        let on = case(|object| {
            object["metadata"]["name"] = json!(node);
            object["metadata"]["uid"] = json!(node);
            object["metadata"]["annotations"][annotations::ATTACHMENT_NODE_ID] = json!(node);
            spoil(object);
        });
        Case { node_id: Some(node.into()), source: Source::Volume(of_mode("ReadWriteMany")), ..on }
    };
    let failed = Case { publish: record(State::Failed(failure("Internal")), 9), ..on("d", |_| {}) };
    let mut many = snapshot(vec![on("a", |_| {}), on("b", deleting), on("c", |_| {}), failed]);
    let decision = decide(&many, at(0));
    let calls = |decision: &Decision| {
        let calls: Vec<Action> = decision.actions.iter().filter(|action| action.calls().is_some()).cloned().collect();
        words(&calls)
    };
    assert_eq!(calls(&decision), ["publish a", "unpublish b", "publish c"]);
    assert_eq!(decision.wake_at, Some(at(9)));
    many.calling = ["a".to_owned()].into();
    assert_eq!(calls(&decide(&many, at(0))), ["unpublish b", "publish c"]);
    many.room = Room { publish: 1, unpublish: 1 };
    many.calling.clear();
    let decision = decide(&many, at(0));
    assert_eq!(calls(&decision), ["publish a", "unpublish b"]);
    assert_eq!(decision.why.turns, [(Kind::Publish, "c".to_owned())]);
    many.attachments[2].called = Some(Kind::Publish);
    many.room.publish = 0;
    assert_eq!(calls(&decide(&many, at(0))), ["unpublish b", "publish c"], "whose turn it is");
}

/// Attachments of one volume to that many nodes, named in the order of the numbers.
fn to_nodes(nodes: usize, volume: &Arc<Volume>, spoil: impl Fn(&mut Value)) -> Vec<Case> {
    let to_node = |n| {
        let name = format!("va-{n:03}");
        let to_node = case(|object| {
            object["metadata"]["name"] = json!(name);
            object["metadata"]["uid"] = json!(name);
            object["metadata"]["annotations"][annotations::ATTACHMENT_NODE_ID] = json!(name);
            spoil(object);
        });
        Case { node_id: Some(name), source: Source::Volume(Arc::clone(volume)), ..to_node }
    };
    (0..nodes).map(to_node).collect()
}

/// Five hundred attachments wrote the same finalizer, and all but one heard of a conflict.
#[test]
fn what_all_attachments_of_a_volume_need_is_done_once_and_refused_to_all() {
    let unprotected = volume(|object| {
        object["metadata"]["finalizers"] = json!([]);
        object["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    });
    let many = snapshot(to_nodes(500, &unprotected, |_| {}));
    let decision = decide(&many, at(0));
    assert_eq!(words(&decision.actions), ["protect pv"]);
    let (waiting, _) = decision.actions[0].written_for().unwrap();
    assert_eq!(waiting.len(), 500);
    let unread = many.attachments.into_iter().map(|case| Case { source: Source::Unknown("pv".into()), ..case });
    assert_eq!(words(&decide(&snapshot(unread.collect()), at(0)).actions), ["read pv"]);
}

/// No call began before the slowest of hundreds of writes was answered.
#[test]
fn as_many_attachments_as_there_are_workers_are_written_in_a_round_and_each_once_in_a_pass() {
    let unmarked = |object: &mut Value| object["metadata"]["annotations"] = json!({});
    let mut many = snapshot(to_nodes(25, &of_mode("ReadWriteMany"), unmarked));
    for pass in 0..2 {
        let mut written = Vec::new();
        for expected in [10, 10, 5] {
            let decision = decide(&many, at(0));
            // Whatever became of the last round's writes.
            assert_eq!(decision.actions.len(), expected, "pass {pass}");
            written.extend(words(&decision.actions));
            let is_last = expected == 5;
            assert_eq!(decision.wake_at, (!is_last).then(|| at(0)), "the others do not wait for a backoff");
            many.written_up_to = decision.why.written_up_to;
            assert_eq!(many.written_up_to.others.is_none(), is_last);
        }
        assert_eq!(written, (0..25).map(|n| format!("mark va-{n:03}")).collect::<Vec<_>>());
    }
    // Those that were left are done meanwhile: the next pass begins.
    many.written_up_to.others = Some("va-999".into());
    assert_eq!(decide(&many, at(0)).actions.len(), 10);
    many.written_up_to.others = Some("va-019".into());
    many.attachments[3].publish = record(State::Done(PublishContext::new()), 0);
    assert_eq!(words(&decide(&many, at(0)).actions)[0], "attached {}", "what is done already does not wait for them");
}

fn of_mode(mode: &str) -> Arc<Volume> {
    volume(|object| object["spec"]["accessModes"] = json!([mode]))
}

/// A second attachment of the volume, to another node.
fn elsewhere(mode: &str) -> Case {
    let other = case(|object| {
        object["metadata"]["name"] = json!("other");
        object["metadata"]["uid"] = json!("other-uid");
        object["metadata"]["annotations"][annotations::ATTACHMENT_NODE_ID] = json!("other-id");
    });
    Case { node_id: Some("other-id".into()), source: Source::Volume(of_mode(mode)), ..other }
}

#[test]
fn an_attach_does_not_overtake_the_detach_that_has_to_go_first() {
    let here_again = || case(|object| object["metadata"]["name"] = json!("again"));
    let full = Room { publish: 1, unpublish: 0 };
    for after in [here_again(), elsewhere("ReadWriteOnce")] {
        let mut waiting = Snapshot { room: full, ..snapshot(vec![case(deleting), after]) };
        let decision = decide(&waiting, at(0));
        let in_line = vec![(Kind::Unpublish, String::new())];
        assert_eq!((words(&decision.actions).len(), decision.why.turns), (0, in_line), "the volume waits as one");
        waiting.called = Some(Kind::Unpublish);
        assert_eq!(words(&decide(&waiting, at(0)).actions), ["unpublish node-id"]);
    }
    // One that fails is not waited for, except where it would undo the attach.
    let failing = || Case { unpublish: record(State::Failed(failure("Internal")), 9), ..case(deleting) };
    let calls = |after| {
        let decision = decide(&snapshot(vec![failing(), after]), at(0));
        (decision.actions.into_iter().filter(|action| action.calls().is_some()).collect::<Vec<_>>(), decision.wake_at)
    };
    let (elsewhere, _) = calls(elsewhere("ReadWriteOnce"));
    assert_eq!(words(&elsewhere), ["publish other-id"]);
    assert_eq!(calls(here_again()), (vec![], Some(at(9))));
}

#[test]
fn what_the_driver_contradicts_is_done_again_although_the_status_looks_right() {
    let attached = |object: &mut Value| object["status"] = json!({ "attached": true });
    let lost = Case { doubted: true, ..case(attached) };
    assert_eq!(act(lost.clone()), ["publish node-id"]);
    let again = Case { publish: record(State::Done(PublishContext::new()), 0), ..lost.clone() };
    assert_eq!(act(again), ["attached {}"]);
    let failed = Case { publish: record(State::Failed(failure("NotFound")), 9), ..lost };
    let actions = decide_one(failed, &facts(), 0).actions;
    assert!(matches!(&actions[..], [Action::SaveTrouble { attached: true, .. }]), "{actions:?}");
    let left = |doubted| {
        let released = case(|object| {
            deleting(object);
            object["metadata"]["finalizers"] = json!(["somebody/else"]);
        });
        Case { doubted, ..released }
    };
    assert_eq!(act(left(false)), NOTHING);
    assert_eq!(act(left(true)), ["unpublish node-id"]);
    assert_eq!(act(Case { unpublish: record(State::Done(PublishContext::new()), 0), ..left(true) }), NOTHING);
}

#[test]
fn a_volume_that_its_in_tree_plugin_took_back_is_released() {
    let in_tree = |migrated_to: &str| {
        let volume = volume(|volume| {
            volume["spec"] = json!({ "cinder": { "volumeID": "h" } });
            volume["metadata"]["annotations"] = json!({ annotations::MIGRATED_TO: migrated_to });
        });
        words(
            &decide(&Snapshot { facts: Arc::new(facts()), unnamed: vec![volume], ..Snapshot::default() }, at(0))
                .actions,
        )
    };
    assert_eq!(in_tree(DRIVER), NOTHING);
    assert_eq!(in_tree(""), ["release pv"]);
}

#[test]
fn waiting_for_a_backoff_costs_one_wake_up() {
    let failed = Case { publish: record(State::Uncertain(failure("Aborted")), 30), ..case(|_| {}) };
    let decision = decide_one(failed, &facts(), 0);
    let wake_at = decision.wake_at.unwrap();
    assert_eq!(wake_at.duration_since(at(0)).unsigned_abs(), Duration::from_secs(30));
}
