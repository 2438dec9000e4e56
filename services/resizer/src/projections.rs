//! What is cached of claims, classes and pods: there may be many, and little of them matters here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use stowage_model::Annotations;
use stowage_model::claim::Storage;
use stowage_model::condition::Condition;
use stowage_model::object::{Kind, Meta, Projection, kinds, or_default};
use stowage_model::phase::{ClaimPhase, PodPhase};
use stowage_model::quantity::Quantity;
use stowage_model::resize::{ModifyStatus, ResizeStatus};

/// A claim, as far as its volume grows and changes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Claim {
    #[serde(rename = "metadata", deserialize_with = "lean")]
    pub meta: Meta,
    #[serde(deserialize_with = "or_default")]
    pub spec: Spec,
    #[serde(deserialize_with = "or_default")]
    pub status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    #[serde(deserialize_with = "or_default")]
    resources: Resources,
    #[serde(deserialize_with = "or_default")]
    pub volume_name: String,
    #[serde(deserialize_with = "or_default")]
    volume_attributes_class_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "or_default")]
    requests: Storage,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(deserialize_with = "or_default")]
    pub phase: ClaimPhase,
    #[serde(deserialize_with = "or_default")]
    capacity: Storage,
    #[serde(deserialize_with = "or_default")]
    allocated_resources: Storage,
    #[serde(deserialize_with = "or_default")]
    allocated_resource_statuses: Statuses,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Conditions,
    #[serde(deserialize_with = "or_default")]
    current_volume_attributes_class_name: String,
    pub modify_volume_status: Option<Box<Modifying>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Statuses {
    #[serde(deserialize_with = "or_default")]
    storage: ResizeStatus,
}

/// A change of the VolumeAttributesClass under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Modifying {
    #[serde(rename = "targetVolumeAttributesClassName", deserialize_with = "or_default")]
    pub target: String,
    #[serde(deserialize_with = "or_default")]
    pub status: ModifyStatus,
}

/// The conditions of a claim as they were read: the list has several writers, and what is not ours is written back as it
/// is, with fields that nobody here knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions(Box<[Box<str>]>);

impl<'de> Deserialize<'de> for Conditions {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Box<RawValue>>::deserialize(deserializer)?;
        Ok(Self(list.into_iter().map(Box::<str>::from).collect()))
    }
}

impl Conditions {
    /// Each with its text; one that cannot be read is nobody's here.
    pub fn iter(&self) -> impl Iterator<Item = (Condition, &str)> {
        self.0.iter().map(|text| (serde_json::from_str(text).unwrap_or_default(), &**text))
    }

    pub fn find(&self, kind: &str) -> Option<Condition> {
        self.iter().map(|(condition, _)| condition).find(|condition| condition.kind == kind)
    }

    /// Whether the condition is there and holds.
    pub fn hold(&self, kind: &str) -> bool {
        self.find(kind).is_some_and(|condition| condition.is_true())
    }
}

/// Metadata without what nothing here is decided by.
fn lean<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Meta, D::Error> {
    let meta = or_default::<D, Meta>(deserializer)?;
    Ok(Meta { labels: BTreeMap::new(), owner_references: Vec::new(), finalizers: Vec::new(), ..meta })
}

/// The same without annotations.
fn bare<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Meta, D::Error> {
    lean(deserializer).map(|meta| Meta { annotations: Annotations::default(), ..meta })
}

