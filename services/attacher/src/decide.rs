//! What must happen next to everything that is about one volume handle.
//!
//! Attach: finalizer on the volume, finalizer and node id on the attachment, publish, status. Detach: unpublish,
//! finalizer off the attachment, status. Each write is its own round, so a crash between any two finds its way.

use std::collections::BTreeMap;

use jiff::Timestamp;

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::Volume;
use stowage_model::attachment::VolumeError;
use stowage_model::object::Meta;
use stowage_model::volume::SecretRef;
use stowage_runtime::engine;
use stowage_runtime::operation::Record;
use stowage_runtime::trouble::Trouble;

use crate::calls::{Kind, Request};
use crate::request::{self, Problem};
use crate::snapshot::{Case, Facts, PublishContext, Snapshot, Source};

#[cfg(test)]
mod tests;

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
    /// Shows why it is not attached, or not detached yet where it is being deleted.
    SaveTrouble {
        attachment: Meta,
        /// As the status says: one that is doubted stays attached until it is known not to be.
        attached: bool,
        trouble: Trouble,
    },
    RefreshAttachment(String),
    RefreshVolume(String),
}

/// Why, attachment by attachment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Why {
    pub attachments: Vec<(String, Reason)>,
    /// Calls that are due and wait for their turn.
    pub turns: Vec<Kind>,
}

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

impl Action {
    /// The sort of call that it starts, if it starts one.
    pub fn calls(&self) -> Option<Kind> {
        match self {
            Self::Call { request, .. } => Some(request.kind()),
            _ => None,
        }
    }
}

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let facts = &*snapshot.facts;
    let mut why = Why::default();
    let mut writes = Vec::new();
    let mut calls = Vec::new();
    for case in &snapshot.attachments {
        let part = decide_attachment(case, facts, now);
        writes.extend(part.write);
        calls.extend(part.call);
        why.attachments.push((case.attachment.meta.name.clone(), part.reason));
    }
    writes.extend(snapshot.unnamed.iter().filter_map(|volume| release(volume, facts)));
    let (call, wake_at) = choose(snapshot, calls, now, &mut why.turns);
    // The call starts before the writes: it takes longest.
    Decision { wake_at, ..Decision::act(call.into_iter().chain(writes).collect::<Vec<_>>(), why) }
}

/// What one attachment needs.
struct Part {
    write: Option<Action>,
    /// A driver call, and when it may start.
    call: Option<(Timestamp, Action)>,
    reason: Reason,
}

impl Part {
    fn rest(reason: Reason) -> Self {
        Self { write: None, call: None, reason }
    }

    fn write(action: Action) -> Self {
        Self { write: Some(action), ..Self::rest(Reason::Writing) }
    }

    fn read(action: Action) -> Self {
        Self { write: Some(action), ..Self::rest(Reason::Unknown) }
    }
}

/// One call at a time per handle: of those whose lane has room the one that has waited longest, but no attach before the
/// detach that has to go first. The end of one that is under way comes back here, and so does a turn.
fn choose(
    snapshot: &Snapshot,
    calls: Vec<(Timestamp, Action)>,
    now: Timestamp,
    turns: &mut Vec<Kind>,
) -> (Option<Action>, Option<Timestamp>) {
    if snapshot.calling {
        return (None, None);
    }
    let leaves = leaves(&calls, now);
    let is_held = |action: &Action| leaves.iter().any(|leave| leave.comes_before(action));
    let (due, later): (Vec<_>, Vec<_>) =
        calls.into_iter().filter(|(_, action)| !is_held(action)).partition(|(at, _)| *at <= now);
    let mut waiting = Vec::new();
    let mut first = None;
    for (at, action) in due {
        let kind = action.calls();
        match kind.is_none_or(|kind| snapshot.room.has(kind)) {
            true if first.as_ref().is_none_or(|(earlier, _)| at < *earlier) => first = Some((at, action)),
            true => {}
            false => waiting.extend(kind),
        }
    }
    match first {
        Some((_, call)) => (Some(call), None),
        None => {
            waiting.sort_unstable();
            waiting.dedup();
            *turns = waiting;
            (None, later.into_iter().map(|(at, _)| at).min())
        }
    }
}

/// A node that the volume has to leave.
struct Leave {
    node_id: String,
    is_due: bool,
}

fn leaves(calls: &[(Timestamp, Action)], now: Timestamp) -> Vec<Leave> {
    let leave = |(at, action): &(Timestamp, Action)| match action {
        Action::Call { request: Request::Unpublish(request), .. } => {
            Some(Leave { node_id: request.node_id.clone(), is_due: *at <= now })
        }
        _ => None,
    };
    calls.iter().filter_map(leave).collect()
}

impl Leave {
    /// On the same node the detach would undo the attach. From another one a volume for one node has to go first, unless
    /// the driver fails to let it go: then it is the driver that says whether it can come here.
    fn comes_before(&self, action: &Action) -> bool {
        match action {
            Action::Call { request: Request::Publish(request), .. } => {
                request.node_id == self.node_id || self.is_due && !request::is_for_many_nodes(request)
            }
            _ => false,
        }
    }
}

