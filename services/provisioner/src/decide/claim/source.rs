//! A claim whose volume is filled: with what, and what must be done before the call.

use std::sync::Arc;

use jiff::Timestamp;
use tonic::Code;

use stowage_csi::code;
use stowage_model::claim::Claim;
use stowage_runtime::caller::NO_SECRET;
use stowage_runtime::events::Note;
use stowage_runtime::operation::State;

use super::{give_back, refuse};
use crate::decide::{Action, Decision, Why};
use crate::intent::{Intent, Source};
use crate::journal::{RECORD, Recorded};
use crate::ownership::Ownership;
use crate::request::Problem;
use crate::snapshot::ClaimSnapshot;
use crate::source::{self, Missing};

/// The intent with the source that the claim names, or what to do instead.
pub fn fill(
    s: &ClaimSnapshot,
    claim: &Arc<Claim>,
    ownership: Ownership,
    intent: Intent,
    now: Timestamp,
) -> Result<Intent, Box<Decision>> {
    let begun = s.recorded.as_ref().and_then(|recorded| recorded.intent.request.source.as_ref());
    let refuse = |source| refuse(s, claim, Problem::Fill { source }, now);
    let missing = match source::find(claim, &s.facts, s.source.as_ref(), begun, now) {
        Ok(None) => return Ok(intent),
        Ok(Some(source)) => return Ok(intent.filled_from(source)),
        Err(missing) => missing,
    };
    Err(Box::new(match missing {
        Missing::Problem(problem) => refuse(problem),
        Missing::Until(problem, at) => {
            let mut decision = refuse(problem);
            decision.wake_at = Some(decision.wake_at.map_or(at, |again_at| again_at.min(at)));
            decision
        }
        // The provisioner of the node that has the data takes it.
        Missing::Elsewhere(_) if ownership == Ownership::Open => Decision::rest(Why::OtherNode),
        Missing::Elsewhere(problem) => give_back(refuse(problem), claim),
        Missing::Look => match &s.source {
            Some(found) => Decision::act([Action::Look(found.origin.clone())], Why::Looking),
            None => Decision::rest(Why::Looking),
        },
        Missing::Looking => Decision::rest(Why::Looking),
    }))
}

/// A call from a source that may go would fail for good, and leave open what an earlier one made.
pub fn protect(s: &ClaimSnapshot, intent: &Intent) -> Option<Decision> {
    let source = intent.request.source.as_ref()?;
    s.is_unprotected.then(|| Decision::act([Action::Protect(source.clone())], Why::Unprotected))
}

/// So many times in a row has the driver to miss a source that is gone. Some look at the source before they look at the name
/// and may be wrong for a while; nobody is asked for ever for a call that was never made.
const MISSED: u32 = 4;

/// Whether the call that an earlier run recorded was never made: the source is held from before the first call until the record
/// is gone, so one that went, and that the driver misses too, went before. What this run has called for itself is not judged so:
/// our finalizer may have been taken away by others meanwhile.
pub fn was_never_called_for(s: &ClaimSnapshot, recorded: &Recorded) -> bool {
    let is_held = recorded.intent.request.source.as_ref().is_some_and(|source| !source.released);
    let is_missed = s.creation.as_ref().is_some_and(|record| match &record.state {
        State::Failed(failure) => code::from_name(&failure.code) == Some(Code::NotFound) && record.failures >= MISSED,
        State::Running | State::Done(_) | State::Uncertain(_) => false,
    });
    recorded.inherited && is_held && s.is_source_gone && is_missed
}

/// Nobody waits for the volume any more, and the driver may never tell whether it was made: some look at the source before
/// they look at the name, and a secret goes with its namespace. That holds no source that somebody deletes. The record goes
/// on: that the driver misses the source does not say that it has no volume, and our finalizer may have been taken away by
/// others.
pub fn release(s: &ClaimSnapshot, intent: &Intent, now: Timestamp) -> Option<Decision> {
    let source = intent.request.source.as_ref()?;
    let word = s.creation.as_ref().and_then(|record| match &record.state {
        State::Failed(failure) | State::Uncertain(failure) => Some(failure.code.as_str()),
        State::Running | State::Done(_) => None,
    })?;
    let is_missed = code::from_name(word) == Some(Code::NotFound);
    if !is_missed && word != NO_SECRET {
        return None;
    }
    if s.is_source_going && !source.released {
        let (note, intent) = (released(s, intent, source, word), Arc::new(intent.clone().without_hold()));
        return Some(Decision::act([Action::Release { intent, note }], Why::Unanswerable));
    }
    let note = unanswered(s, intent, source, word);
    let is_told = !s.is_source_gone || s.told.until(&(), &note, now).is_some();
    (!is_told).then(|| Decision::act([Action::Tell(note)], Why::Unanswerable))
}

fn released(s: &ClaimSnapshot, intent: &Intent, source: &Source, word: &str) -> Note {
    let message = format!(
        "{} is let go: whether driver {:?} has made volume {} from it for claim {}, which is gone, may never be told \
         ({word}); it is asked on, and what it finds is deleted",
        source.origin(),
        s.facts.driver,
        intent.volume,
        intent.claim.key(),
    );
    Note::warning("SourceReleased", message)
}

fn unanswered(s: &ClaimSnapshot, intent: &Intent, source: &Source, word: &str) -> Note {
    let message = format!(
        "whether driver {:?} has made volume {} is not known: {word}, and {} is gone; it is asked again every {} s. If it has \
         none, stop the provisioner, remove annotation {RECORD}{} of its Lease, and start it",
        s.facts.driver,
        intent.volume,
        source.origin(),
        s.facts.options.driver.retry.max.as_secs(),
        intent.claim.uid,
    );
    Note::warning("ProvisioningFailed", message)
}

/// Whether all that is left to do is to say what is wrong.
pub fn is_refused(decision: &Decision) -> bool {
    let only_says = decision.actions.iter().all(|action| matches!(action, Action::Tell(_)));
    only_says && matches!(decision.why, Why::Problem(_))
}
