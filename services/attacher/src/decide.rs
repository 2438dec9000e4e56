//! What must happen next to everything that is about one volume handle.
//!
//! Attach: finalizer on the volume, finalizer and node id on the attachment, publish, status. Detach: unpublish,
//! finalizer off the attachment, status. Each write is its own round, so a crash between any two finds its way.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tonic::Code;

use stowage_csi::code;
use stowage_csi::v1::ControllerUnpublishVolumeRequest;
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::attachment::VolumeError;
use stowage_model::object::Meta;
use stowage_model::volume::SecretRef;
use stowage_model::{Volume, VolumeAttachment};
use stowage_runtime::engine;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::trouble::Trouble;

use crate::calls::{Kind, Request};
use crate::refusals::Refusal;
use crate::request::{self, Problem};
use crate::snapshot::{Case, Facts, PublishContext, Snapshot, Source};
use crate::written::UpTo;

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
    /// Puts our finalizer on the volume, for these attachments of it.
    ProtectVolume {
        volume: Meta,
        attachments: Vec<Waiting>,
    },
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
    /// Shows why it is not attached, or not detached yet where it is being deleted, if it is still as it was decided on.
    SaveTrouble {
        attachment: Meta,
        /// As the status says: one that is doubted stays attached until it is known not to be.
        attached: bool,
        trouble: Trouble,
    },
    RefreshAttachment(String),
    RefreshVolume(String),
}

/// An attachment that waits for a write which is not its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub name: String,
    pub uid: String,
}

impl Waiting {
    fn new(attachment: &Meta) -> Self {
        Self { name: attachment.name.clone(), uid: attachment.uid.clone() }
    }
}

/// Why, attachment by attachment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Why {
    pub attachments: Vec<(String, Reason)>,
    /// Calls that are due and wait for their turn, by the attachment's uid, or by none where the volume waits as one.
    pub turns: Vec<(Kind, String)>,
    /// How far the writes of this round come, where some are left for the next.
    pub written_up_to: UpTo,
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

    /// The attachments that do not come further without this write, and what people call the write. Not the status itself:
    /// whoever cannot write that cannot be told in it.
    pub fn written_for(&self) -> Option<(Vec<Waiting>, &'static str)> {
        let what = self.what()?;
        match self {
            Self::ProtectVolume { attachments, .. } => Some((attachments.clone(), what)),
            Self::MarkAttachment { attachment, .. } | Self::ReleaseAttachment(attachment) => {
                Some((vec![Waiting::new(attachment)], what))
            }
            _ => None,
        }
    }

    fn what(&self) -> Option<&'static str> {
        match self {
            Self::ProtectVolume { .. } => Some("could not add PersistentVolume finalizer"),
            Self::MarkAttachment { .. } => Some("could not save VolumeAttachment"),
            Self::ReleaseAttachment(_) => Some("could not mark as detached"),
            _ => None,
        }
    }

    /// Whether it is the write that was refused.
    fn is_of(&self, refused: &Refusal) -> bool {
        self.what() == Some(refused.what)
    }
}

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let facts = &*snapshot.facts;
    let mut why = Why::default();
    let mut planned = Vec::new();
    let mut wishes = Vec::new();
    for case in &snapshot.attachments {
        let part = decide_attachment(case, facts, now);
        planned.push((case.attachment.meta.name.as_str(), part.writes));
        wishes.extend(part.call.map(|Due { at, is_repeated, request }| Wish { case, at, is_repeated, request }));
        why.attachments.push((case.attachment.meta.name.clone(), part.reason));
    }
    // What a call has achieved is not held up by hundreds that have yet to be called for.
    let (ended, others) = once_per_volume(planned).into_iter().partition(|(_, writes)| writes.iter().any(ends));
    let (last, workers) = (&snapshot.written_up_to, facts.workers);
    let (mut writes, ended) = share(ended, last.ended.as_deref(), workers);
    let (more, others) = share(others, last.others.as_deref(), workers);
    let written_up_to = UpTo { ended, others };
    writes.extend(more);
    writes.extend(snapshot.unnamed.iter().filter_map(|volume| release(volume, facts)));
    let Choice { calls, turns, wake_at } = choose(snapshot, wishes, now);
    // What is left for the next round does not wait until a write of this one may be tried again.
    let wake_at = if written_up_to == UpTo::default() { wake_at } else { Some(now) };
    (why.turns, why.written_up_to) = (turns, written_up_to);
    // Side by side: a room was taken for each call, and one in trouble must not keep the others from theirs.
    Decision { wake_at, ..Decision::together(calls.into_iter().chain(writes).collect::<Vec<_>>(), why) }
}

