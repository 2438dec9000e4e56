//! Sections 5.8, 5.9 and 5.13 of reference/sidecars-and-csi.md.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tonic::Code;

use stowage_csi::code;
use stowage_csi::code::Family;
use stowage_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent, annotations, finalizers};
use stowage_runtime::told::Known;

use super::*;
use crate::calls::Member;
use crate::doubts::Doubt;
use crate::options::Options;
use crate::request::Request;
use crate::snapshot::{Class, Facts};
use crate::sort::Sort;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn facts() -> Facts {
    Facts { driver: "d.example".into(), lists: true, groups: true, options: Options::default() }
}

fn content_json() -> Value {
    json!({
        "metadata": {
            "name": "snapcontent-u", "uid": "content-uid", "resourceVersion": "7",
            "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND],
        },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "u" },
            "deletionPolicy": "Delete", "driver": "d.example", "volumeSnapshotClassName": "fast",
            "source": { "volumeHandle": "vol-1" },
        },
    })
}

fn group_json() -> Value {
    json!({
        "metadata": {
            "name": "groupsnapcontent-u", "uid": "group-uid", "resourceVersion": "7",
            "finalizers": [finalizers::GROUP_SNAPSHOT_CONTENT_BOUND],
        },
        "spec": {
            "volumeGroupSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "u" },
            "deletionPolicy": "Delete", "driver": "d.example", "volumeGroupSnapshotClassName": "fast",
            "source": { "volumeHandles": ["vol-1", "vol-2"] },
        },
    })
}

fn of(content: Content) -> Case {
    Case {
        content,
        is_unknown: false,
        class: Class::Found { name: "fast".into(), parameters: [("pool".into(), "a".into())].into() },
        create: None,
        look: None,
        delete: None,
        doubt: None,
        known: Known::default(),
    }
}

/// A content with everything in place for CreateSnapshot; each test spoils it.
fn case(spoil: impl FnOnce(&mut Value)) -> Case {
    let mut object = content_json();
    spoil(&mut object);
    of(Content::from(&serde_json::from_value::<VolumeSnapshotContent>(object).unwrap()))
}

fn group(spoil: impl FnOnce(&mut Value)) -> Case {
    let mut object = group_json();
    spoil(&mut object);
    of(Content::from(&serde_json::from_value::<VolumeGroupSnapshotContent>(object).unwrap()))
}

fn existing(object: &mut Value) {
    object["spec"]["source"] = json!({ "snapshotHandle": "snap-9" });
}

fn existing_group(object: &mut Value) {
    let handles = json!({ "volumeGroupSnapshotHandle": "group-9", "volumeSnapshotHandles": ["a", "b"] });
    object["spec"]["source"] = json!({ "groupSnapshotHandles": handles });
}

fn going(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    let key = match object["spec"]["volumeSnapshotRef"].is_object() {
        true => annotations::SNAPSHOT_BEING_DELETED,
        false => annotations::GROUP_SNAPSHOT_BEING_DELETED,
    };
    object["metadata"]["annotations"][key] = json!("yes");
}

fn marked(object: &mut Value) {
    let key = match object["spec"]["volumeSnapshotRef"].is_object() {
        true => annotations::SNAPSHOT_BEING_CREATED,
        false => annotations::GROUP_SNAPSHOT_BEING_CREATED,
    };
    object["metadata"]["annotations"][key] = json!("yes");
}

fn handle_field(object: &Value) -> &'static str {
    match object["spec"]["volumeSnapshotRef"].is_object() {
        true => "snapshotHandle",
        false => "volumeGroupSnapshotHandle",
    }
}

fn recorded(object: &mut Value) {
    object["status"] = json!({ "readyToUse": false });
    let field = handle_field(object);
    object["status"][field] = json!("snap-1");
}

fn ready(object: &mut Value) {
    recorded(object);
    object["status"]["readyToUse"] = json!(true);
}

fn failed_before(object: &mut Value) {
    object["status"] = json!({ "readyToUse": false, "error": { "message": "broken (Internal)" } });
}

fn record(state: State<Answer>, retry_at: i64) -> Option<Record<Answer>> {
    Some(Record { state, since: at(0), failures: 1, retry_at: at(retry_at) })
}

fn made(is_ready: bool) -> Answer {
    Answer { handle: "snap-1".into(), is_ready, bytes: 5, looks: u32::from(!is_ready), ..Answer::default() }
}

