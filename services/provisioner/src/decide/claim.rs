//! What must happen next to a claim and its record.
//!
//! One key covers both, so a claim and its record never have two calls under way. A record lives until its answer has
//! an owner: it is replayed with the very same request, then the volume gets its object, or is deleted again.

mod attributes;
mod source;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_csi::code::{self, Family, Outcome};
use stowage_model::annotations::MIGRATED_TO;
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;
use stowage_runtime::caller::{NO_LEASE, NO_SECRET};
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};

use super::{Action, Decision, Why, call, has_handle, is_our_volume, is_running, tell};
use crate::intent::{Intent, Made};
use crate::journal::Recorded;
use crate::migrated;
use crate::ownership::{self, Ownership};
use crate::request::{self, Problem};
use crate::snapshot::ClaimSnapshot;

/// How long a request that the driver calls invalid waits before it is sent again unchanged.
pub const INFEASIBLE_DELAY: Duration = Duration::from_secs(300);

/// What must happen to this claim, or to the record it left, next.
pub fn decide(s: &ClaimSnapshot, now: Timestamp) -> Decision {
    let name = match (&s.recorded, &s.claim) {
        (Some(recorded), _) => recorded.intent.volume.clone(),
        (None, Some(claim)) => s.facts.volume_name(&claim.meta.uid),
        (None, None) => return Decision::rest(Why::Gone),
    };
    if let View::Unknown = s.volume {
        return Decision::act([Action::ReadVolume(name)], Why::UnknownVolume);
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
    asked(claim).contains(&Some(driver))
}

/// The drivers that the claim asks for its volume: that of its class, and the one that took over from it.
pub fn asked(claim: &Claim) -> [Option<&str>; 2] {
    let provisioner = claim.storage_provisioner();
    [provisioner, claim.meta.annotation(MIGRATED_TO).filter(|driver| provisioner != Some(*driver))]
}

/// Nothing is recorded: does the claim need a volume?
fn begin(s: &ClaimSnapshot, now: Timestamp) -> Decision {
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
            // Every node sees it.
            false if !ownership::is_claimed(claim, &s.facts) => Decision::rest(Why::OtherNode),
            false => refuse(s, claim, Problem::UseName { volume: volume.meta.name.clone() }, now),
        };
    }
    match intent_now(s, claim, now) {
        Ok(intent) => Decision::act([Action::Record(Arc::new(intent))], Why::Unrecorded),
        Err(decision) => *decision,
    }
}

/// The intent as claim and class stand now, or what to do instead.
fn intent_now(s: &ClaimSnapshot, claim: &Arc<Claim>, now: Timestamp) -> Result<Intent, Box<Decision>> {
    let Some(class) = &s.class else {
        // Whether it is anybody's is not known without its class; of all nodes only the selected one tells.
        if !ownership::is_claimed(claim, &s.facts) {
            return Err(Decision::rest(Why::OtherNode).into());
        }
        return Err(refuse(s, claim, Problem::FindClass { class: claim.class_name().to_owned() }, now).into());
    };
    if class.waits_for_consumer() && claim.selected_node().is_none() {
        return Err(Decision::rest(Why::WaitsForConsumer).into());
    }
    let ownership = ownership::of(claim, class, &s.facts);
    if ownership == Ownership::Others {
        return Err(Decision::rest(Why::OtherNode).into());
    }
    if request::is_populated(claim) {
        // One tells it: a claim of nobody would hear it from every node.
        return Err(Box::new(match ownership {
            Ownership::Ours => wait_for_populator(s, claim, class, now),
            _ => Decision::rest(Why::WaitsForPopulator),
        }));
    }
    let built = intent_of(s, claim, class, ownership, now);
    if ownership == Ownership::Open {
        return Err(match built {
            Ok(intent) => bid(s, claim, Some(intent), now).into(),
            // As the original: whoever takes it tells, and not every node.
            Err(decision) if matches!(decision.why, Why::Problem(_)) => bid(s, claim, None, now).into(),
            Err(decision) => decision,
        });
    }
    built
}

fn intent_of(
    s: &ClaimSnapshot,
    claim: &Arc<Claim>,
    class: &StorageClass,
    ownership: Ownership,
    now: Timestamp,
) -> Result<Intent, Box<Decision>> {
    match request::build(claim, class, &s.facts, &s.cluster) {
        Ok(intent) => {
            let intent = attributes::add(s, claim, intent, now)?;
            source::fill(s, claim, ownership, intent, now)
        }
        // The scheduler chose from what it knew, and the node has gone since. A driver that is not registered there is
        // most often about to register again.
        Err(problem @ Problem::FindNode { .. }) if class.waits_for_consumer() => {
            Err(give_back(refuse(s, claim, problem, now), claim).into())
        }
        Err(problem) => Err(refuse(s, claim, problem, now).into()),
    }
}

