//! What must happen next to one content.
//!
//! A snapshot that is made at once costs one write, its status. The mark `being-created` of the original is written only
//! where a creation takes long, ends without a final answer, or is tried again: docs/decisions/0006 says why that is enough.

mod going;
mod wanted;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};

use stowage_runtime::engine;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Failure, Record, State};

use crate::calls::{Answer, Kind, is_answer};
use crate::content::Content;
use crate::request::{Planned, Problem};
use crate::snapshot::{Case, Snapshot};

/// A creation that takes longer is marked, so that an original in our place would not forget it.
const LONG: SignedDuration = SignedDuration::from_secs(5);

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Starts a driver call.
    Call {
        kind: Kind,
        content: Box<Content>,
        planned: Box<Planned>,
        looks: u32,
    },
    /// Says that a snapshot may be on its way.
    Mark(Content),
    /// Takes that back.
    Unmark(Content),
    SaveStatus {
        content: Box<Content>,
        answer: Box<Answer>,
    },
    SaveError {
        content: Box<Content>,
        error: Trouble,
    },
    /// The snapshot is deleted.
    ClearStatus(Content),
    /// Takes our finalizer off.
    Release(Content),
    Tell {
        content: Box<Content>,
        note: Note,
    },
    Refresh(Content),
}

/// An error as a content's status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub message: String,
    pub time: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// There is no such content of ours.
    Gone,
    /// A write of ours got no answer; one fresh read comes first.
    Unknown,
    /// A driver call for it is under way.
    Calling,
    Ready,
    /// The snapshot-controller has not put the finalizer on it yet.
    AwaitingFinalizer,
    /// The snapshot-controller has not said yet which snapshot of the group it is.
    AwaitingGroup,
    /// Classes of its kind are not listed yet.
    AwaitingClasses,
    /// Ready for a driver call, now or later.
    Waiting,
    /// The snapshot is not ready; it is looked at again.
    NotReady,
    /// A write has to come first.
    Writing,
    /// The driver cannot be asked.
    Blocked(Problem),
    /// Nothing of ours holds it.
    Released,
}

pub type Decision = engine::Decision<Action, Why>;

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let Some(case) = &snapshot.case else { return Decision::rest(Why::Gone) };
    if case.is_unknown {
        return Decision::act([Action::Refresh(case.content.clone())], Why::Unknown);
    }
    if case.is_calling() {
        return while_calling(case, now);
    }
    match case.content.is_going() {
        true => going::decide(case, &snapshot.facts, now),
        false => wanted::decide(case, &snapshot.facts, now),
    }
}

fn while_calling(case: &Case, now: Timestamp) -> Decision {
    let called_at = case.doubt.and_then(|doubt| doubt.called_at);
    match called_at.filter(|_| case.content.handle().is_none() && !case.content.is_marked()) {
        None => Decision::wait_half_way(Why::Calling),
        Some(at) => match at.saturating_add(LONG).unwrap_or(Timestamp::MAX) {
            long if long <= now => Decision::act([Action::Mark(case.content.clone())], Why::Calling),
            long => Decision { is_half_way: true, ..Decision::wait_until(long, Why::Calling) },
        },
    }
}

impl Case {
    /// Whether the driver's last word is that it made nothing.
    fn is_settled(&self) -> bool {
        let answered = |record: &Record<Answer>| matches!(&record.state, State::Failed(failure) if is_answer(failure));
        self.doubt.is_none() && self.create.as_ref().is_some_and(answered)
    }

    /// Whether there may be a snapshot whose handle is not recorded.
    fn may_be_made(&self) -> bool {
        !self.is_settled() && (self.doubt.is_some() || self.content.is_marked())
    }

    /// The event about it, unless people know it already; then until when.
    fn tell(&self, note: Note, now: Timestamp) -> Result<Action, Timestamp> {
        match self.known.until(&(), &note, now) {
            Some(again_at) => Err(again_at),
            None => Ok(Action::Tell { content: Box::new(self.content.clone()), note }),
        }
    }
}

fn failure(record: &Option<Record<Answer>>) -> Option<(&Failure, Timestamp)> {
    match record {
        Some(Record { state: State::Failed(failure) | State::Uncertain(failure), since, .. }) => {
            Some((failure, *since))
        }
        _ => None,
    }
}

fn done(record: &Option<Record<Answer>>) -> Option<(&Answer, Timestamp)> {
    match record {
        Some(Record { state: State::Done(answer), since, .. }) => Some((answer, *since)),
        _ => None,
    }
}

fn retry_at(record: &Option<Record<Answer>>, now: Timestamp) -> Timestamp {
    record.as_ref().map_or(now, |record| record.retry_at)
}

fn write(action: Action) -> Decision {
    Decision::act([action], Why::Writing)
}

fn call(case: &Case, kind: Kind, planned: Planned, looks: u32) -> Decision {
    let content = Box::new(case.content.clone());
    Decision::act([Action::Call { kind, content, planned: Box::new(planned), looks }], Why::Waiting)
}