fn failure(code: &str) -> Failure {
    Failure { code: code.into(), message: format!("broken ({code})") }
}

const DOUBT: Option<Doubt> = Some(Doubt { called_at: None });

fn decided(case: Case, second: i64) -> Decision {
    decided_by(facts(), case, second)
}

fn decided_by(facts: Facts, case: Case, second: i64) -> Decision {
    decide(&Snapshot { facts: Arc::new(facts), case: Some(case), abandoned: Vec::new() }, at(second))
}

/// Actions as short words.
fn words(decision: &Decision) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Call { planned, .. } => match &planned.request {
            Request::CreateSnapshot(request) => format!("create {}", request.name),
            Request::ListSnapshots(request) => format!("list {}", request.snapshot_id),
            Request::DeleteSnapshot(request) => format!("delete {}", request.snapshot_id),
            Request::CreateGroup(request) => format!("create {} {:?}", request.name, request.source_volume_ids),
            Request::GetGroup(request) => format!("get {} {:?}", request.group_snapshot_id, request.snapshot_ids),
            Request::DeleteGroup(request) => format!("delete {} {:?}", request.group_snapshot_id, request.snapshot_ids),
        },
        Action::Mark(_) => "mark".into(),
        Action::Unmark(_) => "unmark".into(),
        Action::SaveStatus { answer, .. } => format!("save {} {}", answer.handle, answer.is_ready),
        Action::SaveError { error, .. } => format!("error {}", error.message),
        Action::ClearStatus(_) => "clear".into(),
        Action::Release(_) => "release".into(),
        Action::Tell { note, .. } => format!("tell {}", note.reason),
        Action::Refresh(_) => "read".into(),
    };
    decision.actions.iter().map(word).collect()
}

fn act(case: Case) -> Vec<String> {
    words(&decided(case, 0))
}

const NOTHING: [String; 0] = [];

#[test]
fn a_snapshot_that_is_made_at_once_costs_one_call_and_one_write() {
    assert_eq!(act(case(|_| {})), ["create snapshot-u"]);
    let calling = Case { create: record(State::Running, 0), ..case(|_| {}) };
    assert_eq!(act(calling), NOTHING);
    let done = Case { create: record(State::Done(made(true)), 0), doubt: DOUBT, ..case(|_| {}) };
    assert_eq!(act(done), ["save snap-1 true"]);
    let saved = decided(case(ready), 0);
    assert_eq!((words(&saved), saved.why), (vec![], Why::Ready));
}

#[test]
fn nothing_is_called_before_the_finalizer_is_on_the_content() {
    let bare = decided(case(|object| object["metadata"]["finalizers"] = json!([])), 0);
    assert_eq!((words(&bare), bare.why), (vec![], Why::AwaitingFinalizer));
}

#[test]
fn a_call_is_marked_once_it_takes_long_and_not_while_it_waits_for_its_turn() {
    let running =
        |called_at| Case { create: record(State::Running, 0), doubt: Some(Doubt { called_at }), ..case(|_| {}) };
    assert_eq!(words(&decided(running(None), 100)), NOTHING);
    let soon = decided(running(Some(at(0))), 4);
    assert_eq!((words(&soon), soon.wake_at), (vec![], Some(at(5))));
    assert_eq!(words(&decided(running(Some(at(0))), 5)), ["mark"]);
    let already = Case { content: case(marked).content, ..running(Some(at(0))) };
    assert_eq!(words(&decided(already, 9)), NOTHING);
    // Its handle is recorded: it is only looked at.
    let looking = Case { content: case(recorded).content, ..running(Some(at(0))) };
    assert_eq!(words(&decided(looking, 9)), NOTHING);
}

#[test]
fn a_snapshot_that_is_not_ready_is_looked_at_again_with_growing_delays_of_a_minute_at_most() {
    let not_ready = |looks| Case { create: record(State::Done(Answer { looks, ..made(false) }), 0), ..case(recorded) };
    assert_eq!(act(Case { create: record(State::Done(made(false)), 0), ..case(|_| {}) }), ["save snap-1 false"]);
    for (looks, delay) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (30, 60)] {
        let waiting = decided(not_ready(looks), 0);
        assert_eq!((words(&waiting), waiting.wake_at), (vec![], Some(at(delay))), "{looks}");
        let due = decided(not_ready(looks), delay);
        assert_eq!(words(&due), ["create snapshot-u"], "{looks}");
        assert!(matches!(due.actions[0], Action::Call { looks: next, .. } if next == looks + 1));
    }
    // After a restart it is looked at again at once.
    assert_eq!(act(case(recorded)), ["create snapshot-u"]);
}