/// What attachments need to have written, by their names.
type Planned<'a> = Vec<(&'a str, Vec<Action>)>;

/// What all attachments of a volume need is done once, for all of them.
fn once_per_volume(mut planned: Planned<'_>) -> Planned<'_> {
    let mut protected: BTreeMap<String, Vec<Waiting>> = BTreeMap::new();
    for action in planned.iter().flat_map(|(_, writes)| writes) {
        if let Action::ProtectVolume { volume, attachments } = action {
            protected.entry(volume.uid.clone()).or_default().extend(attachments.iter().cloned());
        }
    }
    let mut read = BTreeSet::new();
    for (_, writes) in &mut planned {
        writes.retain_mut(|action| match action {
            Action::ProtectVolume { volume, attachments } => match protected.remove(&volume.uid) {
                Some(all) => {
                    *attachments = all;
                    true
                }
                None => false,
            },
            Action::RefreshVolume(name) => read.insert(name.clone()),
            _ => true,
        });
    }
    planned.retain(|(_, writes)| !writes.is_empty());
    planned
}

/// Whether it shows what a call has achieved.
fn ends(action: &Action) -> bool {
    matches!(action, Action::SaveAttached { .. } | Action::ReleaseAttachment(_) | Action::SaveDetached(_))
}

/// The writes of one round, for as many attachments as there are workers: the next calls begin when the slowest is answered.
/// It begins after the last one of the round before, and gives its own where some are left. So all have their turn before one
/// has its second, and those that are refused keep none out.
fn share(planned: Planned<'_>, after: Option<&str>, workers: usize) -> (Vec<Action>, Option<String>) {
    let is_ahead = |name: &str| after.is_none_or(|last| name > last);
    let begin = planned.iter().position(|(name, _)| is_ahead(name)).unwrap_or(0);
    let mut ahead = planned.into_iter().skip(begin);
    let now: Planned<'_> = ahead.by_ref().take(workers.max(1)).collect();
    let last = now.last().map(|(name, _)| (*name).to_owned());
    let up_to = last.filter(|_| ahead.next().is_some());
    (now.into_iter().flat_map(|(_, writes)| writes).collect(), up_to)
}

/// What one attachment needs.
struct Part {
    writes: Vec<Action>,
    call: Option<Due>,
    reason: Reason,
}

/// A driver call, and when it may start.
struct Due {
    at: Timestamp,
    /// Whether it was tried before.
    is_repeated: bool,
    request: Request,
}

impl Part {
    fn rest(reason: Reason) -> Self {
        Self { writes: Vec::new(), call: None, reason }
    }

    fn write(action: Action) -> Self {
        Self { writes: vec![action], ..Self::rest(Reason::Writing) }
    }

    fn read(action: Action) -> Self {
        Self { writes: vec![action], ..Self::rest(Reason::Unknown) }
    }
}

/// A driver call that an attachment needs, and when it may start.
struct Wish<'a> {
    case: &'a Case,
    at: Timestamp,
    is_repeated: bool,
    request: Request,
}

impl Wish<'_> {
    fn action(self) -> Action {
        Action::Call {
            attachment: self.case.attachment.meta.clone(),
            secret: self.case.secret(),
            request: self.request,
        }
    }
}

