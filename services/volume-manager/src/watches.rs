//! What is watched, and which decisions a change touches. Everything a decision reads must lead here, or it waits for
//! ever.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::csi_driver::CsiDriver;
use stowage_model::csi_node::CsiNode;
use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::object::Projection;
use stowage_model::pod::Pod;
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::decide::Operation;
use crate::decide::pod::is_live;
use crate::desired::VolumeId;
use crate::world::World;

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
    Volume(VolumeId),
}

pub struct Caches {
    pub nodes: Cache<Node>,
    pub pods: Cache<Pod>,
    pub csi_nodes: Cache<CsiNode>,
    pub csi_drivers: Cache<CsiDriver>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            nodes: Cache::new(),
            pods: Cache::indexed(&[("uid", |pod: &Pod| vec![pod.meta.uid.clone()])]),
            csi_nodes: Cache::new(),
            csi_drivers: Cache::new(),
        }
    }
}

impl Controller {
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Self>) {
        let own = || Scope::fields(format!("metadata.name={}", self.options.node_name));
        let on_this_node = Scope::fields(format!("spec.nodeName={}", self.options.node_name));
        let caches = &self.caches;
        watches.cache(&caches.nodes, own(), |c, change| c.state.read(|world| node_changed(world, change)));
        watches.cache(&caches.pods, on_this_node, |c, change| c.state.read(|world| pod_changed(world, change)));
        watches.cache(&caches.csi_nodes, own(), |c, _| c.state.read(csi_node_changed));
        watches.cache(&caches.csi_drivers, Scope::all(), |c, change| {
            c.state.read(|world| driver(world, &change.key.name))
        });
    }

    pub(crate) fn all_keys(&self) -> Vec<Key> {
        let mut keys = BTreeSet::from([Key::Node, Key::CsiNode]);
        keys.extend(self.caches.pods.list().iter().map(|pod| Key::Pod(pod.meta.uid.clone())));
        self.state.read(|world| {
            keys.extend(plugins(world));
            keys.extend(world.volumes().into_iter().map(Key::Volume));
            // Pods that are gone have left these behind.
            keys.extend(world.resolutions.keys().chain(&world.pod_dirs).cloned().map(Key::Pod));
        });
        keys.into_iter().collect()
    }
}

fn plugins(world: &World) -> impl Iterator<Item = Key> {
    world.plugins.keys().cloned().map(Key::Plugin)
}

/// The volumes, wanted or held, of which this holds.
fn volumes_that(world: &World, holds: impl Fn(&VolumeId) -> bool) -> impl Iterator<Item = Key> {
    world.volumes().into_iter().filter(holds).map(Key::Volume)
}

/// Volumes that are staged for nobody: they wait until every pod's volumes are known.
fn idle_volumes(world: &World) -> impl Iterator<Item = Key> {
    let idle = world.staged.keys().filter(|volume| !world.published.contains_key(volume));
    idle.cloned().map(Key::Volume)
}

/// Everything about a pod: its status, its volumes, and what is in use.
fn pod(world: &World, uid: &str) -> Vec<Key> {
    let wanted = world.resolutions.get(uid).into_iter().flat_map(|resolution| resolution.uses.keys());
    let volumes: BTreeSet<VolumeId> = wanted.chain(world.published_for(uid)).cloned().collect();
    let mut keys = vec![Key::Pod(uid.to_owned())];
    keys.extend(volumes.into_iter().map(Key::Volume));
    keys.push(Key::Node);
    keys
}

fn pod_changed(world: &World, change: &Change<'_, Pod>) -> Vec<Key> {
    let uids: BTreeSet<&str> = change.before.iter().chain(&change.after).map(|pod| pod.meta().uid.as_str()).collect();
    let mut keys: Vec<Key> = uids.into_iter().flat_map(|uid| pod(world, uid)).collect();
    if !change.after.is_some_and(|pod| is_live(pod)) {
        // A pod that is gone before its volumes were known may have been the last to wait for.
        keys.extend(idle_volumes(world));
    }
    keys
}

fn node_changed(world: &World, change: &Change<'_, Node>) -> Vec<Key> {
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
    let touched = volumes_that(world, |volume| {
        let name = volume.unique_name();
        confirmed
            || change.before.is_none()
            || attached_before.contains(&name) != attached_after.contains(&name)
            || in_use_before.contains(&name) != in_use_after.contains(&name)
    });
    [Key::Node, Key::CsiNode].into_iter().chain(plugins(world)).chain(touched).collect()
}

fn csi_node_changed(world: &World) -> Vec<Key> {
    std::iter::once(Key::CsiNode).chain(plugins(world)).collect()
}

/// Whether a driver attaches, or may be called, has changed.
pub fn driver(world: &World, name: &str) -> Vec<Key> {
    volumes_that(world, |volume| volume.driver == name).chain([Key::Node]).collect()
}

pub fn plugin(socket: &str) -> [Key; 3] {
    [Key::Plugin(socket.to_owned()), Key::Node, Key::CsiNode]
}

/// Volumes that a report of what is in use left out.
pub fn left_out(world: &World, reported: &BTreeSet<UniqueVolumeName>) -> Vec<Key> {
    volumes_that(world, |volume| !reported.contains(&volume.unique_name())).collect()
}

pub fn ended(world: &World, operation: &Operation) -> Vec<Key> {
    match operation {
        Operation::Greet(socket) | Operation::Notify(socket) => plugin(socket).into(),
        Operation::Resolve(uid) => pod(world, uid).into_iter().chain(idle_volumes(world)).collect(),
        Operation::Stage(volume) | Operation::Unstage(volume) => vec![Key::Volume(volume.clone()), Key::Node],
        Operation::Publish(volume, uid) | Operation::Unpublish(volume, uid) => {
            vec![Key::Volume(volume.clone()), Key::Pod(uid.clone()), Key::Node]
        }
    }
}