#[test]
fn every_code_of_a_creation_leads_where_the_table_of_codes_says() {
    for code in (1..17).map(Code::from_i32) {
        let name = code::name(code);
        let uncertain = code::outcome(Family::CreateSnapshot, code).may_be_running();
        let (state, doubt) = match uncertain {
            true => (State::Uncertain(failure(name)), DOUBT),
            false => (State::Failed(failure(name)), None),
        };
        let ended = |spoil: &dyn Fn(&mut Value)| Case { create: record(state.clone(), 9), doubt, ..case(spoil) };
        let shown = [format!("tell {}", "SnapshotCreationFailed"), format!("error broken ({name})")];
        if uncertain {
            assert_eq!(act(ended(&|_| {})), ["mark"], "{name}");
            assert_eq!(act(ended(&marked)), shown, "{name}");
            // It may have been made: the content waits for the driver's word.
            assert_eq!(words(&decided(ended(&going), 9)), ["tell SnapshotDeleteError"], "{name}");
        } else {
            assert_eq!(act(ended(&|_| {})), shown, "{name}");
            // Certainly not made: the content may go.
            assert_eq!(act(ended(&going)), ["release"], "{name}");
            assert_eq!(
                act(ended(&|object| {
                    marked(object);
                    going(object);
                })),
                ["release"],
                "{name}"
            );
        }
    }
}

#[test]
fn a_creation_that_failed_is_marked_before_it_is_tried_again_and_the_mark_goes_with_a_final_answer() {
    let failed = |spoil: &dyn Fn(&mut Value)| Case {
        create: record(State::Failed(failure("Internal")), 5),
        known: Known::of((), Note::warning("SnapshotCreationFailed", "broken (Internal)"), at(2700)),
        ..case(spoil)
    };
    let waiting = decided(failed(&failed_before), 0);
    assert_eq!((words(&waiting), waiting.wake_at), (vec![], Some(at(5))));
    assert_eq!(words(&decided(failed(&failed_before), 5)), ["mark"]);
    let both = |object: &mut Value| {
        failed_before(object);
        marked(object);
    };
    assert_eq!(words(&decided(failed(&both), 5)), ["create snapshot-u"]);
    assert_eq!(words(&decided(failed(&both), 0)), ["unmark"]);
    // After a restart nobody knows when it failed.
    assert_eq!(act(case(failed_before)), ["mark"]);
}

#[test]
fn a_recorded_handle_needs_no_mark() {
    let both = |object: &mut Value| {
        recorded(object);
        marked(object);
    };
    assert_eq!(act(case(both)), ["unmark"]);
    assert_eq!(
        act(case(|object| {
            ready(object);
            marked(object);
        })),
        ["unmark"]
    );
}

#[test]
fn what_keeps_the_driver_from_being_asked_is_told_once_and_shown_in_the_status() {
    let no_class = Case { class: Class::Missing("fast".into()), ..case(|_| {}) };
    let message = "VolumeSnapshotClass \"fast\" does not exist; create it";
    assert_eq!(act(no_class.clone()), ["tell SnapshotCreationFailed".to_owned(), format!("error {message}")]);
    let shown = |object: &mut Value| object["status"] = json!({ "error": { "message": message } });
    let known = Known::of((), Note::warning("SnapshotCreationFailed", message), at(2700));
    let told = Case { content: case(shown).content, known, ..no_class.clone() };
    let resting = decided(told, 0);
    assert_eq!((words(&resting), resting.wake_at), (vec![], Some(at(2700))));
    // Somebody may have called before the class went, and a status without the mark would say the opposite.
    assert_eq!(act(Case { doubt: DOUBT, ..no_class }), ["mark"]);
    let known_driver = Case { class: Class::None, ..case(|_| {}) };
    assert_eq!(act(known_driver)[0], "tell SnapshotCreationFailed");
}

