//! A claim that names another VolumeAttributesClass than the one in effect.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_csi::Outcome;
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::Volume;
use stowage_model::phase::ClaimPhase;
use stowage_model::resize::{MODIFY_VOLUME_ERROR, MODIFYING_VOLUME, ModifyStatus};
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;
use stowage_runtime::trouble::Trouble;

use super::{Action, Part, Reason, VolumeChange};
use crate::calls::{Aim, Kind, Planned, outcome};
use crate::change::{Change, Holds};
use crate::projections::{Class, Modifying};
use crate::request::{self, Problem};
use crate::snapshot::{Case, ClassView, Facts, Failed, Topic};

pub fn decide(case: &Case, volume: &Arc<Volume>, facts: &Facts, now: Timestamp) -> Part {
    let claim = &*case.claim;
    if volume.spec.csi.is_none() {
        return Part::rest(Reason::Unsupported);
    }
    if !facts.modifies {
        return unable(case, facts, now);
    }
    if case.record(Kind::Modify).is_some_and(Record::is_running) {
        return Part::rest(Reason::Calling);
    }
    if claim.status.phase != ClaimPhase::Bound {
        return Part::rest(Reason::Settled);
    }
    let state = claim.modifying();
    let under_way = state.filter(|state| state.status == ModifyStatus::InProgress);
    if let Some(class) = case.modified().filter(|class| under_way.is_some_and(|state| state.target == *class)) {
        return finish(case, volume, class);
    }
    let wanted = claim.wanted_class();
    if state.is_none() && wanted == claim.current_class() {
        return Part::rest(Reason::Settled);
    }
    if wanted.is_empty() && under_way.is_none() {
        return cancel(case);
    }
    // What may be under way is followed up to its end before another class is tried.
    let is_final = case.failed(Kind::Modify).is_some_and(|failed| failed.is_final);
    let kept = under_way.filter(|_| !is_final || wanted.is_empty());
    let (target, class) = match kept {
        Some(state) => (state.target.as_str(), &case.aimed_at),
        None => (wanted, &case.wanted),
    };
    let class = match class {
        ClassView::Found(class) if class.driver_name == facts.name => class,
        ClassView::Found(class) => {
            let driver = &class.driver_name;
            let way_out = format!(
                "VolumeAttributesClass {target:?} is for driver {driver:?}, not {:?}; name another",
                facts.name
            );
            return pending(case, way_out, kept.is_none(), now);
        }
        ClassView::Missing => {
            let way_out = format!("VolumeAttributesClass {target:?} does not exist; create it, or name another");
            return pending(case, way_out, kept.is_none(), now);
        }
        ClassView::Unlisted => return Part::rest(Reason::AwaitingClass),
    };
    attempt(case, volume, target, class, facts, now)
}

fn attempt(case: &Case, volume: &Volume, target: &str, class: &Class, facts: &Facts, now: Timestamp) -> Part {
    let claim = &*case.claim;
    let (request, secret) = match request::modify(claim, volume, class, facts) {
        Ok(planned) => planned,
        Err(problem) => return case.blocked(Kind::Modify, problem, now),
    };
    let state = claim.modifying().filter(|state| state.target == target);
    let failed = case.failed_at(&Aim::Class(target.to_owned())).filter(|_| state.is_some());
    if let Some(failed) = failed {
        let at = case.retry_at(Kind::Modify, failed, facts, now);
        if at > now {
            return wait(case, target, failed, at, now);
        }
    }
    if case.is_calling() {
        return Part::rest(Reason::Waiting);
    }
    let is_begun = state.is_some_and(|state| state.status == ModifyStatus::InProgress);
    let is_written = !is_begun || !claim.status.conditions.hold(MODIFYING_VOLUME);
    let mut actions = Vec::new();
    if is_written {
        let modifying = Modifying { target: target.to_owned(), status: ModifyStatus::InProgress };
        let message = format!("the volume is being changed to {target:?}");
        actions.push(case.save(Change {
            modifying: Some(Some(modifying)),
            set: vec![Holds { message, ..Holds::new(MODIFYING_VOLUME) }],
            without: vec![MODIFY_VOLUME_ERROR],
            ..Change::default()
        }));
    }
    let note = Note::normal("VolumeModify", format!("changing volume {} to {target}", volume.meta.name));
    actions.extend(case.tell(Topic::Begun(Kind::Modify), note, now));
    let in_doubt = is_begun && !failed.is_some_and(|failed| failed.is_final);
    let planned = Box::new(Planned::Modify { class: target.to_owned(), request: Box::new(request), secret });
    actions.push(Action::Call { claim: Arc::clone(&case.claim), planned, in_doubt, is_written });
    Part::act(actions, Reason::Waiting)
}

