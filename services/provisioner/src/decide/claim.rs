//! What must happen next to a claim and its record.
//!
//! One key covers both, so a claim and its record never have two calls under way. A record lives until its answer has
//! an owner: it is replayed with the very same request, then the volume gets its object, or is deleted again.

mod volume;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_csi::code::{self, Family, Outcome};
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;
use stowage_runtime::engine::Decision;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::told::Known;

use crate::calls::{NO_LEASE, NO_SECRET};
use crate::intent::{Intent, Made, SecretRef};
use crate::journal::Recorded;
use crate::ownership::{self, Ownership};
use crate::request::{self, Problem};
use crate::snapshot::ClaimSnapshot;

pub use volume::{decide_volume, is_ours as is_our_volume};

/// How long a request that the driver calls invalid waits before it is sent again unchanged.
pub const INFEASIBLE_DELAY: Duration = Duration::from_secs(300);

/// One write or the start of one driver call.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Say something about the claim or volume.
    Tell(Note),
    /// Make the intent durable.
    Record(Arc<Intent>),
    /// Start CreateVolume; `wanted` if a claim still waits for it.
    Create {
        intent: Arc<Intent>,
        wanted: bool,
    },
    /// Create the PersistentVolume.
    MakeVolume {
        intent: Arc<Intent>,
        made: Made,
    },
    /// Start DeleteVolume of a volume that has no owner.
    CleanUp {
        intent: Arc<Intent>,
        handle: String,
    },
    /// The record has done its work.
    Forget,
    /// A write got no answer: read the volume.
    ReadVolume(String),
    /// Start DeleteVolume of a released volume.
    Delete {
        volume: Arc<Volume>,
        handle: String,
        secret: DeletionSecret,
    },
    /// Delete the PersistentVolume.
    RemoveVolume(Arc<Volume>),
    AddFinalizer(Arc<Volume>),
    /// The volume is deleted: its object may go.
    RemoveFinalizer(Arc<Volume>),
    /// The volume is not ours to delete: its object may go whenever somebody deletes it.
    LetGo(Arc<Volume>),
    /// Write the journal's removals now: something must not happen before.
    FlushJournal,
    /// Wait before taking a claim that belongs to nobody.
    Bid,
    /// Start GetCapacity: a claim is not taken where its volume has no room.
    AskForRoom(Arc<Intent>),
    /// Take the claim for this node.
    Take(Arc<Claim>),
    /// Let the scheduler, or the other nodes, choose another node.
    Reschedule(Arc<Claim>),
}

/// Where the secret of a DeleteVolume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionSecret {
    None,
    At(SecretRef),
    /// The volume does not say; ask its class.
    FromClass,
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    NotOurs,
    Gone,
    Deleting,
    Bound,
    VolumeExists,
    /// No node was chosen yet.
    WaitsForConsumer,
    /// Another node's provisioner serves it, or none.
    OtherNode,
    /// It belongs to no node yet; ours tries to get it when its time has come.
    Bidding,
    /// There is no room on the chosen node, or the driver is not there.
    NoRoom,
    /// Somebody else fills volumes from such a source.
    WaitsForPopulator,
    Problem(Problem),
    /// The intent is not durable yet.
    Unrecorded,
    /// The class or the claim changed since a call that certainly made nothing.
    RequestChanged,
    Calling,
    CallDue,
    BacksOff,
    Made,
    /// The volume was made and nobody wants it any more.
    Unwanted,
    /// The volume was made, the claim is gone, but another object has it.
    OwnedBy(String),
    NothingMade,
    CleanedUp,
    UnknownVolume,
    InUse,
    Attached,
    Released,
    Deleted,
    FinalizerMissing,
    FinalizerLeft,
    /// The record must go first.
    Recorded,
}

pub type Step = Decision<Action, Why>;

/// What must happen to this claim, or to the record it left, next.
pub fn decide(s: &ClaimSnapshot<'_>, now: Timestamp) -> Step {
    if let View::Unknown = s.volume {
        let name = s.recorded.as_ref().map(|recorded| recorded.intent.volume.clone());
        let name = name.or_else(|| s.claim.as_ref().map(|claim| s.facts.volume_name(&claim.meta.uid)));
        return Decision::act(name.map(Action::ReadVolume).into_iter().collect::<Vec<_>>(), Why::UnknownVolume);
    }
    let running = is_running(s.creation.as_ref()) || is_running(s.cleanup.as_ref());
    match &s.recorded {
        _ if running => Decision::rest(Why::Calling),
        None => begin(s, now),
        Some(recorded) => settle(s, recorded, now),
    }
}

/// Whether the claim still waits for a volume to be made.
pub fn is_wanted(claim: &Claim) -> bool {
    !claim.meta.is_deleting() && !claim.names_volume()
}

/// Whether the claim asks this driver for its volume.
pub fn is_ours(claim: &Claim, driver: &str) -> bool {
    claim.storage_provisioner() == Some(driver)
}

