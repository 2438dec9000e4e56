//! A claim that asks for more than it has.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_csi::Outcome;
use stowage_model::Volume;
use stowage_model::annotations::PRE_RESIZE_CAPACITY;
use stowage_model::phase::ClaimPhase;
use stowage_model::quantity::Quantity;
use stowage_model::resize::{
    CONTROLLER_RESIZE_ERROR, FILE_SYSTEM_RESIZE_PENDING, NODE_RESIZE_ERROR, RESIZE_CONDITIONS, RESIZING, ResizeStatus,
};
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;
use stowage_runtime::trouble::Trouble;

use super::{Action, Part, Reason, VolumeChange};
use crate::calls::{Aim, Expanded, Kind, Planned, is_answer, outcome};
use crate::change::{Change, Holds};
use crate::projections::Claim;
use crate::request;
use crate::snapshot::{Case, Expansion, Facts, Failed, Topic};
use crate::target::{self, Given};
use crate::users::Users;

pub fn decide(case: &Case, volume: &Arc<Volume>, facts: &Facts, now: Timestamp) -> Part {
    let claim = &*case.claim;
    if facts.expansion == Expansion::Nobody {
        return Part::rest(Reason::Unsupported);
    }
    if case.record(Kind::Expand).is_some_and(Record::is_running) {
        return Part::rest(Reason::Calling);
    }
    if let Some(expanded) = case.expanded().filter(|expanded| is_begun(claim, expanded.target, facts)) {
        return finish(case, volume, expanded, facts);
    }
    let is_noted = volume.meta.annotation(PRE_RESIZE_CAPACITY).is_some();
    if facts.options.gates.annotate_fs_resize && is_noted && claim.capacity() >= volume.capacity() {
        let change = VolumeChange { before: Some(None), ..VolumeChange::default() };
        return Part::act([Action::SaveVolume { volume: volume.meta.clone(), change }], Reason::Writing);
    }
    if claim.status.phase != ClaimPhase::Bound || claim.requested() <= claim.capacity() {
        return Part::rest(Reason::Settled);
    }
    match aim(case, volume, facts) {
        Some(target) => attempt(case, volume, target, facts, now),
        None => Part::rest(Reason::NodesTurn),
    }
}

fn aim(case: &Case, volume: &Volume, facts: &Facts) -> Option<Quantity> {
    if !facts.options.gates.recover_volume_expansion_failure {
        return target::choose_without_recovery(&case.claim, volume.capacity());
    }
    let in_controller = facts.expansion == Expansion::Controller;
    target::choose(&case.claim, Given { volume: volume.capacity(), in_controller, is_final: is_final(case) })
}

/// Whether nothing may be growing any more. What we know ourselves counts; after a restart it is what the claim says: its
/// error goes before each call, so that one that is there with our reason is the last word of the driver.
fn is_final(case: &Case) -> bool {
    if let Some(record) = case.record(Kind::Expand) {
        return record.done().is_none() && case.failed(Kind::Expand).is_some_and(|failed| failed.is_final);
    }
    let error = case.claim.status.conditions.find(CONTROLLER_RESIZE_ERROR).filter(|error| error.is_true());
    error.is_some_and(|error| is_answer(&error.reason))
}

/// Whether the claim says that this very expansion is under way.
fn is_begun(claim: &Claim, target: Quantity, facts: &Facts) -> bool {
    match facts.options.gates.recover_volume_expansion_failure {
        true => claim.resize() == ResizeStatus::ControllerResizeInProgress && claim.allocated() == Some(target),
        false => claim.status.conditions.hold(RESIZING),
    }
}

fn attempt(case: &Case, volume: &Arc<Volume>, target: Quantity, facts: &Facts, now: Timestamp) -> Part {
    let claim = &*case.claim;
    let (request, secret) = match facts.expansion {
        Expansion::Controller => match request::expand(volume, target, facts) {
            Ok((request, secret)) => (Some(Box::new(request)), secret),
            Err(problem) => return case.blocked(Kind::Expand, problem, now),
        },
        Expansion::Node | Expansion::Nobody => (None, None),
    };
    let recovers = facts.options.gates.recover_volume_expansion_failure;
    if let Some(failed) = case.failed_at(&Aim::Size(target))
        && let Some(waiting) = wait(case, failed, facts, now)
    {
        return waiting;
    }
    if case.is_calling() {
        // A volume that is full comes before one that is to be faster; a call that was sent is never taken back.
        let is_in_line = case.modify.as_ref().is_some_and(|tried| tried.is_in_line);
        let aside = is_in_line.then(|| Action::StepAside { claim: Arc::clone(&case.claim), kind: Kind::Modify });
        return Part::act(Vec::from_iter(aside), Reason::Waiting);
    }
    let in_doubt = recovers && is_begun(claim, target, facts) && !is_final(case);
    let begin = begin(target, recovers);
    let is_written = begin.is_needed(claim);
    let mut actions = Vec::new();
    if is_written {
        actions.push(case.save(begin));
    }
    let note = Note::normal("Resizing", format!("expanding volume {} to {target}", volume.meta.name));
    actions.extend(case.tell(Topic::Begun(Kind::Expand), note, now));
    let planned = Box::new(Planned::Expand { target, request, secret });
    actions.push(Action::Call { claim: Arc::clone(&case.claim), planned, in_doubt, is_written });
    Part::act(actions, Reason::Waiting)
}

