//! The objects that volumes are made of: which they are, and the port through which plugins read them.

mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use stowage_model::node_view::NodePod;
use stowage_model::object::Key;
use stowage_model::volume_source::{ProjectionSource, VolumeSource};
use stowage_model::{ClusterTrustBundle, ConfigMap, Quantity, Secret};
use stowage_runtime::api;

use crate::csi;
use crate::spec::VolumeSpec;

pub use watched::WatchedObjects;

/// Something that a volume is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceId {
    /// A ConfigMap.
    ConfigMap(Key),
    /// A Secret.
    Secret(Key),
    /// One ClusterTrustBundle, by its name.
    TrustBundle(String),
    /// All ClusterTrustBundles of a signer.
    TrustBundlesOf(String),
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConfigMap(key) => write!(f, "ConfigMap {key}"),
            Self::Secret(key) => write!(f, "Secret {key}"),
            Self::TrustBundle(name) => write!(f, "ClusterTrustBundle {name}"),
            Self::TrustBundlesOf(signer) => write!(f, "ClusterTrustBundles of signer {signer}"),
        }
    }
}

/// Objects of the API that volumes are made of, newest first: no answer is older than what a watch has told.
#[async_trait]
pub trait Objects: Send + Sync {
    /// The ConfigMap; `None` if there is none.
    async fn config_map(&self, key: &Key) -> Result<Option<Arc<ConfigMap>>, api::Error>;

    /// The Secret; `None` if there is none.
    async fn secret(&self, key: &Key) -> Result<Option<Arc<Secret>>, api::Error>;

    /// The bundle of that name, or all bundles of that signer, in the order of their names.
    async fn trust_bundles(&self, wanted: &Bundles) -> Result<Vec<Arc<ClusterTrustBundle>>, api::Error>;

    /// What pods can have of this node, by the resource's name; empty where the node does not say.
    async fn allocatable(&self) -> Result<BTreeMap<String, Quantity>, api::Error>;
}

/// Which ClusterTrustBundles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bundles {
    /// The one of this name.
    Named(String),
    /// All of this signer.
    Of(String),
}

/// What a volume is made of, whether it exists or not: a change of any of these changes the volume.
pub fn sources_of(spec: &VolumeSpec, pod: &NodePod) -> Vec<SourceId> {
    let key = |name: &str| Key::namespaced(pod.meta.namespace.as_str(), name);
    let mut found = BTreeSet::new();
    match &spec.source {
        VolumeSource::ConfigMap(source) => _ = found.insert(SourceId::ConfigMap(key(&source.name))),
        VolumeSource::Secret(source) => _ = found.insert(SourceId::Secret(key(&source.secret_name))),
        VolumeSource::Projected(source) => source.sources.iter().for_each(|part| found.extend(part_of(part, &key))),
        VolumeSource::Csi(_) | VolumeSource::CsiInline(_) => {
            found.extend(csi::publish_secret(spec, pod).map(SourceId::Secret));
        }
        _ => {}
    }
    found.into_iter().collect()
}

fn part_of(part: &ProjectionSource, key: &impl Fn(&str) -> Key) -> Option<SourceId> {
    let secret = part.secret.as_ref().map(|source| SourceId::Secret(key(&source.name)));
    let config_map = part.config_map.as_ref().map(|source| SourceId::ConfigMap(key(&source.name)));
    let bundle = part.cluster_trust_bundle.as_ref().and_then(|source| match (&source.name, &source.signer_name) {
        (Some(name), _) => Some(SourceId::TrustBundle(name.clone())),
        (None, Some(signer)) => Some(SourceId::TrustBundlesOf(signer.clone())),
        (None, None) => None,
    });
    secret.or(config_map).or(bundle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::object::Projection as _;

    use super::*;

    #[test]
    fn a_volume_names_every_object_it_is_made_of_once_also_optional_ones() {
        let pod = json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": {} });
        let pod = NodePod::read(pod.to_string().as_bytes()).unwrap();
        let of = |member: &str, value| {
            let spec = VolumeSpec::inline("v", VolumeSource::of_pod(member, value).unwrap());
            sources_of(&spec, &pod).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("configMap", json!({ "name": "c", "optional": true })), ["ConfigMap n/c"]);
        assert_eq!(of("secret", json!({ "secretName": "s" })), ["Secret n/s"]);
        assert_eq!(of("emptyDir", json!({})), Vec::<String>::new());
        assert_eq!(of("csi", json!({ "driver": "d", "nodePublishSecretRef": { "name": "s" } })), ["Secret n/s"]);
        assert_eq!(of("csi", json!({ "driver": "d" })), Vec::<String>::new());
        let sources = json!({ "sources": [
            { "configMap": { "name": "c" } },
            { "secret": { "name": "s", "optional": true } },
            { "configMap": { "name": "c", "items": [] } },
            { "serviceAccountToken": { "path": "token" } },
            { "clusterTrustBundle": { "name": "b", "path": "a" } },
            { "clusterTrustBundle": { "signerName": "example.com/s", "path": "b" } },
        ]});
        assert_eq!(
            of("projected", sources),
            ["ConfigMap n/c", "Secret n/s", "ClusterTrustBundle b", "ClusterTrustBundles of signer example.com/s"]
        );
    }
}
