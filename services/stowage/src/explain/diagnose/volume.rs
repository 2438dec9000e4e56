//! The life of a PersistentVolume.

use stowage_model::Volume;
use stowage_model::object::Projection as _;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};

use super::{Steps, View, deleting, kubectl_claim};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Story, Who};

pub fn story(view: &View<'_>, volume: &Volume) -> Story {
    let meta = &volume.meta;
    let changed = volume.status.last_phase_transition_time;
    let phase = volume.status.phase;
    let mut steps = Steps::new();
    steps.add("volume created", true, meta.creation_timestamp);
    let is_bound = phase == VolumePhase::Bound;
    let was_bound = is_bound || matches!(phase, VolumePhase::Released | VolumePhase::Failed);
    steps.add("bound to a claim", was_bound, changed);
    let causes = if meta.is_deleting() {
        steps.add("deleted", false, meta.deletion_timestamp);
        deleting::volume(view, volume)
    } else if was_bound && !is_bound {
        steps.add("released by its claim", true, changed);
        steps.add(format!("reclaimed ({})", volume.spec.reclaim_policy), false, changed);
        reclaim(view, volume)
    } else {
        waits(view, volume)
    };
    Story {
        kind: Volume::KIND,
        key: meta.key(),
        phase: if meta.is_deleting() { "Terminating".to_owned() } else { phase.to_string() },
        since: meta.deletion_timestamp.or(changed).or(meta.creation_timestamp),
        steps: steps.0,
        causes,
    }
}

/// Its claim is gone.
fn reclaim(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let name = &volume.meta.name;
    let of = volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string()).unwrap_or_default();
    if volume.spec.reclaim_policy == ReclaimPolicy::Retain {
        let why = format!(
            "its claim {of} is gone, and spec.persistentVolumeReclaimPolicy Retain keeps it for somebody to look at the data"
        );
        let way_out = format!(
            "to offer it again: `kubectl patch pv {name} --type=json -p \
             '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'`; to give it up: `kubectl delete pv {name}` (the driver keeps the \
             data)"
        );
        return vec![Cause::waiting("released-retain", Who::user(), why, way_out)];
    }
    deleting::delete_in_driver(view, volume)
}

/// It is free, reserved or bound.
fn waits(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let Some(reference) = &volume.spec.claim_ref else { return Vec::new() };
    let key = reference.key();
    match view.g.claims.look(&key) {
        // One that is bound and whose claim is gone is about to be released.
        Look::Absent
            if volume.status.phase == VolumePhase::Bound
                && !matches!(view.g.wanted, super::Wanted::All { namespace: Some(_) }) =>
        {
            let who = view.who("pv-controller");
            let (silence, way_out) = view.silence(&who);
            let why =
                format!("spec.claimRef names claim {key}, which is gone, and the volume is not released: {silence}");
            vec![view.slow("not-released", who, volume.status.last_phase_transition_time, why, way_out)]
        }
        Look::Absent if reference.uid.is_empty() => {
            let why = format!("spec.claimRef reserves it for claim {key}, which does not exist");
            vec![Cause::waiting("reserved", Who::user(), why, format!("create claim {key}"))]
        }
        Look::There(claim) if volume.status.phase != VolumePhase::Bound && volume.is_bound_to(claim) => {
            let who = view.who("pv-controller");
            let way_out = format!("`stowage explain {}`", kubectl_claim(claim));
            let why = format!("it is reserved for claim {key}, and not bound yet");
            vec![view.slow("not-bound", who, volume.meta.creation_timestamp, why, way_out)]
        }
        _ => Vec::new(),
    }
}
