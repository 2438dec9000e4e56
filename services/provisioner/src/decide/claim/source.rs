//! A claim whose volume is filled: with what, and what must be done before the call.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::claim::Claim;

use super::{give_back, refuse};
use crate::decide::{Action, Decision, Why};
use crate::intent::Intent;
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
    let source = intent.request.source.as_ref().filter(|_| s.is_unprotected)?;
    Some(Decision::act([Action::Protect(source.clone())], Why::Unprotected))
}

/// Whether all that is left to do is to say what is wrong.
pub fn is_refused(decision: &Decision) -> bool {
    let only_says = decision.actions.iter().all(|action| matches!(action, Action::Tell(_)));
    only_says && matches!(decision.why, Why::Problem(_))
}