#[derive(Default)]
struct Choice {
    calls: Vec<Action>,
    turns: Vec<(Kind, String)>,
    wake_at: Option<Timestamp>,
}

/// Which calls begin, of those that have waited longest first: one at a time per handle, or per handle and node of a volume
/// for many nodes, but no attach before the detach that has to go first. The end of one that is under way comes back here,
/// and so does a turn.
fn choose(snapshot: &Snapshot, wishes: Vec<Wish<'_>>, now: Timestamp) -> Choice {
    let mut choice = Choice::default();
    let is_shared = snapshot.attachments.iter().all(|case| case.is_for_many_nodes(&snapshot.facts));
    if !is_shared && !snapshot.calling.is_empty() {
        return choice;
    }
    let leaves = Leaves::of(&wishes, now);
    let may_begin =
        |wish: &Wish<'_>| !leaves.come_before(&wish.request) && !snapshot.calling.contains(wish.request.node_id());
    let (mut due, later): (Vec<_>, Vec<_>) = wishes.into_iter().filter(may_begin).partition(|wish| wish.at <= now);
    // Who was never tried goes before those that failed, else one that fails quickly keeps the others out for ever.
    due.sort_by_key(|wish| (wish.is_repeated, wish.at));
    let (mut room, mut busy) = (snapshot.room, BTreeSet::new());
    for wish in due {
        let kind = wish.request.kind();
        if busy.contains(wish.request.node_id()) {
            continue;
        }
        // Where one call at a time is made it is the volume that stands in line, whichever attachment it is for by then.
        let (called, uid) = match is_shared {
            true => (wish.case.called, wish.case.attachment.meta.uid.as_str()),
            false => (snapshot.called, ""),
        };
        if called == Some(kind) || room.take(kind) {
            busy.insert(wish.request.node_id().to_owned());
            choice.calls.push(wish.action());
            if !is_shared {
                choice.turns.clear();
                return choice;
            }
        } else if is_shared || choice.turns.iter().all(|(waiting, _)| *waiting != kind) {
            choice.turns.push((kind, uid.to_owned()));
        }
    }
    choice.wake_at = later.iter().map(|wish| wish.at).min();
    choice
}

/// The nodes that the volume has to leave.
struct Leaves {
    node_ids: BTreeSet<String>,
    is_any_due: bool,
}

impl Leaves {
    fn of(wishes: &[Wish<'_>], now: Timestamp) -> Self {
        let leaving = || wishes.iter().filter(|wish| wish.request.kind() == Kind::Unpublish);
        Self {
            node_ids: leaving().map(|wish| wish.request.node_id().to_owned()).collect(),
            is_any_due: leaving().any(|wish| wish.at <= now),
        }
    }

    /// On the same node the detach would undo the attach. From another one a volume for one node has to go first, unless
    /// the driver fails to let it go: then it is the driver that says whether it can come here.
    fn come_before(&self, request: &Request) -> bool {
        match request {
            Request::Publish(request) => {
                self.node_ids.contains(&request.node_id) || self.is_any_due && !request::is_for_many_nodes(request)
            }
            Request::Unpublish(_) => false,
        }
    }
}

/// Whether a call that was decided on is still right by what a fresh read shows.
pub fn is_right(
    request: &Request,
    decided: &Meta,
    fresh: &VolumeAttachment,
    is_doubted: bool,
    finalizer: &str,
) -> bool {
    let is_kept = fresh.meta.has_finalizer(finalizer) || is_doubted && request.kind() == Kind::Unpublish;
    let is_over = match request.kind() {
        // One that is doubted is published again.
        Kind::Publish => fresh.status.attached && !is_doubted || fresh.node_id() != Some(request.node_id()),
        // Whatever the driver lists: what a pod may have mounted is not taken from it.
        Kind::Unpublish => fresh.status.attached && !fresh.meta.is_deleting(),
    };
    is_kept && !is_over && fresh.meta.is_deleting() == decided.is_deleting()
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
    if case.calling {
        return Part::rest(Reason::Calling);
    }
    if let Source::Unknown(volume) = &case.source {
        return Part::read(Action::RefreshVolume(volume.clone()));
    }
    let step = if attachment.meta.is_deleting() { detach(case, facts, now) } else { attach(case, facts, now) };
    let mut part = step.unwrap_or_else(|problem| blocked(case, problem, now));
    let is_planned = |refused: &&Refusal| part.writes.iter().any(|write| write.is_of(refused));
    if let Some(refused) = case.refused.as_ref().filter(is_planned) {
        part.writes.extend(tell(case, refused.text.clone(), now));
    }
    part
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
        let attachments = vec![Waiting::new(&attachment.meta)];
        return Ok(Part::write(Action::ProtectVolume { volume: volume.meta.clone(), attachments }));
    }
    let marked = attachment.meta.has_finalizer(&facts.finalizer);
    match attachment.node_id() {
        Some(recorded) if marked && recorded == request.node_id => {
            Ok(wait_or_call(case, Request::Publish(request), &case.publish, now))
        }
        // The node has a new id, and the volume may be published under the old one: that has to end first. Not where it is
        // attached and only doubted: the two ids may be one machine that has it mounted.
        Some(_) if marked && !attachment.status.attached && !has_left(&case.unpublish) => unpublish(case, facts, now),
        _ => {
            let (attachment, node_id) = (attachment.meta.clone(), request.node_id);
            Ok(Part::write(Action::MarkAttachment { attachment, node_id }))
        }
    }
}