/// The same, and whoever chooses nodes chooses again.
fn give_back(mut decision: Decision, claim: &Arc<Claim>) -> Decision {
    decision.wake_at = None;
    decision.actions.push(Action::Reschedule(Arc::clone(claim)));
    decision
}

/// Without an intent there is nothing to have room for.
fn bid(s: &ClaimSnapshot, claim: &Arc<Claim>, intent: Option<Intent>, now: Timestamp) -> Decision {
    let take = || Decision::act([Action::Take(Arc::clone(claim))], Why::Bidding);
    match (s.bid, intent) {
        (None, _) => Decision::act([Action::Bid], Why::Bidding),
        (Some(bid), _) if bid.at > now => Decision::wait_until(bid.at, Why::Bidding),
        (Some(_), None) => take(),
        (Some(_), Some(intent)) => match s.room.as_ref().map(|record| &record.state) {
            None => Decision::act([Action::AskForRoom(Arc::new(intent))], Why::Bidding),
            Some(State::Running) => Decision::rest(Why::Calling),
            Some(State::Done(true)) => take(),
            // Not here, or not now: another node may be faster.
            Some(State::Done(false) | State::Failed(_) | State::Uncertain(_)) => {
                Decision::act([Action::Bid], Why::NoRoom)
            }
        },
    }
}

fn refuse(s: &ClaimSnapshot, claim: &Claim, problem: Problem, now: Timestamp) -> Decision {
    let message = format!("cannot provision a volume for claim {}: {problem}", claim.meta.key());
    tell(&s.told, Note::warning("ProvisioningFailed", message), now, Why::Problem(problem))
}

fn wait_for_populator(s: &ClaimSnapshot, claim: &Claim, class: &StorageClass, now: Timestamp) -> Decision {
    let source = claim.data_source().map(|source| format!("{} {:?}", source.kind, source.name)).unwrap_or_default();
    let message = format!("volume of class {:?} is left to an external populator of {source}", class.meta.name);
    tell(&s.told, Note::normal("Provisioning", message), now, Why::WaitsForPopulator)
}

/// A record exists: bring it to its end.
fn settle(s: &ClaimSnapshot, recorded: &Recorded, now: Timestamp) -> Decision {
    let intent = &recorded.intent;
    let made = s.creation.as_ref().and_then(|record| match &record.state {
        State::Done(made) => Some(made),
        _ => None,
    });
    let mut claim = s.claim.as_ref().filter(|claim| is_wanted(claim) && ownership::is_claimed(claim, &s.facts));
    if let View::Known(volume) = &s.volume {
        // Which claim the object names does not matter: a retained volume's is cleared or changed to use it again.
        let owns = match made {
            // An in-tree source does not tell all that the driver's handle does.
            Some(made) => {
                has_handle(volume, &made.handle, &s.facts.driver) || migrated::is_ours(volume, &s.facts.driver)
            }
            None => is_our_volume(volume, &s.facts.driver),
        };
        // What is on another node says nothing of what was made, or may have been, on this one.
        if owns && ownership::may_be_here(volume, &s.facts) {
            return Decision::act([Action::Forget], Why::VolumeExists);
        }
        // The name is taken, so whatever was made under it cannot become this claim's.
        claim = None;
    }
    match (made, claim) {
        (Some(made), Some(_)) => {
            Decision::act([Action::MakeVolume { intent: Arc::clone(intent), made: made.clone() }], Why::Made)
        }
        (Some(made), None) => clean_up(s, recorded, made, now),
        (None, Some(claim)) => create(s, recorded, claim, now),
        (None, None) if !recorded.maybe_made || source::was_never_called_for(s, recorded) => {
            Decision::act([Action::Forget], Why::NothingMade)
        }
        // Only the same request sent again tells whether there is a volume, and which. A driver that will not say is
        // asked rarely, but for ever.
        (None, None) => {
            if !recorded.durable {
                return Decision::act([Action::Record(Arc::clone(intent))], Why::Unrecorded);
            }
            if let Some(decision) = source::release(s, intent, now).or_else(|| source::protect(s, intent)) {
                return decision;
            }
            let refused = s.creation.as_ref().is_some_and(|record| match &record.state {
                State::Failed(failure) => failure.code != NO_SECRET && failure.code != NO_LEASE,
                _ => false,
            });
            let delay = if refused { s.facts.options.driver.retry.max } else { Duration::ZERO };
            call(s.creation.as_ref(), now, delay, || Action::Create { intent: Arc::clone(intent), wanted: false })
        }
    }
}

