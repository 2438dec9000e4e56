//! What must happen next to everything that is about one volume handle.
//!
//! Attach: finalizer on the volume, finalizer and node id on the attachment, publish, status. Detach: unpublish,
//! finalizer off the attachment, status. Each write is its own round, so a crash between any two finds its way.

use std::collections::BTreeMap;

use jiff::{Timestamp, Unit};

use stowage_csi::code;
use stowage_model::object::Meta;
use stowage_model::volume::SecretRef;
use stowage_runtime::engine;
use stowage_runtime::operation::{Failure, Record, State};

use crate::calls::Request;
use crate::request::Problem;
use crate::snapshot::{Case, Facts, PublishContext, Snapshot, Source, VolumeCase};

#[cfg(test)]
mod tests;

/// The API server takes no longer message.
const LONGEST_MESSAGE: usize = 1024;

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Starts a driver call.
    Call {
        attachment: Meta,
        request: Request,
        secret: Option<SecretRef>,
    },
    /// Puts our finalizer on the volume.
    ProtectVolume(Meta),
    /// Takes our finalizer off the volume.
    ReleaseVolume(Meta),
    /// Puts our finalizer and the node's id on the attachment.
    MarkAttachment {
        attachment: Meta,
        node_id: String,
    },
    /// Takes our finalizer off the attachment.
    ReleaseAttachment(Meta),
    /// `None` removes what an earlier publish left.
    SaveAttached {
        attachment: Meta,
        metadata: BTreeMap<String, Option<String>>,
    },
    SaveDetached(Meta),
    SaveAttachError {
        attachment: Meta,
        error: Trouble,
    },
    SaveDetachError {
        attachment: Meta,
        error: Trouble,
    },
    RefreshAttachment(String),
    RefreshVolume(String),
}

/// An error as an attachment's status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub message: String,
    /// Whole seconds, as the API keeps it.
    pub time: Timestamp,
    pub code: Option<i32>,
}

/// Why, attachment by attachment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Why(pub Vec<(String, Reason)>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A write of ours got no answer; one fresh read comes first.
    Unknown,
    Attached,
    Detached,
    /// A driver call for it is under way.
    Calling,
    /// Ready for a driver call, now or after its backoff.
    Waiting,
    /// A write has to come first.
    Writing,
    /// The driver cannot be asked.
    Blocked(Problem),
}

pub type Decision = engine::Decision<Action, Why>;

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let facts = &*snapshot.facts;
    let mut why = Why::default();
    let mut writes = Vec::new();
    let mut calls = Vec::new();
    for case in &snapshot.attachments {
        let part = decide_attachment(case, facts, now);
        writes.extend(part.write);
        calls.extend(part.call);
        why.0.push((case.attachment.meta.name.clone(), part.reason));
    }
    writes.extend(snapshot.volumes.iter().filter_map(|volume| release(volume, facts)));
    let (call, wake_at) = choose(snapshot, calls, now);
    // The call starts before the writes: it takes longest.
    Decision { wake_at, ..Decision::act(call.into_iter().chain(writes).collect::<Vec<_>>(), why) }
}

/// A driver call that may start at a moment.
struct Planned {
    at: Timestamp,
    action: Action,
}

struct Part {
    write: Option<Action>,
    call: Option<Planned>,
    reason: Reason,
}

impl Part {
    fn rest(reason: Reason) -> Self {
        Self { write: None, call: None, reason }
    }

    fn write(action: Action) -> Self {
        Self { write: Some(action), call: None, reason: Reason::Writing }
    }
}

/// One call at a time per handle: the one that has waited longest.
fn choose(snapshot: &Snapshot, calls: Vec<Planned>, now: Timestamp) -> (Option<Action>, Option<Timestamp>) {
    if snapshot.calling {
        // Its end comes back here.
        return (None, None);
    }
    let first = calls.into_iter().min_by_key(|call| call.at);
    match first {
        Some(call) if call.at <= now => (Some(call.action), None),
        Some(call) => (None, Some(call.at)),
        None => (None, None),
    }
}

fn is_running(record: &Option<Record<PublishContext>>) -> bool {
    matches!(record, Some(Record { state: State::Running, .. }))
}

fn decide_attachment(case: &Case, facts: &Facts, now: Timestamp) -> Part {
    let attachment = &case.attachment;
    if case.unknown {
        return Part {
            reason: Reason::Unknown,
            ..Part::write(Action::RefreshAttachment(attachment.meta.name.clone()))
        };
    }
    if !facts.attaches {
        return match attachment.status.attached || attachment.meta.is_deleting() {
            true => Part::rest(Reason::Attached),
            false => Part::write(save_attached(case, &PublishContext::new())),
        };
    }
    if is_running(&case.publish) || is_running(&case.unpublish) {
        return Part::rest(Reason::Calling);
    }
    if let Source::Unknown(volume) = &case.source {
        return Part { reason: Reason::Unknown, ..Part::write(Action::RefreshVolume(volume.clone())) };
    }
    if attachment.meta.is_deleting() { detach(case, facts, now) } else { attach(case, facts, now) }
}

