//! Where a pod goes, what its claims need first, and when nobody is left to end it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use stowage_model::condition::{self, ConditionStatus};
use stowage_model::{Claim, Pod, Volume};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;

use super::filter::filter;
use super::obstacle::{Reason, Unschedulable};
use super::room;
use super::volumes::{self, Obstacle, PodClaim, PodVolumes};
use super::{Decision, Leftover, PodAction, Reservation, Why};
use crate::snapshot::{NodeState, PendingSnapshot, PlacedSnapshot, PodSnapshot};

/// What must happen to this pod next, and why.
pub fn decide(s: &PodSnapshot, now: Timestamp) -> Decision<PodAction> {
    match s {
        PodSnapshot::Absent => Decision::rest(Why::Gone),
        PodSnapshot::Unknown(key) => Decision::act([PodAction::Look(super::Unseen::Pod(key.clone()))], Why::Unknown),
        PodSnapshot::Placed(placed) => collect(placed, now),
        PodSnapshot::Pending(pending) => place(pending, now),
        PodSnapshot::Other(pod) if is_ending(pod) => end(Leftover::NeverPlaced),
        PodSnapshot::Other(_) | PodSnapshot::Foreign { .. } => Decision::rest(Why::NotOurs),
    }
}

fn collect(s: &PlacedSnapshot, now: Timestamp) -> Decision<PodAction> {
    let name = s.pod.spec.node_name.clone();
    match &s.node {
        View::Absent if is_asked_to_go_now(&s.pod) => Decision::rest(Why::Placed),
        View::Absent => {
            let at = s.missing_since.checked_add(s.quarantine).unwrap_or(Timestamp::MAX);
            if now < at { Decision::wait_until(at, Why::Quarantine) } else { end(Leftover::NodeGone(name)) }
        }
        View::Known(node) if is_ending(&s.pod) && node.is_out_of_service() && !node.is_ready() => {
            end(Leftover::OutOfService(name))
        }
        // A node that nobody may decide on is read by its own decision, which wakes its pods.
        View::Known(_) | View::Unknown => Decision::rest(Why::Placed),
    }
}

fn end(leftover: Leftover) -> Decision<PodAction> {
    Decision::act([PodAction::Collect(leftover.clone())], Why::Collect(leftover))
}

/// Deleted, and not yet told to go at once: only finalizers hold a pod that was.
fn is_ending(pod: &Pod) -> bool {
    pod.meta.is_deleting() && !is_asked_to_go_now(pod)
}

fn is_asked_to_go_now(pod: &Pod) -> bool {
    pod.meta.is_deleting() && pod.meta.deletion_grace_period_seconds == Some(0)
}

fn place(s: &PendingSnapshot, now: Timestamp) -> Decision<PodAction> {
    let claims = match volumes::classify(&s.pod, &s.claims) {
        Ok(claims) => claims,
        Err(Obstacle::Look(unseen)) => return Decision::act([PodAction::Look(unseen)], Why::Unknown),
        Err(Obstacle::Fault(fault)) => return report(s, Unschedulable::Claims { nodes: s.nodes.len(), fault }, now),
    };
    if s.nodes.is_empty() {
        return report(s, Unschedulable::NoNodes, now);
    }
    let (mut reasons, mut full) = (BTreeMap::new(), Vec::new());
    let mut fitting: Vec<(&NodeState, PodVolumes<'_>)> = Vec::new();
    for on in &s.nodes {
        match filter(s, &claims, on) {
            Ok(volumes) => fitting.push((on, volumes)),
            Err(refused) => {
                if refused.contains(&Reason::NoRoom) {
                    full.push(on.node.meta.name.clone());
                }
                refused.into_iter().for_each(|reason| *reasons.entry(reason).or_insert(0) += 1);
            }
        }
    }
    match fitting.into_iter().min_by_key(|(on, volumes)| rank(s, on, volumes)) {
        Some((on, volumes)) => go(s, &claims, on.node.meta.name.clone(), &volumes, now),
        None => report(s, Unschedulable::Nodes { nodes: s.nodes.len(), reasons, full }, now),
    }
}

/// What makes a node better: no failure there lately, being on the way there already, more room left for volumes, fewer
/// pods, then the name.
fn rank<'a>(
    s: &PendingSnapshot,
    on: &'a NodeState,
    volumes: &PodVolumes<'_>,
) -> (u64, bool, Reverse<u8>, usize, &'a str) {
    let name = on.node.meta.name.as_str();
    let (recency, is_other) = (s.failures.recency(name), s.heading_for.as_deref() != Some(name));
    (recency, is_other, Reverse(room::score(volumes)), on.pods, name)
}

/// The next step towards the node: volumes first, then the pod itself.
fn go(
    s: &PendingSnapshot,
    claims: &[PodClaim<'_>],
    node: String,
    volumes: &PodVolumes<'_>,
    now: Timestamp,
) -> Decision<PodAction> {
    let open = volumes.static_bindings.iter().filter(|(claim, volume)| !is_reserved(volume, claim));
    let reserve = open.map(|(claim, volume)| {
        PodAction::Reserve(Reservation {
            claim: Target::exact(&claim.meta),
            volume: Target::exact(&volume.meta),
            marked: !volume.is_bound_to(claim),
        })
    });
    let unasked = volumes.dynamic_provisions.iter().filter(|claim| claim.selected_node() != Some(&node));
    let select: Vec<PodAction> =
        unasked.map(|claim| PodAction::Select { claim: Target::exact(&claim.meta), node: node.clone() }).collect();
    if let Some(at) = s.failures.retry_at()
        && !select.is_empty()
        && now < at
    {
        return Decision::wait_until(at, Why::BackOff);
    }
    let writes: Vec<PodAction> = reserve.chain(select).collect();
    if !writes.is_empty() {
        return Decision::together(writes, Why::Prepare { node });
    }
    // A pod never leaves its node, so all of its volumes are sure to be within reach before it gets one.
    if claims.iter().any(|claim| matches!(claim, PodClaim::Delayed { .. })) {
        return Decision::rest(Why::AwaitVolumes { node });
    }
    Decision::act([PodAction::Bind { node: node.clone() }], Why::Bind { node })
}

/// Whether the volume already points at this very claim; the pv-controller does the rest.
fn is_reserved(volume: &Volume, claim: &Claim) -> bool {
    volume.is_bound_to(claim) && volume.spec.claim_ref.as_ref().is_some_and(|held| held.uid == claim.meta.uid)
}

/// Says why in the pod's condition, which stays, and in an event, which the API server forgets.
fn report(s: &PendingSnapshot, why: Unschedulable, now: Timestamp) -> Decision<PodAction> {
    let message = why.to_string();
    let known = s.told.until(&(), &message, now).filter(|_| is_said(&s.pod, &message));
    let why = Why::Unschedulable(why);
    match known {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([PodAction::Report { message }], why),
    }
}

/// Whether the pod's own condition says that it cannot be placed, and just why.
pub fn is_said(pod: &Pod, message: &str) -> bool {
    condition::find(&pod.status.conditions, "PodScheduled").is_some_and(|said| {
        said.status == ConditionStatus::False && said.reason == "Unschedulable" && said.message == message
    })
}