#[test]
fn a_snapshot_that_exists_is_looked_at_or_believed_where_the_driver_cannot_be_asked() {
    assert_eq!(act(case(existing)), ["list snap-9"]);
    let listed = Answer { handle: "snap-9".into(), is_ready: true, ..Answer::default() };
    let done = Case { look: record(State::Done(listed), 0), ..case(existing) };
    assert_eq!(act(done), ["save snap-9 true"]);
    let blind = Facts { lists: false, ..facts() };
    assert_eq!(words(&decided_by(blind, case(existing), 0)), ["save snap-9 true"]);
    let missing = Case { look: record(State::Failed(failure("NotFound")), 9), ..case(existing) };
    assert_eq!(act(missing), ["tell SnapshotContentCheckandUpdateFailed", "error broken (NotFound)"]);
    assert_eq!(act(Case { class: Class::None, ..case(existing) }), ["list snap-9"], "it needs no class");
}

#[test]
fn a_member_of_a_group_waits_for_its_handle_and_is_never_made_or_deleted_alone() {
    let member =
        |object: &mut Value| object["metadata"]["annotations"][annotations::SNAPSHOT_GROUP_HANDLE] = json!("g");
    let waiting = decided(case(member), 0);
    assert_eq!((words(&waiting), waiting.why), (vec![], Why::AwaitingGroup));
    let bound = |object: &mut Value| {
        member(object);
        recorded(object);
        object["status"]["volumeGroupSnapshotHandle"] = json!("g");
    };
    assert_eq!(act(case(bound)), ["list snap-1"]);
    assert_eq!(
        act(case(|object| {
            bound(object);
            going(object);
        })),
        ["release"]
    );
}

#[test]
fn a_snapshot_goes_before_its_content_and_the_finalizer_last() {
    let both = |object: &mut Value| {
        ready(object);
        going(object);
    };
    assert_eq!(act(case(both)), ["delete snap-1"]);
    let deleted = Case { delete: record(State::Done(Answer::default()), 0), ..case(both) };
    assert_eq!(act(deleted), ["release"]);
    let held = |object: &mut Value| {
        both(object);
        object["metadata"]["finalizers"] = json!([finalizers::SNAPSHOT_CONTENT_BOUND, "example.com/backup"]);
    };
    let deleted =
        |spoil: &dyn Fn(&mut Value)| Case { delete: record(State::Done(Answer::default()), 0), ..case(spoil) };
    assert_eq!(act(deleted(&held)), ["clear"], "somebody else may read the handle");
    assert_eq!(
        act(deleted(&|object| {
            held(object);
            object["status"] = json!({});
        })),
        ["release"]
    );
    let free = |object: &mut Value| {
        both(object);
        object["metadata"]["finalizers"] = json!([]);
    };
    assert_eq!(decided(case(free), 0).why, Why::Released);
}

#[test]
fn every_code_of_a_deletion_is_told_and_tried_again() {
    for code in (1..17).map(Code::from_i32) {
        let name = code::name(code);
        let state = match code::outcome(Family::Delete, code).may_be_running() {
            true => State::Uncertain(failure(name)),
            false => State::Failed(failure(name)),
        };
        let both = |object: &mut Value| {
            ready(object);
            going(object);
        };
        let ended = Case { delete: record(state, 9), ..case(both) };
        assert_eq!(act(ended.clone()), ["tell SnapshotDeleteError"], "{name}");
        let note = Note::warning("SnapshotDeleteError", format!("broken ({name}); it is tried again until it works"));
        let told = Case { known: Known::of((), note, at(2700)), ..ended };
        assert_eq!(decided(told.clone(), 0).wake_at, Some(at(9)), "{name}");
        assert_eq!(words(&decided(told, 9)), ["delete snap-1"], "{name}");
    }
}

#[test]
fn what_is_retained_unbound_or_never_recorded_loses_only_its_finalizer() {
    let retained = |object: &mut Value| {
        ready(object);
        going(object);
        object["spec"]["deletionPolicy"] = json!("Retain");
    };
    assert_eq!(act(case(retained)), ["release"]);
    let unbound = |object: &mut Value| {
        existing(object);
        object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        object["spec"]["volumeSnapshotRef"]["uid"] = json!("");
    };
    assert_eq!(act(case(unbound)), ["release"]);
    assert_eq!(
        act(case(|object| {
            existing(object);
            going(object);
        })),
        ["release"],
        "the driver never confirmed it"
    );
    assert_eq!(act(case(going)), ["release"], "nobody ever called for it");
}