/// Shows a failure until it is time to try again.
fn wait(case: &Case, target: &str, failed: Failed<'_>, at: Timestamp, now: Timestamp) -> Part {
    let mut actions = Vec::new();
    if let Some(outcome) = outcome(Kind::Modify, failed.failure) {
        let status = match outcome {
            Outcome::Infeasible => ModifyStatus::Infeasible,
            _ => ModifyStatus::InProgress,
        };
        let message = match failed.is_final {
            true => format!("the volume could not be changed to {target:?}; it is tried again"),
            false => format!("the volume may still be changing to {target:?}"),
        };
        let error = Holds {
            kind: MODIFY_VOLUME_ERROR,
            reason: failed.failure.code.clone(),
            message: Trouble::new(failed.failure.message.clone(), Timestamp::UNIX_EPOCH).message,
        };
        let shown = Change {
            modifying: Some(Some(Modifying { target: target.to_owned(), status })),
            set: vec![Holds { message, ..Holds::new(MODIFYING_VOLUME) }, error],
            ..Change::default()
        };
        if shown.is_needed(&case.claim) {
            actions.push(case.save(shown));
        }
    }
    actions.extend(case.tell_failure(Kind::Modify, failed, now));
    Part { wake_at: Some(at), ..Part::act(actions, Reason::Waiting) }
}

/// The class cannot be used: people are told, and the claim waits for it unless a change to it may be under way.
fn pending(case: &Case, way_out: String, is_saved: bool, now: Timestamp) -> Part {
    let mut actions = Vec::new();
    let target = case.claim.modifying().map(|state| state.target.clone()).unwrap_or_default();
    let modifying = Modifying { target, status: ModifyStatus::Pending };
    let change = Change { modifying: Some(Some(modifying)), ..Change::default() };
    if is_saved && change.is_needed(&case.claim) {
        actions.push(case.save(change));
    }
    let tell = case.tell(Topic::Failed(Kind::Modify), Note::warning("VolumeModifyFailed", way_out), now);
    let wake_at = tell.as_ref().err().copied();
    actions.extend(tell);
    Part { wake_at, ..Part::act(actions, Reason::AwaitingClass) }
}

/// A driver that changes nothing: who asks for it hears so, where nobody has switched it off.
fn unable(case: &Case, facts: &Facts, now: Timestamp) -> Part {
    let claim = &*case.claim;
    let (wanted, current) = (claim.wanted_class(), claim.current_class());
    let is_asked = claim.status.phase == ClaimPhase::Bound && !wanted.is_empty() && wanted != current;
    if !is_asked || facts.can(Call::ModifyVolume) || !facts.options.gates.volume_attributes_class {
        return Part::rest(Reason::Unsupported);
    }
    let problem = Problem::ModifyNothing { driver: facts.name.clone(), current: current.to_owned() };
    case.blocked(Kind::Modify, problem, now)
}

/// Nobody wants another class any more, and nothing is under way.
fn cancel(case: &Case) -> Part {
    if case.claim.status.conditions.find(MODIFYING_VOLUME).is_none() {
        return Part::rest(Reason::Settled);
    }
    let change = Change { without: vec![MODIFYING_VOLUME], ..Change::default() };
    let note = Note::normal("VolumeModifyCanceled", "the claim names no VolumeAttributesClass any more");
    Part::act([Action::Finish { claim: Arc::clone(&case.claim), change, kind: Kind::Modify, note }], Reason::Writing)
}

/// The volume first, so that it never lacks what the claim says.
fn finish(case: &Case, volume: &Volume, class: &str) -> Part {
    let mut actions = Vec::new();
    if volume.attributes_class() != class {
        let change = VolumeChange { class: Some(class.to_owned()), ..VolumeChange::default() };
        actions.push(Action::SaveVolume { volume: volume.meta.clone(), change });
    }
    let change = Change {
        class: Some(class.to_owned()),
        modifying: Some(None),
        without: vec![MODIFYING_VOLUME, MODIFY_VOLUME_ERROR],
        ..Change::default()
    };
    let note = Note::normal("VolumeModifySuccessful", format!("volume {} is as {class} asks", volume.meta.name));
    actions.push(Action::Finish { claim: Arc::clone(&case.claim), change, kind: Kind::Modify, note });
    Part::act(actions, Reason::Writing)
}
