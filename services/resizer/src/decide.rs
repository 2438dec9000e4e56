//! What must happen next to one claim.
//!
//! To expand: the claim says so with the size aimed at, the driver is called, the volume gets its new size, then the claim
//! says that it is the node's turn, or has the size. To modify: the same with the class. Each write is guarded by the
//! version it was decided on, and a crash between any two finds its way by what the claim says. One call at a time per
//! claim: what a claim asks for in both ways is done one after the other.

mod modify;
mod resize;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use stowage_csi::Outcome;
use stowage_model::object::Meta;
use stowage_model::quantity::Quantity;
use stowage_runtime::engine;
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;

use crate::calls::{Answer, Kind, Planned, must_be_told, outcome};
use crate::change::Change;
use crate::projections::Claim;
use crate::request::Problem;
use crate::snapshot::{Case, Facts, Failed, Snapshot, Source, Topic};

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Writes the claim's status.
    Save {
        claim: Arc<Claim>,
        change: Change,
    },
    /// The last write about a call that went well, or that nobody wants any more, and the word about it.
    Finish {
        claim: Arc<Claim>,
        change: Change,
        kind: Kind,
        note: Note,
    },
    SaveVolume {
        volume: Meta,
        change: VolumeChange,
    },
    /// Starts a driver call; the claim is read afresh first where it was not written just now.
    Call {
        claim: Arc<Claim>,
        planned: Box<Planned>,
        in_doubt: bool,
        is_written: bool,
    },
    /// Has a call that waits for its turn go out of the line.
    StepAside {
        claim: Arc<Claim>,
        kind: Kind,
    },
    Tell {
        claim: Arc<Claim>,
        topic: Topic,
        note: Note,
    },
    /// Looks at the pods of the claim's namespace.
    Watch,
    RefreshClaim,
    RefreshVolume(String),
}

impl Action {
    /// What a write of an object is part of.
    pub fn written_for(&self) -> Option<Kind> {
        match self {
            Self::Save { change, .. } if change.modifying.is_some() => Some(Kind::Modify),
            Self::SaveVolume { change, .. } if change.class.is_some() => Some(Kind::Modify),
            Self::Save { .. } | Self::SaveVolume { .. } => Some(Kind::Expand),
            Self::Finish { kind, .. } => Some(*kind),
            Self::Call { .. } | Self::StepAside { .. } | Self::Tell { .. } => None,
            Self::Watch | Self::RefreshClaim | Self::RefreshVolume(_) => None,
        }
    }
}

/// Members that are `None` stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VolumeChange {
    pub capacity: Option<Quantity>,
    /// The claim's size before the expansion; the inner `None` removes it.
    pub before: Option<Option<Quantity>>,
    pub class: Option<String>,
}

/// Why, for either of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    pub resize: Reason,
    pub modify: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// There is no such claim of ours.
    Gone,
    /// A write of ours got no answer; one fresh read comes first.
    Unknown,
    /// The driver does not do it, or it is switched off.
    Unsupported,
    /// The claim has what it asks for.
    Settled,
    /// The node has to do its part.
    NodesTurn,
    /// A driver call for it is under way.
    Calling,
    /// Ready for a driver call, now or later.
    Waiting,
    /// Pods use the volume, and the driver does not expand it meanwhile.
    InUse,
    /// The class does not exist, or is not known to exist yet.
    AwaitingClass,
    /// A write has to come first.
    Writing,
    /// The driver cannot be asked.
    Blocked(Problem),
    /// The other of the two is looked at first.
    Later,
}

pub type Decision = engine::Decision<Action, Why>;

/// What one of the two needs.
struct Part {
    actions: Vec<Action>,
    wake_at: Option<Timestamp>,
    reason: Reason,
}

impl Part {
    fn act(actions: impl Into<Vec<Action>>, reason: Reason) -> Self {
        Self { actions: actions.into(), wake_at: None, reason }
    }

    fn rest(reason: Reason) -> Self {
        Self::act([], reason)
    }
}

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let rest = |reason: Reason| Why { resize: reason.clone(), modify: reason };
    let Some(case) = &snapshot.case else { return Decision::rest(rest(Reason::Gone)) };
    if case.is_unknown {
        return Decision::act([Action::RefreshClaim], rest(Reason::Unknown));
    }
    let volume = match &case.source {
        Source::Ours(volume) => volume,
        Source::Foreign => return Decision::rest(rest(Reason::Gone)),
        Source::Unknown => {
            let name = case.claim.spec.volume_name.clone();
            return Decision::act([Action::RefreshVolume(name)], rest(Reason::Unknown));
        }
    };
    let facts = &*snapshot.facts;
    let resize = resize::decide(case, volume, facts, now);
    if !resize.actions.is_empty() {
        let why = Why { resize: resize.reason, modify: Reason::Later };
        return Decision { wake_at: resize.wake_at, ..Decision::act(resize.actions, why) };
    }
    let modify = modify::decide(case, volume, facts, now);
    let is_half_way = modify.actions.is_empty() && case.is_calling();
    let wake_at = [resize.wake_at, modify.wake_at].into_iter().flatten().min();
    let why = Why { resize: resize.reason, modify: modify.reason };
    Decision { wake_at, is_half_way, ..Decision::act(modify.actions, why) }
}

impl Case {
    /// The event about it, unless people know it already; then until when.
    fn tell(&self, topic: Topic, note: Note, now: Timestamp) -> Result<Action, Timestamp> {
        match self.known.until(&topic, &note, now) {
            Some(again_at) => Err(again_at),
            None => Ok(Action::Tell { claim: Arc::clone(&self.claim), topic, note }),
        }
    }

    fn save(&self, change: Change) -> Action {
        Action::Save { claim: Arc::clone(&self.claim), change }
    }

    /// When a call that failed may be made again: one that the driver will refuse again, seldom.
    fn retry_at(&self, kind: Kind, failed: Failed<'_>, facts: &Facts, now: Timestamp) -> Timestamp {
        let record: Option<&Record<Answer>> = self.record(kind);
        let (since, retry_at) = record.map_or((now, now), |record| (record.since, record.retry_at));
        let is_slow = kind == Kind::Modify || facts.options.gates.recover_volume_expansion_failure;
        if !is_slow || outcome(kind, failed.failure) != Some(Outcome::Infeasible) {
            return retry_at;
        }
        let slow = SignedDuration::try_from(facts.options.driver.retry.max).unwrap_or(SignedDuration::MAX);
        retry_at.max(since.saturating_add(slow).unwrap_or(Timestamp::MAX))
    }

    /// The word about a failure, unless people know it or need not.
    fn tell_failure(&self, kind: Kind, failed: Failed<'_>, now: Timestamp) -> Option<Action> {
        let message = match failed.is_final {
            true => failed.failure.message.clone(),
            false => format!("{}; it may still be under way, and is followed up", failed.failure.message),
        };
        let note = Note::warning(kind.failed(), message);
        must_be_told(kind, failed.failure).then(|| self.tell(Topic::Failed(kind), note, now).ok()).flatten()
    }

    /// What stands in the way is in an object that can change, and its change wakes us.
    fn blocked(&self, kind: Kind, problem: Problem, now: Timestamp) -> Part {
        let note = Note::warning(kind.failed(), problem.to_string());
        match self.tell(Topic::Failed(kind), note, now) {
            Ok(tell) => Part::act([tell], Reason::Blocked(problem)),
            Err(until) => Part { wake_at: Some(until), ..Part::rest(Reason::Blocked(problem)) },
        }
    }
}