#[test]
fn a_content_that_is_deleted_while_its_user_lives_is_still_wanted() {
    let by_hand = |object: &mut Value| object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    assert_eq!(act(case(by_hand)), ["create snapshot-u"]);
    assert_eq!(
        act(case(|object| {
            ready(object);
            by_hand(object);
        })),
        NOTHING
    );
}

#[test]
fn a_creation_in_doubt_is_asked_for_again_before_its_content_goes() {
    let doubtful = || Case { doubt: DOUBT, ..case(going) };
    assert_eq!(act(doubtful()), ["create snapshot-u"]);
    let by_an_original = |object: &mut Value| {
        going(object);
        marked(object);
    };
    assert_eq!(act(case(by_an_original)), ["create snapshot-u"]);
    let found = Case { create: record(State::Done(made(false)), 0), ..doubtful() };
    assert_eq!(act(found), ["delete snap-1"]);
    // The class is gone: CSI knows the snapshot again by name and volume.
    let classless = decided(Case { class: Class::Missing("fast".into()), ..doubtful() }, 0);
    assert_eq!(words(&classless), ["create snapshot-u"]);
    assert!(matches!(&classless.actions[0], Action::Call { planned, .. } if !planned.is_whole));
    // A status without handle and mark was written after a final answer.
    assert_eq!(
        act(case(|object| {
            failed_before(object);
            going(object);
        })),
        ["release"]
    );
}

