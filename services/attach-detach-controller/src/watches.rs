//! What is watched, the ways from one object to another, and which change wakes which key.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::phase::ClaimPhase;
use stowage_model::pod::PodVolumeSource;
use stowage_model::volume::CsiSource;
use stowage_model::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment};
use stowage_model::{migration, object};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;

/// What is decided on together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A volume on all nodes: who may have it is decided in one place.
    Volume(UniqueVolumeName),
    /// An attachment by its name; only one whose volume cannot be found is decided on under it.
    Attachment(String),
}

/// Clones share the views.
#[derive(Clone)]
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
                ("inline", |pod| inline(pod).iter().filter_map(unique_name).map(|name| name.to_string()).collect()),
            ]),
            claims: Cache::new(),
            volumes: Cache::indexed(&[("unique", |volume| {
                unique_name(volume).iter().map(UniqueVolumeName::to_string).collect()
            })]),
            nodes: Cache::indexed(&[("volume", |node| {
                mentioned(node).iter().map(UniqueVolumeName::to_string).collect()
            })]),
            attachments: Cache::indexed(&[
                ("volume", |attachment| attachment.volume_name().map(str::to_owned).into_iter().collect()),
                ("inline", |attachment| {
                    attachment.inline_csi().map(|csi| csi.unique_name().to_string()).into_iter().collect()
                }),
                ("node", |attachment| vec![attachment.spec.node_name.clone()]),
            ]),
            drivers: Cache::new(),
        }
    }

    /// What is attached is listed before what is wanted: a wish older than the attachment made for it would look as if it
    /// had been withdrawn.
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Controller>) {
        watches.cache(&self.attachments, Scope::all(), |controller, change| controller.caches.of_attachment(change));
        watches.cache(&self.nodes, Scope::all(), |controller, change| controller.caches.of_node(change));
        watches.cache(&self.drivers, Scope::all(), |controller, change| controller.caches.of_driver(change));
        watches.then();
        watches.cache(&self.volumes, Scope::all(), |controller, change| controller.caches.of_volume(change));
        watches.cache(&self.claims, Scope::all(), |controller, change| controller.caches.of_claim(change));
        watches.cache(&self.pods, Scope::all(), |controller, change| controller.caches.of_pod(change));
    }

    /// Every key there can be something to decide under.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys = BTreeSet::new();
        for pod in self.pods.list() {
            keys.extend(self.volumes_of_pod(&pod).map(Key::Volume));
        }
        for attachment in self.attachments.list() {
            keys.insert(self.key_of(&attachment));
        }
        for node in self.nodes.list() {
            keys.extend(mentioned(&node).into_iter().map(Key::Volume));
        }
        keys.into_iter().collect()
    }

    fn of_attachment(&self, change: &Change<'_, VolumeAttachment>) -> BTreeSet<Key> {
        change.both().map(|attachment| self.key_of(attachment)).collect()
    }

    fn of_node(&self, change: &Change<'_, Node>) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for volume in altered(change) {
            // Where the volume object is gone, the attachment is found through what the node mentions.
            if self.volumes.by_index("unique", volume.as_str()).is_empty()
                && let Some(name) = attachment_name(&volume, &change.key.name)
                && self.attachments.get(&object::Key::cluster(name.as_str())).is_some()
            {
                keys.insert(Key::Attachment(name));
            }
            keys.insert(Key::Volume(volume));
        }
        // Heartbeats come every few seconds; what bears on all volumes of the node seldom changes.
        let standing = |node: &Node| {
            let ready = node.ready().map(|ready| (ready.is_true(), ready.last_transition_time));
            (node.meta.uid.clone(), node.is_attach_managed(), node.is_out_of_service(), ready)
        };
        if change.before.map(|node| standing(node)) != change.after.map(|node| standing(node)) {
            let name = &change.key.name;
            for pod in self.pods.by_index("node", name) {
                keys.extend(self.volumes_of_pod(&pod).map(Key::Volume));
            }
            keys.extend(self.attachments.by_index("node", name).iter().map(|attachment| self.key_of(attachment)));
            keys.extend(change.both().flat_map(mentioned).map(Key::Volume));
        }
        keys
    }

    fn of_driver(&self, change: &Change<'_, CsiDriver>) -> BTreeSet<Key> {
        let needs = |driver: Option<&Arc<CsiDriver>>| driver.is_none_or(|driver| driver.needs_attach());
        if needs(change.before) == needs(change.after) {
            return BTreeSet::new();
        }
        let mut volumes: BTreeSet<UniqueVolumeName> =
            self.volumes.list().iter().filter_map(|volume| unique_name(volume)).collect();
        volumes.extend(self.pods.list().iter().flat_map(|pod| inline(pod)).filter_map(|volume| unique_name(&volume)));
        let is_its =
            |volume: &UniqueVolumeName| volume.driver_and_handle().is_some_and(|(driver, _)| driver == change.key.name);
        volumes.into_iter().filter(is_its).map(Key::Volume).collect()
    }

    fn of_volume(&self, change: &Change<'_, Volume>) -> BTreeSet<Key> {
        let mut keys: BTreeSet<Key> = change.both().filter_map(unique_name).map(Key::Volume).collect();
        if change.before.is_none() || change.after.is_none() {
            // Its attachments are decided on under another key from now on.
            let attachments = self.attachments.by_index("volume", &change.key.name);
            keys.extend(attachments.iter().map(|attachment| self.key_of(attachment)));
        }
        keys
    }

    fn of_claim(&self, change: &Change<'_, Claim>) -> BTreeSet<Key> {
        change.both().filter_map(|claim| self.volume_of_claim(claim)).map(Key::Volume).collect()
    }

    fn of_pod(&self, change: &Change<'_, Pod>) -> BTreeSet<Key> {
        // Pods change all the time; only where they want volumes counts.
        if change.before.and_then(|pod| wants_at(pod)) == change.after.and_then(|pod| wants_at(pod)) {
            return BTreeSet::new();
        }
        change.both().flat_map(|pod| self.volumes_of_pod(pod)).map(Key::Volume).collect()
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
        pods.retain(|pod| self.wants(pod) && uses(pod, &claim));
        pods
    }

    /// The pods that name a disk of this volume themselves and want it on such a node, and what they name.
    pub fn pods_with(&self, volume: &UniqueVolumeName) -> Vec<(Arc<Pod>, Arc<Volume>)> {
        let mut pods = self.pods.by_index("inline", volume.as_str());
        pods.retain(|pod| self.wants(pod));
        let named = |pod: Arc<Pod>| {
            let found = inline(&pod).into_iter().find(|found| unique_name(found).as_ref() == Some(volume));
            found.map(|found| (pod, Arc::new(found)))
        };
        pods.into_iter().filter_map(named).collect()
    }

    fn wants(&self, pod: &Pod) -> bool {
        let node = wants_at(pod).map(|node| self.nodes.get(&object::Key::cluster(node)));
        node.is_some_and(|node| node.is_none_or(|node| node.is_attach_managed()))
    }

    /// The volumes behind a pod's claims, and those that it names itself.
    fn volumes_of_pod(&self, pod: &Pod) -> impl Iterator<Item = UniqueVolumeName> {
        let claims = pod.claims().filter_map(|key| self.claims.get(&key));
        let own = inline(pod).into_iter().filter_map(|volume| unique_name(&volume));
        claims.filter_map(|claim| self.volume_of_claim(&claim)).chain(own)
    }

    fn volume_of_claim(&self, claim: &Claim) -> Option<UniqueVolumeName> {
        self.volumes.get(&object::Key::cluster(claim.spec.volume_name.as_str())).and_then(|volume| unique_name(&volume))
    }

    /// An attachment's volume: from the volume object, or where that is gone, from the node that mentions it.
    pub fn volume_of(&self, attachment: &VolumeAttachment) -> Option<UniqueVolumeName> {
        if let Some(csi) = attachment.inline_csi() {
            return Some(csi.unique_name());
        }
        let volume = self.volumes.get(&object::Key::cluster(attachment.volume_name()?));
        if let Some(volume) = volume {
            return unique_name(&volume);
        }
        let node = self.nodes.get(&object::Key::cluster(attachment.spec.node_name.as_str()))?;
        mentioned(&node)
            .into_iter()
            .find(|volume| attachment_name(volume, &node.meta.name).is_some_and(|name| name == attachment.meta.name))
    }

    fn key_of(&self, attachment: &VolumeAttachment) -> Key {
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
fn wants_at(pod: &Pod) -> Option<&str> {
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

/// Under the name of its CSI driver, also where an in-tree plugin had it before.
fn unique_name(volume: &Volume) -> Option<UniqueVolumeName> {
    let volume = migration::to_csi(volume).ok().flatten()?;
    volume.spec.csi.as_ref().map(CsiSource::unique_name)
}

/// The disks of in-tree plugins that a pod names itself, as the drivers that took over know them. What they cannot use
/// is the node's to tell.
fn inline(pod: &Pod) -> Vec<Volume> {
    let own = pod.spec.volumes.iter().filter(|volume| matches!(volume.source, PodVolumeSource::InTree(_)));
    own.filter_map(|volume| migration::inline_to_csi(volume, &pod.meta.namespace).ok().flatten()).collect()
}

/// The name of a volume's attachment to a node.
pub fn attachment_name(volume: &UniqueVolumeName, node: &str) -> Option<String> {
    volume.driver_and_handle().map(|(driver, handle)| names::attachment(handle.as_str(), driver, node))
}

/// The volumes in a node's status, attached or in use.
fn mentioned(node: &Node) -> BTreeSet<UniqueVolumeName> {
    lists(node).map(|(_, volume)| volume).collect()
}

/// What the node's two lists hold, and whether it is in the first.
fn lists(node: &Node) -> impl Iterator<Item = (bool, UniqueVolumeName)> {
    let attached = node.status.volumes_attached.iter().map(|volume| (true, volume.name.as_str().into()));
    attached.chain(node.status.volumes_in_use.iter().map(|volume| (false, volume.as_str().into())))
}

/// Volumes that came into or went from one of the node's two lists.
fn altered(change: &Change<'_, Node>) -> BTreeSet<UniqueVolumeName> {
    let entries = |node: Option<&Arc<Node>>| -> BTreeSet<_> { node.into_iter().flat_map(|node| lists(node)).collect() };
    let (before, after) = (entries(change.before), entries(change.after));
    before.symmetric_difference(&after).map(|(_, volume)| volume.clone()).collect()
}
