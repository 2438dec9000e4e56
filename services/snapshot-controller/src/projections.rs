//! What is cached of claims and nodes: there may be many, and little of them matters here.

use serde::Deserialize;

use stowage_model::claim::DataSource;
use stowage_model::object::{self, Kind, Meta, Projection, kinds, or_default};
use stowage_model::phase::ClaimPhase;
use stowage_model::{Annotations, finalizers};

/// A claim, as far as snapshots are made of it or restored into it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SourceClaim {
    #[serde(rename = "metadata", deserialize_with = "lean")]
    pub meta: Meta,
    #[serde(deserialize_with = "or_default")]
    pub spec: SourceClaimSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: SourceClaimStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceClaimSpec {
    #[serde(deserialize_with = "or_default")]
    pub volume_name: String,
    pub data_source: Option<Box<DataSource>>,
    pub data_source_ref: Option<Box<DataSource>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SourceClaimStatus {
    #[serde(deserialize_with = "or_default")]
    pub phase: ClaimPhase,
}

/// A node, as far as volumes are bound to its labels.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LabelledNode {
    #[serde(rename = "metadata", deserialize_with = "lean")]
    pub meta: Meta,
}

/// Metadata without annotations and owners, which nothing here is decided by.
fn lean<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Meta, D::Error> {
    let meta = or_default::<D, Meta>(deserializer)?;
    Ok(Meta { annotations: Annotations::default(), owner_references: Vec::new(), ..meta })
}

impl Projection for SourceClaim {
    const KIND: Kind = kinds::CLAIM;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Projection for LabelledNode {
    const KIND: Kind = kinds::NODE;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl SourceClaim {
    pub fn is_bound(&self) -> bool {
        self.status.phase == ClaimPhase::Bound && !self.spec.volume_name.is_empty()
    }

    /// Whether it is kept while snapshots of it are made.
    pub fn is_protected(&self) -> bool {
        self.meta.has_finalizer(finalizers::CLAIM_AS_SNAPSHOT_SOURCE)
    }

    /// The VolumeSnapshot of its own namespace that its volume is being made from. Who names one of another namespace may
    /// not have the right to, and must not keep it; a restore that really began has the provisioner's finalizer.
    pub fn restores(&self) -> Option<object::Key> {
        if self.status.phase != ClaimPhase::Pending {
            return None;
        }
        let source = self.spec.data_source_ref.as_deref().or(self.spec.data_source.as_deref())?;
        let kind = kinds::VOLUME_SNAPSHOT;
        if source.kind != kind.kind || source.api_group.as_deref() != Some(kind.group) {
            return None;
        }
        let namespace = &self.meta.namespace;
        let elsewhere = source.namespace.as_deref().filter(|named| !named.is_empty() && *named != namespace.as_str());
        elsewhere.is_none().then(|| object::Key::namespaced(namespace.as_str(), source.name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_of_another_namespace_keeps_no_snapshot() {
        let restores = |namespace: Option<&str>| {
            let source = json!({
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly", "namespace": namespace,
            });
            let claim: SourceClaim = serde_json::from_value(json!({
                "metadata": { "namespace": "shop", "name": "copy" },
                "spec": { "dataSourceRef": source },
                "status": { "phase": "Pending" },
            }))
            .unwrap();
            claim.restores()
        };
        let own = Some(object::Key::namespaced("shop", "nightly"));
        assert_eq!([None, Some(""), Some("shop"), Some("bank")].map(restores), [own.clone(), own.clone(), own, None]);
    }
}