fn is_running<R>(record: Option<&Record<R>>) -> bool {
    record.is_some_and(|record| matches!(record.state, State::Running))
}

/// Nothing is recorded: does the claim need a volume?
fn begin(s: &ClaimSnapshot<'_>, now: Timestamp) -> Step {
    let Some(claim) = &s.claim else { return Decision::rest(Why::Gone) };
    if !is_ours(claim, &s.facts.driver) {
        return Decision::rest(Why::NotOurs);
    }
    if claim.meta.is_deleting() {
        return Decision::rest(Why::Deleting);
    }
    if claim.names_volume() {
        return Decision::rest(Why::Bound);
    }
    if let View::Known(volume) = &s.volume {
        return match is_made_for(volume, &claim.meta.uid, &s.facts.driver) {
            true => Decision::rest(Why::VolumeExists),
            false => refuse(s, claim, Problem::UseName { volume: volume.meta.name.clone() }, now),
        };
    }
    match intent_now(s, claim, now) {
        Ok(intent) => Decision::act([Action::Record(Arc::new(intent))], Why::Unrecorded),
        Err(step) => *step,
    }
}

/// The intent as claim and class stand now, or what to do instead.
fn intent_now(s: &ClaimSnapshot<'_>, claim: &Arc<Claim>, now: Timestamp) -> Result<Intent, Box<Step>> {
    let Some(class) = &s.class else {
        return Err(refuse(s, claim, Problem::FindClass { class: claim.class_name().to_owned() }, now).into());
    };
    if class.waits_for_consumer() && claim.selected_node().is_none() {
        return Err(Decision::rest(Why::WaitsForConsumer).into());
    }
    if request::is_populated(claim) {
        return Err(wait_for_populator(s, claim, class, now).into());
    }
    let ownership = ownership::of(claim, class, s.facts);
    if ownership == Ownership::Others {
        return Err(Decision::rest(Why::OtherNode).into());
    }
    match request::build(claim, class, s.facts, &s.cluster) {
        Ok(intent) if ownership == Ownership::Open => Err(bid(s, claim, intent, now).into()),
        Ok(intent) => Ok(intent),
        // The scheduler chose from what it knew; the node or its driver has gone since.
        Err(problem @ Problem::FindNode { .. }) if class.waits_for_consumer() => {
            let mut step = refuse(s, claim, problem, now);
            step.wake_at = None;
            step.actions.push(Action::Reschedule(Arc::clone(claim)));
            Err(step.into())
        }
        Err(problem) => Err(refuse(s, claim, problem, now).into()),
    }
}

fn bid(s: &ClaimSnapshot<'_>, claim: &Arc<Claim>, intent: Intent, now: Timestamp) -> Step {
    match s.bid {
        None => Decision::act([Action::Bid], Why::Bidding),
        Some(bid) if bid.at > now => Decision::wait_until(bid.at, Why::Bidding),
        Some(_) => match s.room.as_ref().map(|record| &record.state) {
            None => Decision::act([Action::AskForRoom(Arc::new(intent))], Why::Bidding),
            Some(State::Running) => Decision::rest(Why::Calling),
            Some(State::Done(true)) => Decision::act([Action::Take(Arc::clone(claim))], Why::Bidding),
            // Not here, or not now: another node may be faster.
            Some(State::Done(false) | State::Failed(_) | State::Uncertain(_)) => {
                Decision::act([Action::Bid], Why::NoRoom)
            }
        },
    }
}

fn refuse(s: &ClaimSnapshot<'_>, claim: &Claim, problem: Problem, now: Timestamp) -> Step {
    let message = format!("cannot provision a volume for claim {}: {problem}", claim.meta.key());
    tell(&s.told, Note::warning("ProvisioningFailed", message), now, Why::Problem(problem))
}

fn wait_for_populator(s: &ClaimSnapshot<'_>, claim: &Claim, class: &StorageClass, now: Timestamp) -> Step {
    let source = claim.data_source().map(|source| format!("{} {:?}", source.kind, source.name)).unwrap_or_default();
    let message = format!("volume of class {:?} is left to an external populator of {source}", class.meta.name);
    tell(&s.told, Note::normal("Provisioning", message), now, Why::WaitsForPopulator)
}

/// Says it, unless people know it.
fn tell(told: &Known, note: Note, now: Timestamp, why: Why) -> Step {
    match told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell(note)], why),
    }
}