#[test]
fn a_group_is_made_looked_at_and_deleted_with_its_members() {
    assert_eq!(act(group(|_| {})), [r#"create groupsnapshot-u ["vol-1", "vol-2"]"#]);
    let member = |handle: &str| Member { handle: handle.into(), ..Member::default() };
    let answer = Answer {
        handle: "group-1".into(),
        is_ready: true,
        members: vec![member("a"), member("b")],
        ..Answer::default()
    };
    let done = Case { create: record(State::Done(answer), 0), doubt: DOUBT, ..group(|_| {}) };
    assert_eq!(act(done.clone()), ["save group-1 true"]);
    assert_eq!(act(Case { content: group(going).content, ..done }), [r#"delete group-1 ["a", "b"]"#]);
    let infos = json!([{ "snapshotHandle": "a" }, { "snapshotHandle": "b" }]);
    assert_eq!(
        act(group(|object| {
            going(object);
            object["status"] = json!({ "volumeGroupSnapshotHandle": "group-1", "volumeSnapshotInfoList": infos });
        })),
        [r#"delete group-1 ["a", "b"]"#]
    );
    assert_eq!(
        act(group(|object| {
            going(object);
            object["status"] = json!({ "volumeGroupSnapshotHandle": "group-1" });
        })),
        ["tell GroupSnapshotDeleteError"],
        "a group is deleted only with its members"
    );
    assert_eq!(act(group(existing_group)), [r#"get group-9 ["a", "b"]"#]);
    let failed = Case { create: record(State::Failed(failure("FailedPrecondition")), 9), ..group(|_| {}) };
    assert_eq!(act(failed), ["tell GroupSnapshotCreationFailed", "error broken (FailedPrecondition)"]);
    let without = Facts { groups: false, ..facts() };
    assert_eq!(words(&decided_by(without, group(|_| {}), 0))[0], "tell GroupSnapshotCreationFailed");
}

#[test]
fn an_object_whose_write_got_no_answer_is_read_first() {
    assert_eq!(act(Case { is_unknown: true, ..case(|_| {}) }), ["read"]);
}

/// What an action would have done, without a server and a driver.
fn carry_out(case: &mut Case, action: &Action, ends: &mut impl Iterator<Item = u8>, second: i64) {
    let content = &mut case.content;
    let mark = content.words().being_created.to_owned();
    match action {
        Action::Call { kind, .. } => {
            let end = ends.next().unwrap_or(0);
            let state = match end {
                0 => State::Done(Answer { handle: "snap-1".into(), is_ready: true, ..Answer::default() }),
                1 => State::Done(Answer { handle: "snap-1".into(), looks: 1, ..Answer::default() }),
                2 => State::Failed(failure("Internal")),
                _ => State::Uncertain(failure("Aborted")),
            };
            if *kind == Kind::Create {
                case.doubt = if end == 2 { None } else { DOUBT };
            }
            let ended = Some(Record { state, since: at(second), failures: 0, retry_at: at(second + 1) });
            match kind {
                Kind::Create => case.create = ended,
                Kind::Look => case.look = ended,
                Kind::Delete => case.delete = ended,
            }
        }
        Action::Mark(_) => content.meta.annotations.insert(mark, "yes".into()),
        Action::Unmark(_) => {
            let kept = content.meta.annotations.iter().filter(|(key, _)| *key != mark);
            content.meta.annotations = kept.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        }
        Action::SaveStatus { answer, .. } => {
            let status = content.status.get_or_insert_default();
            (status.handle, status.is_ready, status.error) = (Some(answer.handle.clone()), answer.is_ready, None);
            case.doubt = None;
        }
        Action::SaveError { error, .. } => {
            content.status.get_or_insert_default().error = Some(error.message.clone());
        }
        Action::ClearStatus(_) => content.status.get_or_insert_default().handle = None,
        Action::Release(_) => content.meta.finalizers.clear(),
        Action::Tell { note, .. } => case.known = Known::of((), note.clone(), at(1_000_000)),
        Action::Refresh(_) => case.is_unknown = false,
    }
}

proptest! {
    #[test]
    fn whatever_the_driver_answers_deciding_again_comes_to_rest_and_loses_nothing(
        is_group: bool, is_existing: bool, is_going: bool, is_marked: bool, is_doubtful: bool, is_unknown: bool,
        has_class: bool, retained: bool, status in 0..4_u8, ends in prop::collection::vec(0..4_u8, 0..6),
    ) {
        let spoil = |object: &mut Value| {
            match (is_existing, is_group) {
                (true, true) => existing_group(object),
                (true, false) => existing(object),
                _ => {}
            }
            match status {
                1 => failed_before(object),
                2 => recorded(object),
                3 => ready(object),
                _ => {}
            }
            if is_going { going(object) }
            if is_marked { marked(object) }
            if retained { object["spec"]["deletionPolicy"] = json!("Retain") }
        };
        let mut case = if is_group { group(spoil) } else { case(spoil) };
        case.is_unknown = is_unknown;
        case.doubt = DOUBT.filter(|_| is_doubtful && case.content.handle().is_none());
        if !has_class { case.class = Class::Missing("fast".into()) }
        let mut ends = ends.into_iter();
        let mut second = 0;
        let mut rounds = 0;
        loop {
            let decision = decided(case.clone(), second);
            // A status that says nothing was made is never written while something may have been.
            if let [.., Action::SaveError { content, .. }] = &decision.actions[..]
                && matches!(content.source, crate::content::Source::Volumes(_)) && !content.is_member
            {
                prop_assert!(content.handle().is_some() || content.is_marked() || case.doubt.is_none());
            }
            for action in &decision.actions {
                if matches!(action, Action::Release(_)) && !retained && !case.content.is_member {
                    let may_exist = case.doubt.is_some() || case.content.handle().is_some();
                    let is_deleted = matches!(&case.delete, Some(Record { state: State::Done(_), .. }));
                    prop_assert!(is_deleted || !may_exist || is_existing, "{case:?}");
                }
                carry_out(&mut case, action, &mut ends, second);
            }
            rounds += 1;
            prop_assert!(rounds < 60, "no rest: {decision:?}");
            match decision.wake_at {
                Some(at_second) if decision.actions.is_empty() && at_second < at(1000) => {
                    second = at_second.as_second() - 1_000_000;
                }
                _ if decision.actions.is_empty() => break,
                _ => {}
            }
        }
        let last = decided(case.clone(), second);
        prop_assert_eq!(last.actions, vec![]);
        prop_assert_eq!(case.content.sort == Sort::Group, is_group);
    }
}

#[test]
fn a_class_is_not_called_missing_before_classes_are_listed() {
    let unlisted = |case: Case| decided(Case { class: Class::Unlisted, ..case }, 0);
    for case in [group(|_| {}), case(|_| {}), case(existing), Case { doubt: DOUBT, ..case(going) }] {
        let decision = unlisted(case);
        assert_eq!((words(&decision), &decision.why), (vec![], &Why::AwaitingClasses));
    }
}