fn create(s: &ClaimSnapshot, recorded: &Recorded, claim: &Arc<Claim>, now: Timestamp) -> Decision {
    let mut intent = Arc::clone(&recorded.intent);
    let may_go = !recorded.maybe_made || is_followed_up_here(s, now);
    if may_go && is_out_of_room(s) && claim.selected_node().is_some() {
        return Decision::act([Action::Reschedule(Arc::clone(claim))], Why::NoRoom);
    }
    if !recorded.maybe_made {
        // Certainly nothing was made, so the request may follow the class and the claim.
        match intent_now(s, claim, now) {
            Ok(current) if current != *intent => intent = Arc::new(current),
            Ok(_) => {}
            Err(decision) if matches!(decision.why, Why::OtherNode | Why::WaitsForConsumer | Why::Bidding) => {
                return Decision::act([Action::Forget], Why::NothingMade);
            }
            // A record would hold the source, and nothing comes of it as things stand.
            Err(decision) if intent.request.source.is_some() && source::is_refused(&decision) => {
                return Decision::act([Action::Forget], Why::NothingMade);
            }
            Err(decision) => return *decision,
        }
        // Where each node is a place, every one that comes or goes changes the request: that is no reason not to back off.
        if !intent.asks_the_same_besides_places(&recorded.intent) {
            return Decision::act([Action::Record(intent)], Why::RequestChanged);
        }
    }
    let is_recorded = recorded.durable && intent == recorded.intent;
    let delay = match s.creation.as_ref().and_then(outcome_of) {
        Some(Outcome::Infeasible) => INFEASIBLE_DELAY,
        _ => Duration::ZERO,
    };
    if !is_recorded {
        // Not before its call is due: until then nothing can have been made that a record would have to tell of.
        let mut decision = call(s.creation.as_ref(), now, delay, || Action::Record(intent));
        if !decision.actions.is_empty() {
            decision.why = Why::Unrecorded;
        }
        return decision;
    }
    if let Some(decision) = source::protect(s, &intent) {
        return decision;
    }
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
fn is_out_of_room(s: &ClaimSnapshot) -> bool {
    let refused = s.creation.as_ref().and_then(outcome_of) == Some(Outcome::Reschedule);
    let chosen = s.facts.node.is_some() || s.class.as_ref().is_some_and(|class| class.waits_for_consumer());
    refused && chosen && (s.facts.topology || s.facts.library)
}

/// Whether the claim may go to another node while it is not known what an earlier call made here. In node deployment the
/// other node has a driver, a journal and a record of its own: ours is asked about until it is known, and what is found is
/// deleted. One journal for all nodes has one request for each claim, and only that request finds the volume.
///
/// A claim that comes back after a while is tried again.
fn is_followed_up_here(s: &ClaimSnapshot, now: Timestamp) -> bool {
    s.facts.node.is_some() && s.creation.as_ref().is_some_and(|record| record.retry_at > now)
}

fn clean_up(s: &ClaimSnapshot, recorded: &Recorded, made: &Made, now: Timestamp) -> Decision {
    let intent = &recorded.intent;
    if let Some(owner) = &s.owner {
        return Decision::act([Action::Forget], Why::OwnedBy(owner.clone()));
    }
    // A record that is found may be old: since then the volume may have had an object, and that be deleted to keep the data. A claim
    // that is there and does not name it never had it.
    let may_be_used = s.claim.as_ref().is_none_or(|claim| claim.spec.volume_name == intent.volume);
    if recorded.inherited && may_be_used && !intent.deletes() {
        let (intent, made) = (Arc::clone(intent), made.clone());
        return Decision::act([Action::Keep { intent, made }], Why::Retained);
    }
    let done =
        s.cleanup.as_ref().is_some_and(|record| matches!(&record.state, State::Done(handle) if *handle == made.handle));
    if done {
        return Decision::act([Action::Forget], Why::CleanedUp);
    }
    let mut decision = call(s.cleanup.as_ref(), now, Duration::ZERO, || Action::CleanUp {
        intent: Arc::clone(intent),
        handle: made.handle.clone(),
    });
    if !decision.actions.is_empty() {
        decision.why = Why::Unwanted;
    }
    decision
}

/// Whether the object is the one made for the claim by this driver.
fn is_made_for(volume: &Volume, claim_uid: &str, driver: &str) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|claim| claim.uid == claim_uid)
        && match &volume.spec.csi {
            Some(csi) => csi.driver == driver,
            None => volume.provisioned_by() == Some(driver) || migrated::is_ours(volume, driver),
        }
}