fn decide_attachment(case: &Case, facts: &Facts, now: Timestamp) -> Part {
    let attachment = &case.attachment;
    if case.unknown {
        return Part::read(Action::RefreshAttachment(attachment.meta.name.clone()));
    }
    if !facts.can(Call::PublishUnpublishVolume) {
        // Then every attachment is done as soon as it is asked for.
        return match attachment.status.attached || attachment.meta.is_deleting() {
            true => Part::rest(Reason::Attached),
            false => Part::write(save_attached(case, &PublishContext::new())),
        };
    }
    if case.is_calling() {
        return Part::rest(Reason::Calling);
    }
    if let Source::Unknown(volume) = &case.source {
        return Part::read(Action::RefreshVolume(volume.clone()));
    }
    let step = if attachment.meta.is_deleting() { detach(case, facts, now) } else { attach(case, facts, now) };
    step.unwrap_or_else(|problem| blocked(case, problem, now))
}

fn attach(case: &Case, facts: &Facts, now: Timestamp) -> Result<Part, Problem> {
    let attachment = &case.attachment;
    if attachment.status.attached && !case.doubted {
        return Ok(Part::rest(Reason::Attached));
    }
    if let Some(context) = case.publish.as_ref().and_then(Record::done) {
        return Ok(Part::write(save_attached(case, context)));
    }
    let request = case.publish_request(facts)?;
    // Before the attachment: a volume that may be published must not go while it may be.
    if let Source::Volume(volume) = &case.source
        && !volume.meta.has_finalizer(&facts.finalizer)
    {
        return Ok(Part::write(Action::ProtectVolume(volume.meta.clone())));
    }
    let marked = attachment.meta.has_finalizer(&facts.finalizer);
    match attachment.node_id() {
        Some(recorded) if marked && recorded == request.node_id => {
            Ok(wait_or_call(case, Request::Publish(request), &case.publish, now))
        }
        // The node has a new id, and the volume may be published under the old one: that has to end first.
        Some(_) if marked && case.unpublish.as_ref().and_then(Record::done).is_none() => unpublish(case, facts, now),
        _ => {
            let (attachment, node_id) = (attachment.meta.clone(), request.node_id);
            Ok(Part::write(Action::MarkAttachment { attachment, node_id }))
        }
    }
}

fn detach(case: &Case, facts: &Facts, now: Timestamp) -> Result<Part, Problem> {
    let meta = &case.attachment.meta;
    let is_done = case.unpublish.as_ref().and_then(Record::done).is_some();
    if !meta.has_finalizer(&facts.finalizer) && (is_done || !case.doubted) {
        // Never published, or unpublished already. Where nobody else holds it, it is gone and has no status to save.
        return Ok(match !meta.finalizers.is_empty() && case.attachment.status.attached {
            true => Part::write(Action::SaveDetached(meta.clone())),
            false => Part::rest(Reason::Detached),
        });
    }
    if is_done {
        return Ok(Part::write(Action::ReleaseAttachment(meta.clone())));
    }
    unpublish(case, facts, now)
}

fn unpublish(case: &Case, facts: &Facts, now: Timestamp) -> Result<Part, Problem> {
    let request = case.unpublish_request(facts)?;
    Ok(wait_or_call(case, Request::Unpublish(request), &case.unpublish, now))
}

fn wait_or_call(case: &Case, request: Request, record: &Option<Record<PublishContext>>, now: Timestamp) -> Part {
    let trouble = record.as_ref().and_then(Trouble::of);
    let write =
        trouble.filter(|trouble| !shown(case).is_some_and(|shown| trouble.is_shown(&shown.message, shown.time)));
    let action = Action::Call { attachment: case.attachment.meta.clone(), request, secret: case.secret() };
    let at = record.as_ref().map_or(now, |record| record.retry_at);
    Part { write: write.map(|trouble| save(case, trouble)), call: Some((at, action)), reason: Reason::Waiting }
}

fn blocked(case: &Case, problem: Problem, now: Timestamp) -> Part {
    let trouble = Trouble::new(problem.to_string(), now);
    // Told once: only what it says counts, for nothing is tried again until an object changes.
    let is_told = shown(case).is_some_and(|shown| shown.message == trouble.message);
    Part { write: (!is_told).then(|| save(case, trouble)), ..Part::rest(Reason::Blocked(problem)) }
}

/// What the status says of the step that the attachment is at.
fn shown(case: &Case) -> Option<&VolumeError> {
    let status = &case.attachment.status;
    if case.attachment.meta.is_deleting() { status.detach_error.as_ref() } else { status.attach_error.as_ref() }
}

fn save(case: &Case, trouble: Trouble) -> Action {
    let attachment = &case.attachment;
    Action::SaveTrouble { attachment: attachment.meta.clone(), attached: attachment.status.attached, trouble }
}

fn save_attached(case: &Case, context: &PublishContext) -> Action {
    let left = case.attachment.status.attachment_metadata.keys().map(|key| (key.clone(), None));
    let given = context.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
    Action::SaveAttached { attachment: case.attachment.meta.clone(), metadata: left.chain(given).collect() }
}

/// A volume that is going, or not ours any more, and that no attachment names has no more need of us.
fn release(volume: &Volume, facts: &Facts) -> Option<Action> {
    let is_over = is_left(volume, &facts.name) && volume.meta.has_finalizer(&facts.finalizer);
    is_over.then(|| Action::ReleaseVolume(volume.meta.clone()))
}

/// Whether the volume is going, or its in-tree plugin has taken it back from the driver.
pub fn is_left(volume: &Volume, driver: &str) -> bool {
    volume.meta.is_deleting() || volume.spec.in_tree.is_some() && volume.migrated_to() != Some(driver)
}
