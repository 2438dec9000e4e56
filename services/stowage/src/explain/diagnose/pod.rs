//! The life of a pod, as far as volumes go.

use std::collections::BTreeSet;

use stowage_model::object::Projection as _;
use stowage_model::phase::PodPhase;
use stowage_model::pod::{PodVolume, PodVolumeSource};
use stowage_model::{Claim, Pod};

use super::{Steps, View, attaching, binding, deleting, mounting, placing};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Story, Who};

pub fn story(view: &View<'_>, pod: &Pod) -> Story {
    let meta = &pod.meta;
    let mut steps = Steps::new();
    steps.add("pod created", true, meta.creation_timestamp);
    let causes = match meta.deletion_timestamp {
        Some(since) => {
            steps.add("deleted: containers stopped, volumes unmounted", false, Some(since));
            deleting::pod(view, pod)
        }
        None if pod.is_terminal() => Vec::new(),
        None => life(view, pod, &mut steps, true),
    };
    let phase = match meta.is_deleting() {
        true => "Terminating".to_owned(),
        false => pod.status.phase.to_string(),
    };
    let since = meta.deletion_timestamp.or(meta.creation_timestamp);
    Story { kind: Pod::KIND, key: meta.key(), phase, since, steps: steps.0, causes: each_once(causes) }
}

/// The steps of a pod from its claims to its volumes, and what holds it up.
pub fn life(view: &View<'_>, pod: &Pod, steps: &mut Steps, with_claims: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let claims: Vec<(&PodVolume, Look<'_, Claim>)> = pod
        .spec
        .volumes
        .iter()
        .filter_map(|volume| Some((volume, view.g.claims.look(&pod.claim_of(volume)?))))
        .collect();
    let is_placed = pod.is_scheduled();
    for (volume, claim) in claims.iter().filter(|_| with_claims) {
        match claim {
            Look::There(claim) => {
                // Of a claim that waits for its pod, the pod's own step comes first.
                let waits =
                    view.g.classes.named(claim.class_name()).there().is_some_and(|class| class.waits_for_consumer());
                if !waits || claim.is_fully_bound() || claim.selected_node().is_some() || is_placed {
                    steps.add(
                        format!("claim {} bound", claim.meta.name),
                        claim.is_fully_bound(),
                        claim.meta.creation_timestamp,
                    );
                }
                if !claim.is_fully_bound() && (is_placed || !waits) {
                    causes.extend(binding::causes(view, claim));
                }
            }
            Look::Absent => causes.push(missing(pod, volume)),
            Look::Unread => {}
        }
    }
    steps.add("scheduler places the pod", is_placed, attaching::scheduled_at(pod).or(pod.meta.creation_timestamp));
    if !is_placed {
        causes.extend(placing::unplaced(view, pod, None));
        return causes;
    }
    // What runs has its volumes, whatever is told of them later.
    if pod.status.phase == PodPhase::Running {
        steps.add("volumes mounted", true, pod.status.start_time);
        return Vec::new();
    }
    for (_, claim) in claims {
        let Some(claim) = claim.there().filter(|claim| claim.is_fully_bound()) else { continue };
        if let Some(volume) = view.g.volumes.named(&claim.spec.volume_name).there() {
            causes.extend(attaching::causes(view, pod, claim, volume, steps));
        }
    }
    let mounted = mounting::is_mounted(view, pod);
    let since = attaching::scheduled_at(pod);
    steps.add(format!("kubelet of {} mounts the volumes", pod.spec.node_name), mounted == Some(true), since);
    if mounted != Some(true) && steps.0.last().is_some_and(|step| step.mark == crate::explain::Mark::Here) {
        let mut of_node = mounting::causes(view, pod);
        // Silence says nothing of a node where the volume may not be attached.
        of_node.retain(|cause| causes.is_empty() || cause.id != "kubelet-silent");
        of_node.append(&mut causes);
        causes = of_node;
    } else if mounted != Some(true) {
        causes.extend(mounting::node_trouble(view, &pod.spec.node_name));
    }
    // Its containers are another matter.
    if mounted == Some(true) { Vec::new() } else { causes }
}

fn missing(pod: &Pod, volume: &PodVolume) -> Cause {
    let claim = pod.claim_of(volume).unwrap_or_default();
    let is_ephemeral = volume.source == PodVolumeSource::Ephemeral;
    let why = format!("volume {:?} of pod {} names claim {claim}, which is not there", volume.name, pod.meta.name);
    match is_ephemeral {
        true => {
            let way_out = "see that the ephemeral-volume controller (kube-controller-manager, pv-controller) runs";
            Cause::stuck("claim-missing", Who::named("ephemeral-volume controller"), why, way_out)
        }
        false => Cause::stuck("claim-missing", Who::user(), why, format!("create claim {claim}")),
    }
}

/// The claims of a pod may have the same cause.
pub fn each_once(causes: Vec<Cause>) -> Vec<Cause> {
    let mut seen = BTreeSet::new();
    causes.into_iter().filter(|cause| seen.insert((cause.id, cause.why.clone()))).collect()
}
