//! persistentvolume-expander: who makes a claim's volume grow.

use jiff::Timestamp;

use stowage_model::phase::ClaimPhase;
use stowage_model::{annotations, migration};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::ClaimSnapshot;

use super::{ClaimAction, Decision, Source, Why};

/// Growing is somebody else's work; people are told whose, and a volume whose plugin a driver has taken over is handed
/// to that driver's resizer.
pub fn decide(s: &ClaimSnapshot, now: Timestamp) -> Option<Decision<ClaimAction>> {
    let claim = &*s.claim;
    if !s.rules.controllers.expander || claim.status.phase != ClaimPhase::Bound {
        return None;
    }
    let View::Known(volume) = &s.named else { return None };
    if volume.spec.claim_ref.as_ref().is_none_or(|held| held.uid != claim.meta.uid) {
        return None;
    }
    let grown = claim.requested() > claim.status.capacity.storage.unwrap_or_default();
    let interrupted = volume.meta.annotation(annotations::PRE_RESIZE_CAPACITY).is_some();
    if !grown && !interrupted {
        return None;
    }
    let driver = migration::driver_of_source(volume);
    let who =
        driver.or_else(|| volume.spec.csi.as_ref().map(|csi| csi.driver.as_str())).unwrap_or("the volume's plugin");
    let text = format!("waiting for an external resizer of {who} to expand the claim to {}", claim.requested());
    let note = Note::normal("ExternalExpanding", text);
    let mut actions = Vec::new();
    if s.told.said(&Source::Expander, now) != Some(&note) {
        actions.push(ClaimAction::Tell(Source::Expander, note));
    }
    if let Some(resizer) = driver
        && claim.meta.annotation(annotations::STORAGE_RESIZER) != Some(resizer)
    {
        actions.push(ClaimAction::NameResizer { resizer });
    }
    Some(Decision::act(actions, Why::Expansion))
}
