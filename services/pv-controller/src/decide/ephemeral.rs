//! ephemeral-volume: claims made for a pod's volumes, which go with the pod; and recyclers that nobody waits for.

use jiff::Timestamp;

use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::{ClaimSnapshot, Owner, PodSnapshot};

use super::{ClaimAction, Decision, PodAction, Source, Why};

/// Where nothing else collects garbage, a claim goes with the pod that it was made for.
pub fn collect(s: &ClaimSnapshot) -> Option<Decision<ClaimAction>> {
    let collects = s.rules.controllers.ephemeral && s.rules.collect;
    let is_left = collects && s.owner == Owner::Gone && !s.claim.meta.is_deleting();
    is_left.then(|| Decision::act([ClaimAction::Collect], Why::Ephemeral))
}

/// What must happen for this pod next, and why.
pub fn decide(s: &PodSnapshot, now: Timestamp) -> Decision<PodAction> {
    let pod = &*s.pod;
    if s.rules.controllers.binder && s.is_stray_recycler {
        return Decision::act([PodAction::RemoveRecycler], Why::Reclaim);
    }
    if !s.rules.controllers.ephemeral || pod.meta.is_deleting() {
        return Decision::rest(Why::Settled);
    }
    for (volume, key, claim) in &s.ephemeral {
        match claim {
            View::Unknown => return Decision::rest(Why::Unknown),
            View::Absent => {
                let create = PodAction::CreateClaim { volume: volume.clone(), claim: key.clone() };
                return Decision::act([create], Why::Ephemeral);
            }
            View::Known(claim) if !claim.is_owned_by(pod) => {
                let text = format!(
                    "claim {key} of ephemeral volume {volume:?} exists and was not made for this pod: delete or rename one of them"
                );
                let note = Note::warning("FailedBinding", text);
                let told = s.told.said(&Source::Ephemeral, now) == Some(&note);
                return Decision::act(if told { vec![] } else { vec![PodAction::Tell(note)] }, Why::Ephemeral);
            }
            View::Known(_) => {}
        }
    }
    Decision::rest(Why::Settled)
}
