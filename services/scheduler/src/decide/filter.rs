//! Whether a node will do for a pod; the order is kube-scheduler's, and the first filter that refuses is told.

use std::collections::BTreeSet;

use stowage_model::node::{Taint, TaintEffect};
use stowage_model::{Pod, taints};

use super::obstacle::Reason;
use super::volumes::{self, PodClaim, PodVolumes};
use crate::snapshot::usage::{csi_of, future_volume};
use crate::snapshot::{NodeState, PendingSnapshot, Volumes};

/// What placing the pod here means, or every reason of the first filter that refuses.
pub fn filter<'a>(s: &PendingSnapshot, claims: &[PodClaim<'a>], on: &NodeState) -> Result<PodVolumes<'a>, Vec<Reason>> {
    let node = &on.node;
    accepts(&s.pod, on).map_err(|reason| vec![reason])?;
    if !s.once_pod_in_use.is_empty() {
        return Err(vec![Reason::OncePodInUse]);
    }
    if let Some(driver) = s.required_drivers.iter().find(|driver| !on.has_driver(driver)) {
        return Err(vec![Reason::DriverMissing { driver: driver.clone() }]);
    }
    if exceeds_limit(&s.volumes, on) {
        return Err(vec![Reason::VolumeLimit]);
    }
    let found = volumes::find_volumes(claims, on)?;
    // Free volumes may be of another driver than the class makes; upstream finds that out when it is too late.
    if !found.static_bindings.is_empty() && exceeds_limit(&with_chosen(&s.volumes, &found), on) {
        return Err(vec![Reason::VolumeLimit]);
    }
    if !volumes::in_zone(claims, node) {
        return Err(vec![Reason::Zone]);
    }
    Ok(found)
}

fn accepts(pod: &Pod, on: &NodeState) -> Result<(), Reason> {
    let node = &on.node;
    let closed = Taint { key: taints::UNSCHEDULABLE.into(), value: String::new(), effect: TaintEffect::NoSchedule };
    if node.spec.unschedulable && !pod.tolerates(&closed) {
        return Err(Reason::Unschedulable);
    }
    let repels = |taint: &&Taint| matches!(taint.effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
    if let Some(taint) = node.spec.taints.iter().filter(repels).find(|taint| !pod.tolerates(taint)) {
        return Err(Reason::Taint { key: taint.key.clone(), value: taint.value.clone() });
    }
    let labels = &node.meta.labels;
    let selected = pod.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let wanted = match &pod.spec.required_affinity {
        None => true,
        Some(affinity) => affinity
            .matches(&node.meta.name, labels)
            .map_err(|error| Reason::Malformed(format!("spec.affinity.nodeAffinity cannot be read: {error}")))?,
    };
    if selected && wanted { Ok(()) } else { Err(Reason::Affinity) }
}

/// The pod's volumes when those it would take are counted as what they are.
fn with_chosen(volumes: &Volumes, found: &PodVolumes<'_>) -> Volumes {
    let mut volumes = volumes.clone();
    for (claim, volume) in &found.static_bindings {
        let future = future_volume(&claim.meta.key());
        for of_driver in volumes.values_mut() {
            of_driver.remove(&future);
        }
        if let Some((driver, handle)) = csi_of(volume) {
            volumes.entry(driver).or_default().insert(handle);
        }
    }
    volumes
}

/// Whether volumes that are new to the node make more than it can attach. What another pod is only about to bring
/// counts as used but is no excuse: both would lean on the other.
fn exceeds_limit(wanted: &Volumes, on: &NodeState) -> bool {
    let Some(csi_node) = &on.csi_node else { return false };
    let none = BTreeSet::new();
    wanted.iter().any(|(driver, wanted)| {
        let Some(limit) = csi_node.limit(driver) else { return false };
        let present = on.present.get(driver).unwrap_or(&none);
        let expected = on.expected.get(driver).unwrap_or(&none);
        !wanted.is_subset(present) && expected.union(wanted).count() > limit as usize
    })
}