fn detach(case: &Case, facts: &Facts, now: Timestamp) -> Result<Part, Problem> {
    let meta = &case.attachment.meta;
    let is_done = [&case.unpublish, &case.unpublish_by_new].into_iter().flatten().any(|record| record.done().is_some());
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
    if let Some(new_id) = case.new_id().filter(|_| case.attachment.meta.is_deleting() && has_left(&case.unpublish)) {
        let request = ControllerUnpublishVolumeRequest { node_id: new_id.to_owned(), ..request };
        return Ok(wait_or_call(case, Request::Unpublish(request), &case.unpublish_by_new, now));
    }
    Ok(wait_or_call(case, Request::Unpublish(request), &case.unpublish, now))
}

/// Whether the volume is not published by the id that was asked for: it was let go, or the driver knows no such node.
fn has_left(unpublish: &Option<Record<PublishContext>>) -> bool {
    match unpublish.as_ref().map(|record| &record.state) {
        Some(State::Done(_)) => true,
        Some(State::Failed(failure)) => {
            matches!(code::from_name(&failure.code), Some(Code::NotFound | Code::InvalidArgument))
        }
        Some(State::Running | State::Uncertain(_)) | None => false,
    }
}

fn wait_or_call(case: &Case, request: Request, record: &Option<Record<PublishContext>>, now: Timestamp) -> Part {
    let trouble = record.as_ref().and_then(Trouble::of);
    let write =
        trouble.filter(|trouble| !shown(case).is_some_and(|shown| trouble.is_shown(&shown.message, shown.time)));
    let at = record.as_ref().map_or(now, |record| record.retry_at);
    let writes = write.map(|trouble| save(case, trouble)).into_iter().collect();
    let call = Some(Due { at, is_repeated: record.is_some(), request });
    Part { writes, call, reason: Reason::Waiting }
}

fn blocked(case: &Case, problem: Problem, now: Timestamp) -> Part {
    let writes = tell(case, problem.to_string(), now).into_iter().collect();
    Part { writes, ..Part::rest(Reason::Blocked(problem)) }
}

/// What is not of the driver's making is told once: only what it says counts, and not when.
fn tell(case: &Case, message: String, now: Timestamp) -> Option<Action> {
    let trouble = Trouble::new(message, now);
    let is_told = shown(case).is_some_and(|shown| shown.message == trouble.message);
    (!is_told).then(|| save(case, trouble))
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