/// What the claim says before each call. An earlier error goes, so that the one that is there is always the last word.
fn begin(target: Quantity, recovers: bool) -> Change {
    let set = vec![Holds::new(RESIZING)];
    let without = vec![FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR];
    match recovers {
        true => Change {
            allocated: Some(target),
            resize: Some(ResizeStatus::ControllerResizeInProgress),
            not_required: Some(false),
            set,
            without,
            ..Change::default()
        },
        false => Change { set, without, ..Change::default() },
    }
}

/// After a failure: shows it, and says until when nothing else is done; none once it is time.
fn wait(case: &Case, failed: Failed<'_>, facts: &Facts, now: Timestamp) -> Option<Part> {
    let at = case.retry_at(Kind::Expand, failed, facts, now);
    let in_use = facts.options.handle_volume_in_use && case.waits_for_users();
    let users = match &case.users {
        Users::Pods(pods) if in_use && !pods.is_empty() => Some(pods),
        _ => None,
    };
    if at <= now && users.is_none() {
        return None;
    }
    let mut actions = Vec::new();
    let shown = show(failed, facts);
    if shown.is_needed(&case.claim) {
        actions.push(case.save(shown));
    }
    if in_use && case.users == Users::Unwatched {
        actions.push(Action::Watch);
    }
    let Some(users) = users else {
        actions.extend(case.tell_failure(Kind::Expand, failed, now));
        return Some(Part { wake_at: Some(at), ..Part::act(actions, Reason::Waiting) });
    };
    let message = format!(
        "the driver does not expand the volume while it is in use; it is expanded once no pod uses it any more: {}",
        users.join(", ")
    );
    let wake_at = match case.tell(Topic::Failed(Kind::Expand), Note::warning("VolumeResizeFailed", message), now) {
        Ok(tell) => {
            actions.push(tell);
            None
        }
        Err(until) => Some(until),
    };
    Some(Part { wake_at, ..Part::act(actions, Reason::InUse) })
}

/// What the claim says of a failure: nothing unless it is the driver's last word.
fn show(failed: Failed<'_>, facts: &Facts) -> Change {
    let recovers = facts.options.gates.recover_volume_expansion_failure;
    let Some(outcome) = outcome(Kind::Expand, failed.failure).filter(|_| failed.is_final && recovers) else {
        return Change::default();
    };
    let error = Holds {
        kind: CONTROLLER_RESIZE_ERROR,
        reason: failed.failure.code.clone(),
        message: Trouble::new(failed.failure.message.clone(), Timestamp::UNIX_EPOCH).message,
    };
    let resize = (outcome == Outcome::Infeasible).then_some(ResizeStatus::ControllerResizeInfeasible);
    Change { resize, set: vec![error], ..Change::default() }
}

/// The volume first: a claim that is said to be larger than its volume would be corrected by others.
fn finish(case: &Case, volume: &Arc<Volume>, expanded: &Expanded, facts: &Facts) -> Part {
    let claim = &*case.claim;
    let gates = &facts.options.gates;
    let mut actions = Vec::new();
    let is_noted = volume.meta.annotation(PRE_RESIZE_CAPACITY).is_some();
    let change = VolumeChange {
        capacity: Some(expanded.size).filter(|size| is_its_size(*size, claim, volume, facts)),
        before: (expanded.for_node && gates.annotate_fs_resize && !is_noted).then(|| Some(claim.capacity())),
        class: None,
    };
    if change != VolumeChange::default() {
        actions.push(Action::SaveVolume { volume: volume.meta.clone(), change });
    }
    let (change, note) = match expanded.for_node {
        true => for_node(gates.recover_volume_expansion_failure, volume),
        false => done(gates.recover_volume_expansion_failure, expanded.size.max(claim.capacity())),
    };
    actions.push(Action::Finish { claim: Arc::clone(&case.claim), change, kind: Kind::Expand, note });
    Part::act(actions, Reason::Writing)
}

/// Whether the volume has this size from now on. A driver is never believed that one has shrunk; but where only nodes expand,
/// nobody but us has said the size that a node could not reach.
fn is_its_size(size: Quantity, claim: &Claim, volume: &Volume, facts: &Facts) -> bool {
    match facts.expansion {
        Expansion::Node => size != volume.capacity() && size >= claim.capacity(),
        Expansion::Controller | Expansion::Nobody => size > volume.capacity(),
    }
}

fn for_node(recovers: bool, volume: &Volume) -> (Change, Note) {
    let message = "waiting for a node that uses the volume to grow its file system";
    let set = vec![Holds { message: message.into(), ..Holds::new(FILE_SYSTEM_RESIZE_PENDING) }];
    let change = match recovers {
        true => Change {
            resize: Some(ResizeStatus::NodeResizePending),
            not_required: Some(false),
            set,
            ..Change::default()
        },
        false => {
            Change { set, without: vec![RESIZING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR], ..Change::default() }
        }
    };
    let size = volume.meta.name.as_str();
    (
        change,
        Note::normal(
            "FileSystemResizeRequired",
            format!("volume {size} is larger now; the node grows its file system"),
        ),
    )
}

fn done(recovers: bool, size: Quantity) -> (Change, Note) {
    let change = Change {
        capacity: Some(size),
        resize: recovers.then_some(ResizeStatus::Nothing),
        // So that nodes do not try.
        not_required: recovers.then_some(true),
        without: RESIZE_CONDITIONS.to_vec(),
        ..Change::default()
    };
    (change, Note::normal("VolumeResizeSuccessful", format!("the volume has {size} now")))
}
