//! What is watched, and the ways from one object to another.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::object;
use stowage_model::phase::ClaimPhase;
use stowage_model::pod::PodVolumeSource;
use stowage_model::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment, names};
use stowage_runtime::cache::Cache;

/// What is decided on together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A volume on all nodes, by its unique name.
    Volume(String),
    /// An attachment by its name; only one whose volume cannot be found is decided on under it.
    Attachment(String),
}

pub struct Caches {
    pub pods: Cache<Pod>,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub nodes: Cache<Node>,
    pub attachments: Cache<VolumeAttachment>,
    pub drivers: Cache<CsiDriver>,
}

impl Caches {
    pub fn new() -> Self {
        Self {
            pods: Cache::indexed(&[
                ("claim", |pod| pod.claims().map(|claim| claim.to_string()).collect()),
                ("node", |pod| vec![pod.spec.node_name.clone()]),
            ]),
            claims: Cache::new(),
            volumes: Cache::indexed(&[("unique", |volume| unique_name(volume).into_iter().collect())]),
            nodes: Cache::indexed(&[("volume", |node| mentioned(node).into_iter().collect())]),
            attachments: Cache::indexed(&[
                ("volume", |attachment| attachment.volume_name().map(str::to_owned).into_iter().collect()),
                ("node", |attachment| vec![attachment.spec.node_name.clone()]),
            ]),
            drivers: Cache::new(),
        }
    }

    /// The pods that want this volume on a node that we look after. A node that is gone may come back under its running
    /// pods, so their wishes stand until somebody collects them.
    pub fn pods_of(&self, volume: &Volume) -> Vec<Arc<Pod>> {
        let Some(reference) = &volume.spec.claim_ref else { return Vec::new() };
        let key = reference.key();
        let Some(claim) = self.claims.get(&key) else { return Vec::new() };
        if reference.uid != claim.meta.uid
            || claim.spec.volume_name != volume.meta.name
            || claim.status.phase != ClaimPhase::Bound
        {
            return Vec::new();
        }
        let mut pods = self.pods.by_index("claim", &key.to_string());
        pods.retain(|pod| {
            let node = wants_at(pod).map(|node| self.nodes.get(&object::Key::cluster(node)));
            node.is_some_and(|node| node.is_none_or(|node| node.is_attach_managed())) && uses(pod, &claim)
        });
        pods
    }

    /// The unique names of the volumes behind a pod's claims.
    pub fn volumes_of_pod(&self, pod: &Pod) -> BTreeSet<String> {
        let claims = pod.claims().filter_map(|key| self.claims.get(&key));
        claims.filter_map(|claim| self.volume_of_claim(&claim)).collect()
    }

    /// The unique name of the volume a claim names.
    pub fn volume_of_claim(&self, claim: &Claim) -> Option<String> {
        self.volumes.get(&object::Key::cluster(claim.spec.volume_name.as_str())).and_then(|volume| unique_name(&volume))
    }

    /// The unique name of an attachment's volume: from the volume object, or where that is gone, from the node that
    /// mentions it.
    pub fn volume_of(&self, attachment: &VolumeAttachment) -> Option<String> {
        let volume = self.volumes.get(&object::Key::cluster(attachment.volume_name()?));
        if let Some(volume) = volume {
            return unique_name(&volume);
        }
        let node = self.nodes.get(&object::Key::cluster(attachment.spec.node_name.as_str()))?;
        mentioned(&node)
            .into_iter()
            .find(|volume| attachment_name(volume, &node.meta.name).is_some_and(|name| name == attachment.meta.name))
    }

    /// Every key there can be something to decide under.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys = BTreeSet::new();
        for pod in self.pods.list() {
            keys.extend(self.volumes_of_pod(&pod).into_iter().map(Key::Volume));
        }
        for attachment in self.attachments.list() {
            keys.insert(self.key_of(&attachment));
        }
        for node in self.nodes.list() {
            keys.extend(mentioned(&node).into_iter().map(Key::Volume));
        }
        keys.into_iter().collect()
    }

    pub fn key_of(&self, attachment: &VolumeAttachment) -> Key {
        self.volume_of(attachment).map_or_else(|| Key::Attachment(attachment.meta.name.clone()), Key::Volume)
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self::new()
    }
}

/// The node on which a pod wants its volumes. A pod that ended, or is being deleted and runs nothing any more, wants
/// none: what it may still have mounted is protected by the node's `volumesInUse`.
pub fn wants_at(pod: &Pod) -> Option<&str> {
    let over = pod.is_terminal() || (pod.meta.is_deleting() && !pod.has_running_containers());
    (pod.is_scheduled() && !over).then_some(pod.spec.node_name.as_str())
}

/// Whether one of the pod's volumes really is this claim; a claim that only has the name of an ephemeral volume's is not.
fn uses(pod: &Pod, claim: &Claim) -> bool {
    pod.spec.volumes.iter().any(|volume| {
        pod.claim_of(volume) == Some(claim.meta.key())
            && (volume.source != PodVolumeSource::Ephemeral || claim.is_owned_by(pod))
    })
}

pub fn unique_name(volume: &Volume) -> Option<String> {
    volume.spec.csi.as_ref().map(|csi| csi.unique_name())
}

/// The name of a volume's attachment to a node.
pub fn attachment_name(volume: &str, node: &str) -> Option<String> {
    names::parse_csi_volume(volume).map(|(driver, handle)| names::attachment(handle, driver, node))
}

/// The volumes in a node's status, attached or in use.
pub fn mentioned(node: &Node) -> BTreeSet<String> {
    let attached = node.status.volumes_attached.iter().map(|volume| volume.name.clone());
    attached.chain(node.status.volumes_in_use.iter().cloned()).collect()
}
