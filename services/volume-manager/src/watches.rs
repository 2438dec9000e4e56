//! What is watched, and which decisions a change touches. Everything a decision reads must lead here, or it waits for
//! ever.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::claim::Claim;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::csi_node::CsiNode;
use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::node_view::{NodePod, NodeVolume};
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::volume_source::VolumeSource;
use stowage_plugins::VolumeSpec;
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::decide::pod::is_live;
use crate::executor::{Operation, VolumeOperation};
use crate::state::States;

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The Node of this machine, `volumesInUse` included: one key, so one writer.
    Node,
    CsiNode,
    /// A registration socket.
    Plugin(String),
    /// A pod, by uid: a namesake is another pod.
    Pod(String),
    Volume(UniqueVolumeName),
}

pub struct Caches {
    pub nodes: Cache<Node>,
    pub pods: Cache<NodePod>,
    pub csi_nodes: Cache<CsiNode>,
    pub csi_drivers: Cache<CsiDriver>,
    pub claims: Cache<Claim>,
    pub volumes: Cache<NodeVolume>,
    pub attachments: Cache<VolumeAttachment>,
}

impl Default for Caches {
    fn default() -> Self {
        let claims = |pod: &NodePod| pod.claims().map(|key| key.to_string()).collect();
        Self {
            nodes: Cache::new(),
            pods: Cache::indexed(&[("uid", |pod: &NodePod| vec![pod.meta.uid.clone()]), ("claim", claims)]),
            csi_nodes: Cache::new(),
            csi_drivers: Cache::new(),
            claims: Cache::new(),
            volumes: Cache::new(),
            attachments: Cache::new(),
        }
    }
}

impl Controller {
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Self>) {
        let own = || Scope::fields(format!("metadata.name={}", self.options.node_name));
        let on_this_node = Scope::fields(format!("spec.nodeName={}", self.options.node_name));
        let caches = &self.caches;
        watches.cache(&caches.nodes, own(), |c, change| c.node_changed(change));
        watches.cache(&caches.pods, on_this_node, |c, change| {
            c.state.touch();
            c.state.read(|states| pod_changed(states, change))
        });
        watches.cache(&caches.csi_nodes, own(), |c, _| c.csi_node_changed());
        watches.cache(&caches.csi_drivers, Scope::all(), |c, change| c.csi_driver_changed(change));
        watches.cache(&caches.claims, Scope::all(), |c, change| c.users_of(change.key));
        watches.cache(&caches.volumes, Scope::all(), |c, change| c.volume_changed(change));
        watches.cache(&caches.attachments, Scope::all(), |c, change| c.attachment_changed(change));
    }

    pub(crate) fn all_keys(&self) -> Vec<Key> {
        let mut keys = BTreeSet::from([Key::Node, Key::CsiNode]);
        keys.extend(self.caches.pods.list().iter().map(|pod| Key::Pod(pod.meta.uid.clone())));
        keys.extend(self.plugin_keys());
        self.state.read(|states| {
            keys.extend(states.volumes().into_iter().map(Key::Volume));
            // Pods that are gone have left these behind.
            keys.extend(states.desired.uids().chain(&states.pod_dirs).cloned().map(Key::Pod));
        });
        keys.into_iter().collect()
    }

    /// The pods of this node that use a claim, and their volumes: what it says of its size concerns these.
    fn users_of(&self, claim: &ObjectKey) -> Vec<Key> {
        let users = self.caches.pods.by_index("claim", &claim.to_string());
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        self.state.read(|states| {
            for pod in users {
                keys.extend(states.volumes_of(&pod.meta.uid).into_iter().map(Key::Volume));
                keys.insert(Key::Pod(pod.meta.uid.clone()));
            }
        });
        keys.into_iter().collect()
    }

    fn volume_changed(&self, change: &Change<'_, NodeVolume>) -> Vec<Key> {
        let claims = change.both().filter_map(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.key());
        claims.flat_map(|claim| self.users_of(&claim)).collect()
    }

    /// Whether a driver attaches, and what it wants to be told, has changed: what failed before may go well now.
    fn csi_driver_changed(&self, change: &Change<'_, CsiDriver>) -> Vec<Key> {
        let keys = self.state.read(|states| driver(states, &change.key.name));
        self.try_again(&keys);
        let pods = self.caches.pods.list().into_iter().map(|pod| Key::Pod(pod.meta.uid.clone()));
        keys.into_iter().chain(pods).chain([Key::CsiNode]).collect()
    }

    fn attachment_changed(&self, change: &Change<'_, VolumeAttachment>) -> Vec<Key> {
        let ours = change.both().filter(|attachment| attachment.spec.node_name == self.options.node_name);
        let mut keys = Vec::new();
        for attachment in ours {
            let Some(name) = attachment.spec.source.persistent_volume_name.as_deref() else { continue };
            let Some(volume) = self.caches.volumes.get(&ObjectKey::cluster(name)) else { continue };
            keys.extend(volume.spec.csi.as_ref().map(|csi| Key::Volume(csi.unique_name())));
        }
        self.try_again(&keys);
        self.state.read(|states| with_users(states, keys))
    }

    fn plugin_keys(&self) -> Vec<Key> {
        self.state.read_drivers(|drivers| drivers.plugins.keys().cloned().map(Key::Plugin).collect())
    }

    fn node_changed(&self, change: &Change<'_, Node>) -> Vec<Key> {
        let keys = [Key::Node, Key::CsiNode].into_iter().chain(self.plugin_keys());
        keys.chain(self.state.read(|states| node_changed(states, change))).collect()
    }

    fn csi_node_changed(&self) -> Vec<Key> {
        [Key::CsiNode].into_iter().chain(self.plugin_keys()).collect()
    }

    /// Forgets failures of volumes whose cause has changed: they need not wait for their backoff.
    pub(crate) fn try_again(&self, keys: &[Key]) {
        for key in keys {
            if let Key::Volume(volume) = key {
                self.executor.forget_volume(volume);
            }
        }
    }
}

