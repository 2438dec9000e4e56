//! A claim's status as it should be, and the one write that brings it there.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::access_mode::AccessModes;
use stowage_model::condition::{self, Condition};
use stowage_model::phase::ClaimPhase;
use stowage_model::quantity::Quantity;
use stowage_model::{Claim, Pod, Volume, annotations};
use stowage_runtime::events::seconds;

use crate::snapshot::ClaimSnapshot;

/// The part of a claim's status that says what it was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub phase: ClaimPhase,
    pub access_modes: AccessModes,
    pub capacity: Option<Quantity>,
    pub attributes_class: Option<String>,
}

/// The kind of reason why a claim is not bound, as its condition carries it. Progress is no such reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbound {
    NoFittingVolume,
    VolumeMismatch,
    VolumeNotFound,
    VolumeTaken,
    ClassNotFound,
    NoProvisioner,
    InvalidClaim,
}

impl Unbound {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoFittingVolume => "NoFittingVolume",
            Self::VolumeMismatch => "VolumeMismatch",
            Self::VolumeNotFound => "VolumeNotFound",
            Self::VolumeTaken => "VolumeTaken",
            Self::ClassNotFound => "ClassNotFound",
            Self::NoProvisioner => "NoProvisioner",
            Self::InvalidClaim => "InvalidClaim",
        }
    }
}

/// One change in the list of conditions; positions are those of the version decided on.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    Add(Value),
    Replace(usize, Value),
    Remove(usize),
}

impl Edit {
    pub fn added(&self) -> Option<&Value> {
        match self {
            Self::Add(condition) => Some(condition),
            Self::Replace(..) | Self::Remove(_) => None,
        }
    }
}

/// The write: from what, to what, and which conditions with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub from: Status,
    pub to: Status,
    pub edits: Vec<Edit>,
    /// Whether there are no conditions yet, so that all edits add one.
    pub first_condition: bool,
}

impl Change {
    /// Whether the condition gives this reason from now on.
    pub fn says(&self, unbound: Unbound) -> bool {
        self.edits.iter().any(|edit| match edit {
            Edit::Add(condition) | Edit::Replace(_, condition) => condition["reason"] == unbound.as_str(),
            Edit::Remove(_) => false,
        })
    }
}

impl Status {
    /// The status as it is.
    pub fn of(claim: &Claim) -> Self {
        let class = claim.status.current_volume_attributes_class_name.clone();
        Self {
            phase: claim.status.phase,
            access_modes: claim.status.access_modes,
            capacity: claim.status.capacity.storage,
            attributes_class: class.filter(|name| !name.is_empty()),
        }
    }

    /// The status of a claim that has nothing.
    pub fn cleared(phase: ClaimPhase) -> Self {
        Self { phase, access_modes: AccessModes::default(), capacity: None, attributes_class: None }
    }

    /// The status of a claim that has this volume.
    pub fn bound(claim: &Claim, volume: &Volume) -> Self {
        let current = Self::of(claim);
        if current.phase == ClaimPhase::Bound {
            // Once bound, the capacity belongs to the resizer and the node.
            return Self { access_modes: volume.spec.access_modes, ..current };
        }
        let before_resize = volume.meta.annotation(annotations::PRE_RESIZE_CAPACITY).and_then(|text| text.parse().ok());
        Self {
            phase: ClaimPhase::Bound,
            access_modes: volume.spec.access_modes,
            capacity: before_resize.or(volume.spec.capacity),
            attributes_class: volume.spec.volume_attributes_class_name.clone().filter(|name| !name.is_empty()),
        }
    }
}

/// The write that brings the claim's status to `to`, if anything differs. The `Unused` condition of a bound claim rides
/// on it, and so does the reason why a claim is not bound.
pub fn change(s: &ClaimSnapshot, to: Status, unbound: Option<Unbound>, now: Timestamp) -> Option<Change> {
    let claim = &*s.claim;
    let conditions = &claim.status.conditions;
    let mut edits = Vec::new();
    if s.rules.controllers.claim_protection
        && s.rules.unused_condition
        && to.phase == ClaimPhase::Bound
        && !claim.meta.is_deleting()
    {
        let unused = !s.pods.iter().any(|pod| is_running_with(pod, claim));
        let found = condition::find(conditions, condition::UNUSED);
        if found.is_none_or(|condition| condition.is_true() != unused) {
            let (reason, message) = if unused {
                ("NoPodsUsingPVC", "No pods are currently referencing this PVC")
            } else {
                ("PodUsingPVC", "A pod is currently referencing this PVC")
            };
            edits.push(put(conditions, condition::UNUSED, unused, reason, message, now));
        }
    }
    if s.rules.controllers.binder {
        let found = condition::find(conditions, condition::UNBOUND);
        // Where nobody wants it, one of earlier goes all the same.
        match (unbound.filter(|_| s.rules.unbound_condition), found) {
            (Some(unbound), found) if found.is_none_or(|condition| condition.reason != unbound.as_str()) => {
                edits.push(put(conditions, condition::UNBOUND, true, unbound.as_str(), "", now));
            }
            (None, Some(_)) => {
                let at = conditions.iter().position(|condition| condition.kind == condition::UNBOUND);
                edits.extend(at.map(Edit::Remove));
            }
            _ => {}
        }
    }
    let from = Status::of(claim);
    if from == to && edits.is_empty() {
        return None;
    }
    Some(Change { from, to, edits, first_condition: conditions.is_empty() })
}

fn put(conditions: &[Condition], kind: &str, holds: bool, reason: &str, message: &str, now: Timestamp) -> Edit {
    let mut condition = json!({
        "type": kind,
        "status": if holds { "True" } else { "False" },
        "reason": reason,
        "lastTransitionTime": seconds(now),
    });
    if !message.is_empty() {
        condition["message"] = message.into();
    }
    match conditions.iter().position(|condition| condition.kind == kind) {
        Some(at) => Edit::Replace(at, condition),
        None => Edit::Add(condition),
    }
}

/// Whether the pod refers to the claim, by name or because the claim was made for it.
fn refers(pod: &Pod, claim: &Claim, to_own: bool) -> bool {
    if pod.meta.namespace != claim.meta.namespace {
        return false;
    }
    let key = claim.meta.key();
    pod.spec.volumes.iter().any(|volume| {
        pod.claim_of(volume).is_some_and(|used| used == key)
            && (volume.source != stowage_model::pod::PodVolumeSource::Ephemeral || (to_own && claim.is_owned_by(pod)))
    })
}

/// Whether the pod keeps the claim from going: placed on a node and referring to it, even when it has ended. A pod that
/// its node has finished with does not keep the claim made for it, else each would wait for the other.
pub fn holds(pod: &Pod, claim: &Claim) -> bool {
    pod.is_scheduled() && refers(pod, claim, !pod.is_shut_down())
}

/// Whether the pod may still use the claim, placed or not.
pub fn is_running_with(pod: &Pod, claim: &Claim) -> bool {
    !pod.is_terminated() && refers(pod, claim, true)
}
