//! A claim is kept while snapshots of it are made, and no longer: one that cannot be made keeps nothing.

use jiff::{SignedDuration, Timestamp};

use stowage_model::annotations;
use stowage_model::object::Projection;
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::creation::Step;
use super::{Action, Decision, Why, creation, is_bound_to};
use crate::projections::SourceClaim;
use crate::snapshot::{ClaimFacts, Single};
use crate::watches;

/// After so long people are told why a claim that they deleted is still there.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// What one snapshot has to do with its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The claim may go as far as this snapshot is concerned.
    None,
    /// If it is kept, it is kept: what must be known first is being read.
    Undecided,
    /// It is to be kept before anything is begun.
    Wanted,
    /// The driver may be reading the volume.
    Reading,
}

pub fn decide(facts: &ClaimFacts, now: Timestamp) -> Decision {
    let claim = &facts.claim;
    let needs: Vec<(&Option<Single>, Need)> =
        facts.snapshots.iter().map(|single| (single, need(single.as_ref(), claim))).collect();
    let protect = |keep| Action::ProtectClaim { target: Target::exact(&claim.meta), keep };
    let highest = needs.iter().map(|(_, need)| *need as u8).max().unwrap_or_default();
    if claim.is_protected() {
        if highest == Need::None as u8 {
            return Decision::act([protect(false)], Why::Unprotected);
        }
        return if claim.meta.is_deleting() { explain(facts, &needs, now) } else { Decision::rest(Why::Protected) };
    }
    // What is going keeps a claim that is protected, and never asks for protection: the snapshotter clears a content's status
    // on its way out, which then looks as if it were being made.
    let is_going = |single: &Option<Single>| single.as_ref().is_some_and(|single| single.snapshot.meta.is_deleting());
    let asks = |(single, need): &(&Option<Single>, Need)| *need as u8 >= Need::Wanted as u8 && !is_going(single);
    if !needs.iter().any(asks) || claim.meta.is_deleting() {
        return Decision::rest(Why::Unprotected);
    }
    Decision::act([protect(true)], Why::Protected)
}

fn need(single: Option<&Single>, claim: &SourceClaim) -> Need {
    let Some(single) = single else { return Need::Undecided };
    let snapshot = &single.snapshot;
    if snapshot.is_ready() || watches::open_source(snapshot).is_none() {
        return Need::None;
    }
    let content = match &single.content {
        View::Unknown => return Need::Undecided,
        View::Known(content) => content,
        View::Absent if snapshot.meta.is_deleting() => return Need::None,
        View::Absent => {
            return match creation::step(single) {
                Step::Unknown | Step::Look { .. } => Need::Undecided,
                Step::Broken(_) => Need::None,
                Step::Make(_) => Need::Wanted,
            };
        }
    };
    if !is_bound_to(content, &snapshot.meta) || content.spec.source.volume_handle.is_none() {
        return Need::None;
    }
    let status = content.status.as_ref();
    // Once it is made, only the driver's own copying may still need the volume.
    let is_made = status.is_some_and(|status| status.creation_time.is_some());
    if is_made && snapshot.meta.is_deleting() {
        return Need::None;
    }
    // The driver said no and is not being asked: whoever deletes the claim meanwhile does not wait for it to say yes.
    let refused = status.is_some_and(|status| status.error.is_some() && status.snapshot_handle.is_none());
    let is_asked = content.meta.annotation(annotations::SNAPSHOT_BEING_CREATED).is_some();
    if refused && !is_asked && claim.meta.is_deleting() { Need::None } else { Need::Reading }
}

/// Tells at the claim which snapshots keep it, and what to do.
fn explain(facts: &ClaimFacts, needs: &[(&Option<Single>, Need)], now: Timestamp) -> Decision {
    let since = facts.claim.meta.deletion_timestamp.unwrap_or(now);
    let late_at = since.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX);
    if now < late_at {
        return Decision::wait_until(late_at, Why::Protected);
    }
    let keeping = needs.iter().filter(|(_, need)| *need != Need::None).filter_map(|(single, _)| single.as_ref());
    let names: Vec<String> = keeping.map(|single| format!("{:?}", single.snapshot.meta.name)).collect();
    let message = format!(
        "the claim goes once its snapshots are made; these are not: {}. See their status.error, or delete them to let the claim \
         go",
        names.join(", ")
    );
    let note = Note::warning("SnapshotInProgress", message);
    match facts.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, Why::Protected),
        None => Decision::act([Action::Tell { about: facts.claim.reference(), note }], Why::Protected),
    }
}