/// Volumes that are on the node for nobody: they wait until every pod's volumes are known.
pub fn idle_volumes(states: &States) -> Vec<Key> {
    let idle = states.actual.iter().filter(|(_, volume)| volume.pods.is_empty());
    idle.map(|(name, _)| Key::Volume(name.clone())).collect()
}

/// Everything about a pod: its status, its volumes, and what is in use.
pub fn pod(states: &States, uid: &str) -> Vec<Key> {
    let mut keys = vec![Key::Pod(uid.to_owned())];
    keys.extend(states.volumes_of(uid).into_iter().map(Key::Volume));
    keys.push(Key::Node);
    keys
}

fn pod_changed(states: &States, change: &Change<'_, NodePod>) -> Vec<Key> {
    let uids: BTreeSet<&str> = change.both().map(|pod| pod.meta().uid.as_str()).collect();
    let mut keys: Vec<Key> = uids.into_iter().flat_map(|uid| pod(states, uid)).collect();
    if !change.after.is_some_and(|pod| is_live(pod)) {
        // A pod that is gone before its volumes were known may have been the last to wait for.
        keys.extend(idle_volumes(states));
    }
    keys
}

fn node_changed(states: &States, change: &Change<'_, Node>) -> Vec<Key> {
    let names = |node: Option<&Arc<Node>>| -> (BTreeSet<UniqueVolumeName>, BTreeSet<UniqueVolumeName>) {
        let Some(node) = node else {
            return Default::default();
        };
        let attached = node.status.volumes_attached.iter().map(|volume| volume.name.as_str().into()).collect();
        (attached, node.status.volumes_in_use.iter().map(|name| name.as_str().into()).collect())
    };
    let (attached_before, in_use_before) = names(change.before);
    let (attached_after, in_use_after) = names(change.after);
    // The same version again means that an unknown Node is known again.
    let confirmed = change.before.is_some_and(|before| Some(before) == change.after);
    let touched = states.volumes().into_iter().filter(|name| {
        confirmed
            || change.before.is_none()
            || attached_before.contains(name) != attached_after.contains(name)
            || in_use_before.contains(name) != in_use_after.contains(name)
    });
    let labels = |node: Option<&Arc<Node>>| node.map(|node| node.meta.labels.clone());
    let mut keys = with_users(states, touched.map(Key::Volume));
    // Which volumes a pod can reach depends on the labels.
    if labels(change.before) != labels(change.after) {
        keys.extend(states.desired.uids().cloned().map(Key::Pod));
    }
    keys
}

/// Whether a driver may be called has changed.
pub fn driver(states: &States, name: &str) -> Vec<Key> {
    let is_of = |spec: &VolumeSpec| driver_of(spec) == Some(name);
    let of_driver = states.volumes().into_iter().filter(|volume| {
        states.desired.users(volume).any(|(_, mount)| is_of(&mount.spec))
            || states.actual.get(volume).is_some_and(|known| is_of(&known.spec))
    });
    with_users(states, of_driver.map(Key::Volume)).into_iter().chain([Key::Node]).collect()
}

/// The CSI driver of a volume.
pub fn driver_of(spec: &VolumeSpec) -> Option<&str> {
    match &spec.source {
        VolumeSource::Csi(source) => Some(&source.driver),
        VolumeSource::CsiInline(source) => Some(&source.driver),
        _ => None,
    }
}

/// Volumes, and the pods whose status says what becomes of these.
pub fn with_users(states: &States, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
    let mut all: BTreeSet<Key> = BTreeSet::new();
    for key in keys {
        if let Key::Volume(volume) = &key {
            all.extend(states.desired.users(volume).map(|(uid, _)| Key::Pod(uid.to_owned())));
        }
        all.insert(key);
    }
    all.into_iter().collect()
}

pub fn plugin(socket: &str) -> [Key; 3] {
    [Key::Plugin(socket.to_owned()), Key::Node, Key::CsiNode]
}

/// Volumes that a report of what is in use left out.
pub fn left_out(states: &States, reported: &BTreeSet<UniqueVolumeName>) -> Vec<Key> {
    states.volumes().into_iter().filter(|volume| !reported.contains(volume)).map(Key::Volume).collect()
}

pub fn ended(operation: &Operation) -> Vec<Key> {
    match operation {
        Operation::Greet(socket) | Operation::Notify(socket) => plugin(socket).into(),
        Operation::Refresh(_) => vec![Key::CsiNode, Key::Node],
        Operation::Volume(VolumeOperation { volume, pod, .. }) => {
            let pod = pod.iter().cloned().map(Key::Pod);
            [Key::Volume(volume.clone())].into_iter().chain(pod).chain([Key::Node]).collect()
        }
    }
}