/// A record exists: bring it to its end.
fn settle(s: &ClaimSnapshot<'_>, recorded: &Recorded, now: Timestamp) -> Step {
    let intent = &recorded.intent;
    let made = s.creation.as_ref().and_then(|record| match &record.state {
        State::Done(made) => Some(made),
        _ => None,
    });
    let mut claim = s.claim.as_ref().filter(|claim| is_wanted(claim));
    if let View::Known(volume) = &s.volume {
        // Which claim the object names does not matter: a retained volume's is cleared or changed to use it again.
        let owns = match made {
            Some(made) => has_handle(volume, &made.handle, &s.facts.driver),
            None => is_our_volume(volume, &s.facts.driver),
        };
        if owns {
            return Decision::act([Action::Forget], Why::VolumeExists);
        }
        // The name is taken, so whatever was made under it cannot become this claim's.
        claim = None;
    }
    match (made, claim) {
        (Some(made), Some(_)) => {
            Decision::act([Action::MakeVolume { intent: Arc::clone(intent), made: made.clone() }], Why::Made)
        }
        (Some(made), None) => clean_up(s, intent, made, now),
        (None, Some(claim)) => create(s, recorded, claim, now),
        (None, None) if !recorded.maybe_made => Decision::act([Action::Forget], Why::NothingMade),
        // Only the same request sent again tells whether there is a volume, and which. A driver that will not say is
        // asked rarely, but for ever.
        (None, None) => {
            let refused = s.creation.as_ref().is_some_and(|record| match &record.state {
                State::Failed(failure) => failure.code != NO_SECRET && failure.code != NO_LEASE,
                _ => false,
            });
            let delay = if refused { s.facts.options.retry_interval_max } else { Duration::ZERO };
            call(s.creation.as_ref(), now, delay, || Action::Create { intent: Arc::clone(intent), wanted: false })
        }
    }
}

fn create(s: &ClaimSnapshot<'_>, recorded: &Recorded, claim: &Arc<Claim>, now: Timestamp) -> Step {
    let mut intent = Arc::clone(&recorded.intent);
    if !recorded.maybe_made {
        if is_out_of_room(s) && claim.selected_node().is_some() {
            return Decision::act([Action::Reschedule(Arc::clone(claim))], Why::NoRoom);
        }
        // Certainly nothing was made, so the request may follow the class and the claim.
        match intent_now(s, claim, now) {
            Ok(current) if current != *intent => intent = Arc::new(current),
            Ok(_) => {}
            Err(step) if matches!(step.why, Why::OtherNode | Why::WaitsForConsumer | Why::Bidding) => {
                return Decision::act([Action::Forget], Why::NothingMade);
            }
            Err(step) => return *step,
        }
        if intent != recorded.intent {
            return Decision::act([Action::Record(intent)], Why::RequestChanged);
        }
    }
    if !recorded.durable {
        return Decision::act([Action::Record(intent)], Why::Unrecorded);
    }
    let delay = match s.creation.as_ref().and_then(outcome_of) {
        Some(Outcome::Infeasible) => INFEASIBLE_DELAY,
        _ => Duration::ZERO,
    };
    call(s.creation.as_ref(), now, delay, || Action::Create { intent, wanted: true })
}

/// What the driver's last word on CreateVolume means.
fn outcome_of(record: &Record<Made>) -> Option<Outcome> {
    match &record.state {
        State::Failed(failure) => Some(code::outcome(Family::CreateVolume, code::from_name(&failure.code)?)),
        _ => None,
    }
}

/// Whether the driver had no room where the volume was to be, and another node could have.
fn is_out_of_room(s: &ClaimSnapshot<'_>) -> bool {
    let refused = s.creation.as_ref().and_then(outcome_of) == Some(Outcome::Reschedule);
    let chosen = s.facts.node.is_some() || s.class.as_ref().is_some_and(|class| class.waits_for_consumer());
    refused && chosen && s.facts.topology
}

fn clean_up(s: &ClaimSnapshot<'_>, intent: &Arc<Intent>, made: &Made, now: Timestamp) -> Step {
    if let Some(owner) = &s.owner {
        return Decision::act([Action::Forget], Why::OwnedBy(owner.clone()));
    }
    let done =
        s.cleanup.as_ref().is_some_and(|record| matches!(&record.state, State::Done(handle) if *handle == made.handle));
    if done {
        return Decision::act([Action::Forget], Why::CleanedUp);
    }
    let mut step = call(s.cleanup.as_ref(), now, Duration::ZERO, || Action::CleanUp {
        intent: Arc::clone(intent),
        handle: made.handle.clone(),
    });
    if !step.actions.is_empty() {
        step.why = Why::Unwanted;
    }
    step
}

/// Starts the call unless it has to back off, for at least `delay` since it ended.
fn call<R>(record: Option<&Record<R>>, now: Timestamp, delay: Duration, action: impl FnOnce() -> Action) -> Step {
    let due = record.map(|record| {
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        record.retry_at.max(record.since.checked_add(delay).unwrap_or(Timestamp::MAX))
    });
    match due {
        Some(due) if due > now => Decision::wait_until(due, Why::BacksOff),
        _ => Decision::act([action()], Why::CallDue),
    }
}

/// Whether the object stands for this volume of the driver.
pub fn has_handle(volume: &Volume, handle: &str, driver: &str) -> bool {
    volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver && csi.volume_handle == handle)
}

/// Whether the object is the one made for the claim by this driver.
fn is_made_for(volume: &Volume, claim_uid: &str, driver: &str) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|claim| claim.uid == claim_uid)
        && volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
}

#[cfg(test)]
mod tests;