impl Projection for Claim {
    const KIND: Kind = kinds::CLAIM;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Claim {
    /// The size asked for.
    pub fn requested(&self) -> Quantity {
        self.spec.resources.requests.storage.unwrap_or_default()
    }

    /// The size it has.
    pub fn capacity(&self) -> Quantity {
        self.status.capacity.storage.unwrap_or_default()
    }

    /// The size that an expansion aims at, or the last one aimed at.
    pub fn allocated(&self) -> Option<Quantity> {
        self.status.allocated_resources.storage
    }

    /// How far the expansion is.
    pub fn resize(&self) -> ResizeStatus {
        self.status.allocated_resource_statuses.storage
    }

    /// The VolumeAttributesClass it wants, empty if none.
    pub fn wanted_class(&self) -> &str {
        &self.spec.volume_attributes_class_name
    }

    /// The VolumeAttributesClass in effect, empty if none.
    pub fn current_class(&self) -> &str {
        &self.status.current_volume_attributes_class_name
    }

    /// A change of the VolumeAttributesClass under way.
    pub fn modifying(&self) -> Option<&Modifying> {
        self.status.modify_volume_status.as_deref()
    }

    /// The classes that a change of attributes may need.
    pub fn classes(&self) -> Vec<String> {
        let target = self.modifying().map(|modifying| modifying.target.as_str()).unwrap_or_default();
        let mut classes: Vec<String> =
            [self.wanted_class(), target].into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        classes.dedup();
        classes
    }
}

/// A VolumeAttributesClass.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Class {
    #[serde(rename = "metadata", deserialize_with = "bare")]
    pub meta: Meta,
    #[serde(deserialize_with = "or_default")]
    pub driver_name: String,
    #[serde(deserialize_with = "or_default")]
    pub parameters: BTreeMap<String, String>,
}

impl Projection for Class {
    const KIND: Kind = kinds::ATTRIBUTES_CLASS;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A pod, as far as it uses claims.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "PodOnTheWire")]
pub struct UsingPod {
    pub meta: Meta,
    /// Names of claims in its namespace; none once it has ended.
    pub claims: Box<[Box<str>]>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodOnTheWire {
    #[serde(rename = "metadata", deserialize_with = "bare")]
    meta: Meta,
    #[serde(deserialize_with = "or_default")]
    spec: PodSpec,
    #[serde(deserialize_with = "or_default")]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<PodVolume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodVolume {
    #[serde(deserialize_with = "or_default")]
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    #[serde(deserialize_with = "or_default")]
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    #[serde(deserialize_with = "or_default")]
    phase: PodPhase,
}

impl From<PodOnTheWire> for UsingPod {
    fn from(pod: PodOnTheWire) -> Self {
        let PodOnTheWire { meta, spec, status } = pod;
        let is_over = matches!(status.phase, PodPhase::Succeeded | PodPhase::Failed);
        let claim = |volume: PodVolume| match (volume.persistent_volume_claim, volume.ephemeral) {
            (Some(source), _) => Some(source.claim_name.into()),
            // Its claim has a name made of both.
            (None, Some(_)) => Some(format!("{}-{}", meta.name, volume.name).into()),
            (None, None) => None,
        };
        let claims = spec.volumes.into_iter().filter(|_| !is_over).filter_map(claim).collect();
        Self { claims, meta }
    }
}

impl Projection for UsingPod {
    const KIND: Kind = kinds::POD;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_without_a_status_is_read() {
        let claim: Claim = serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": {} })).unwrap();
        assert_eq!((claim.requested(), claim.capacity(), claim.allocated()), Default::default());
        assert_eq!((claim.resize(), claim.modifying()), (ResizeStatus::Nothing, None));
    }

    #[test]
    fn conditions_keep_what_nobody_here_knows() {
        let list = json!([{ "type": "Unused", "status": "True", "newer": { "than": "us" } }]);
        let status = json!({ "conditions": list, "allocatedResourceStatuses": { "storage": "NodeResizePending" } });
        let claim: Claim = serde_json::from_slice(json!({ "status": status }).to_string().as_bytes()).unwrap();
        assert_eq!(claim.resize(), ResizeStatus::NodeResizePending);
        let (condition, text) = claim.status.conditions.iter().next().unwrap();
        assert_eq!(condition.kind, "Unused");
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), list[0]);
    }

    #[test]
    fn a_pod_uses_its_claims_until_it_has_ended() {
        let pod = |phase: &str| -> UsingPod {
            let volumes = json!([
                { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "b", "ephemeral": { "volumeClaimTemplate": {} } },
                { "name": "c", "emptyDir": {} },
            ]);
            let meta = json!({ "namespace": "shop", "name": "web", "labels": { "a": "b" } });
            serde_json::from_value(
                json!({ "metadata": meta, "spec": { "volumes": volumes }, "status": { "phase": phase } }),
            )
            .unwrap()
        };
        let names = |pod: UsingPod| pod.claims.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(pod("Running")), ["data", "web-b"]);
        assert_eq!(names(pod("Succeeded")), Vec::<String>::new());
        assert!(pod("Running").meta.labels.is_empty());
    }
}