fn attach(case: &Case, facts: &Facts, now: Timestamp) -> Part {
    let attachment = &case.attachment;
    if attachment.status.attached {
        return Part::rest(Reason::Attached);
    }
    if let Some(Record { state: State::Done(context), .. }) = &case.publish {
        return Part::write(save_attached(case, context));
    }
    let request = match case.publish_request(facts) {
        Ok(request) => request,
        Err(problem) => return blocked(case, problem, now),
    };
    if let Source::Volume(volume) = &case.source
        && !volume.meta.has_finalizer(&facts.finalizer)
    {
        return Part::write(Action::ProtectVolume(volume.meta.clone()));
    }
    let marked = attachment.meta.has_finalizer(&facts.finalizer);
    let mark = || Action::MarkAttachment { attachment: attachment.meta.clone(), node_id: request.node_id.clone() };
    match attachment.node_id() {
        Some(recorded) if marked && recorded == request.node_id => {}
        // The node has a new id, and the volume may be published under the old one: that has to end first.
        Some(_) if marked && !matches!(&case.unpublish, Some(Record { state: State::Done(_), .. })) => {
            return match case.unpublish_request(facts) {
                Ok(request) => wait_or_call(case, Request::Unpublish(request), &case.unpublish, now),
                Err(problem) => blocked(case, problem, now),
            };
        }
        _ => return Part::write(mark()),
    }
    wait_or_call(case, Request::Publish(request), &case.publish, now)
}

fn detach(case: &Case, facts: &Facts, now: Timestamp) -> Part {
    let attachment = &case.attachment;
    if !attachment.meta.has_finalizer(&facts.finalizer) {
        // Never published, or unpublished already. Where nobody else holds it, it is gone and has no status to save.
        let held = !attachment.meta.finalizers.is_empty();
        return match held && attachment.status.attached {
            true => Part::write(Action::SaveDetached(attachment.meta.clone())),
            false => Part::rest(Reason::Detached),
        };
    }
    if let Some(Record { state: State::Done(_), .. }) = &case.unpublish {
        return Part::write(Action::ReleaseAttachment(attachment.meta.clone()));
    }
    match case.unpublish_request(facts) {
        Ok(request) => wait_or_call(case, Request::Unpublish(request), &case.unpublish, now),
        Err(problem) => blocked(case, problem, now),
    }
}

fn wait_or_call(case: &Case, request: Request, record: &Option<Record<PublishContext>>, now: Timestamp) -> Part {
    let failure = match record {
        Some(Record { state: State::Failed(failure) | State::Uncertain(failure), since, .. }) => {
            Some((failure, *since))
        }
        _ => None,
    };
    let write = failure.and_then(|(failure, since)| save_trouble(case, trouble(failure, since)));
    let action = Action::Call { attachment: case.attachment.meta.clone(), request, secret: case.secret() };
    let at = record.as_ref().map_or(now, |record| record.retry_at);
    Part { write, call: Some(Planned { at, action }), reason: Reason::Waiting }
}

fn blocked(case: &Case, problem: Problem, now: Timestamp) -> Part {
    let message = shortened(problem.to_string());
    // Told once: only what it says counts, for nothing is tried again until an object changes.
    let told = told(case).is_some_and(|told| told.message == message);
    let trouble = Trouble { message, time: whole_seconds(now), code: None };
    let write = if told { None } else { save_trouble(case, trouble) };
    Part { write, call: None, reason: Reason::Blocked(problem) }
}

fn told(case: &Case) -> Option<Trouble> {
    let status = &case.attachment.status;
    let error = if case.attachment.meta.is_deleting() { &status.detach_error } else { &status.attach_error };
    error.as_ref().map(|error| Trouble {
        message: error.message.clone(),
        time: error.time.map_or(Timestamp::MIN, whole_seconds),
        code: error.error_code,
    })
}

/// The write that shows a trouble, unless it is shown already.
fn save_trouble(case: &Case, error: Trouble) -> Option<Action> {
    let attachment = case.attachment.meta.clone();
    let deleting = attachment.is_deleting();
    // Only attach errors have a code in the API.
    let error = if deleting { Trouble { code: None, ..error } } else { error };
    // Not the code: an older API server drops it, and would be written to for ever.
    if told(case).is_some_and(|told| (told.message, told.time) == (error.message.clone(), error.time)) {
        return None;
    }
    Some(match deleting {
        true => Action::SaveDetachError { attachment, error },
        false => Action::SaveAttachError { attachment, error },
    })
}

fn trouble(failure: &Failure, since: Timestamp) -> Trouble {
    Trouble {
        message: shortened(failure.message.clone()),
        time: whole_seconds(since),
        code: code::from_name(&failure.code).map(i32::from),
    }
}

fn whole_seconds(at: Timestamp) -> Timestamp {
    at.round(Unit::Second).unwrap_or(at)
}

fn shortened(mut message: String) -> String {
    let end = (0..=LONGEST_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
    message.truncate(end.unwrap_or(0));
    message
}

fn save_attached(case: &Case, context: &PublishContext) -> Action {
    let left = case.attachment.status.attachment_metadata.keys().map(|key| (key.clone(), None));
    let given = context.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
    Action::SaveAttached { attachment: case.attachment.meta.clone(), metadata: left.chain(given).collect() }
}

/// A volume that is going and that no attachment names has no more need of us.
fn release(case: &VolumeCase, facts: &Facts) -> Option<Action> {
    let meta = &case.volume.meta;
    let over = meta.is_deleting() && !case.named && meta.has_finalizer(&facts.finalizer);
    over.then(|| Action::ReleaseVolume(meta.clone()))
}
