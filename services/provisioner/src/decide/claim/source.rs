//! A claim whose volume is filled: with what, and what must be done before the call.

use std::sync::Arc;

use jiff::Timestamp;
use tonic::Code;

use stowage_csi::code;
use stowage_model::claim::Claim;
use stowage_runtime::operation::State;

use super::{give_back, refuse};
use crate::decide::{Action, Decision, Why};
use crate::intent::{Intent, Source, SourceKind};
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
        Ok(Some(source)) => return Ok(intent.filled_from(Source { held: is_held(s, source.kind), ..source })),
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
    if s.is_unprotected {
        return Some(Decision::act([Action::Protect(source.clone())], Why::Unprotected));
    }
    // The record must not promise what the role does not allow.
    let unheld = (source.held && !is_held(s, source.kind)).then(|| Source { held: false, ..source.clone() })?;
    Some(Decision::act([Action::Record(Arc::new(intent.clone().filled_from(unheld)))], Why::Unrecorded))
}

/// As the original: where the role does not let snapshots be held, they are used without.
fn is_held(s: &ClaimSnapshot, kind: SourceKind) -> bool {
    kind == SourceKind::Claim || !s.is_protecting_forbidden
}

/// Whether a record that was found need not be asked about any more. A source that is held stays until the record is gone;
/// so where it went all the same, it was never held and nothing was called for. That the driver misses the source too is
/// asked for, because a finalizer can be taken away by hand, and is not enough alone: some drivers look at the source
/// before they look whether they have made the volume.
pub fn was_never_called(s: &ClaimSnapshot, intent: &Intent) -> bool {
    let was_to_be_held = intent.request.source.as_ref().is_some_and(|source| source.held);
    let is_missed = s.creation.as_ref().is_some_and(|record| match &record.state {
        State::Failed(failure) => code::from_name(&failure.code) == Some(Code::NotFound),
        _ => false,
    });
    was_to_be_held && s.is_source_gone && is_missed
}

/// Whether all that is left to do is to say what is wrong.
pub fn is_refused(decision: &Decision) -> bool {
    let only_says = decision.actions.iter().all(|action| matches!(action, Action::Tell(_)));
    only_says && matches!(decision.why, Why::Problem(_))
}
