//! Which decisions a change touches. Everything a decision reads must lead here, or it waits for ever.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::csi_driver::CsiDriver;
use stowage_model::node::Node;
use stowage_model::object::Projection;
use stowage_model::pod::Pod;
use stowage_runtime::cache::Change;
use stowage_runtime::queue::Queue;

use crate::decide::pod::is_live;
use crate::decide::{Key, Operation};
use crate::desired::VolumeId;
use crate::world::State;

#[derive(Clone)]
pub struct Wake {
    pub queue: Queue<Key>,
    pub state: Arc<State>,
}

impl Wake {
    fn volumes(&self, volumes: impl IntoIterator<Item = VolumeId>) {
        for volume in volumes {
            self.queue.add(Key::Volume(volume));
        }
    }

    fn plugins(&self) {
        for socket in self.state.with(|world| world.plugins.keys().cloned().collect::<Vec<_>>()) {
            self.queue.add(Key::Plugin(socket));
        }
    }

    /// Everything about a pod: its status, its volumes, and what is in use.
    pub fn pod(&self, uid: &str) {
        self.queue.add(Key::Pod(uid.to_owned()));
        let volumes: BTreeSet<VolumeId> = self.state.with(|world| {
            let wanted = world.resolutions.get(uid).into_iter().flat_map(|resolution| resolution.uses.keys());
            wanted.chain(world.published_for(uid)).cloned().collect()
        });
        self.volumes(volumes);
        self.queue.add(Key::Node);
    }

    pub fn pod_changed(&self, change: &Change<'_, Pod>) {
        let uids: BTreeSet<&str> =
            change.before.iter().chain(&change.after).map(|pod| pod.meta().uid.as_str()).collect();
        for uid in uids {
            self.pod(uid);
        }
        if !change.after.is_some_and(|pod| is_live(pod)) {
            // A pod that is gone before its volumes were known may have been the last to wait for.
            self.idle_volumes();
        }
    }

    pub fn node_changed(&self, change: &Change<'_, Node>) {
        self.queue.add(Key::Node);
        self.queue.add(Key::CsiNode);
        self.plugins();
        let names = |node: Option<&Arc<Node>>| -> (BTreeSet<String>, BTreeSet<String>) {
            let Some(node) = node else {
                return Default::default();
            };
            let attached = node.status.volumes_attached.iter().map(|volume| volume.name.clone()).collect();
            (attached, node.status.volumes_in_use.iter().cloned().collect())
        };
        let (attached_before, in_use_before) = names(change.before);
        let (attached_after, in_use_after) = names(change.after);
        // The same version again means that an unknown Node is known again.
        let confirmed = change.before.is_some_and(|before| Some(before) == change.after);
        let mut volumes = self.state.with(|world| world.volumes());
        volumes.retain(|volume| {
            let name = volume.unique_name();
            confirmed
                || change.before.is_none()
                || attached_before.contains(&name) != attached_after.contains(&name)
                || in_use_before.contains(&name) != in_use_after.contains(&name)
        });
        self.volumes(volumes);
    }

    /// Volumes that a report of what is in use left out.
    pub fn left_out(&self, reported: &BTreeSet<String>) {
        let mut volumes = self.state.with(|world| world.volumes());
        volumes.retain(|volume| !reported.contains(&volume.unique_name()));
        self.volumes(volumes);
    }

    pub fn csi_node_changed(&self) {
        self.queue.add(Key::CsiNode);
        self.plugins();
    }

    pub fn csi_driver_changed(&self, change: &Change<'_, CsiDriver>) {
        self.driver(&change.key.name);
    }

    /// Whether a driver attaches, or may be called, has changed.
    pub fn driver(&self, name: &str) {
        let mut volumes = self.state.with(|world| world.volumes());
        volumes.retain(|volume| volume.driver == name);
        self.volumes(volumes);
        self.queue.add(Key::Node);
    }

    pub fn plugin(&self, socket: &str) {
        self.queue.add(Key::Plugin(socket.to_owned()));
        self.queue.add(Key::Node);
        self.queue.add(Key::CsiNode);
    }

    /// Volumes that are staged for nobody: they wait until every pod's volumes are known.
    fn idle_volumes(&self) {
        let idle: Vec<VolumeId> = self.state.with(|world| {
            world.staged.keys().filter(|volume| !world.published.contains_key(volume)).cloned().collect()
        });
        self.volumes(idle);
    }

    pub fn ended(&self, operation: &Operation) {
        match operation {
            Operation::Greet(socket) | Operation::Notify(socket) => self.plugin(socket),
            Operation::Resolve(uid) => {
                self.pod(uid);
                self.idle_volumes();
            }
            Operation::Stage(volume) | Operation::Unstage(volume) => {
                self.queue.add(Key::Volume(volume.clone()));
                self.queue.add(Key::Node);
            }
            Operation::Publish(volume, uid) | Operation::Unpublish(volume, uid) => {
                self.queue.add(Key::Volume(volume.clone()));
                self.queue.add(Key::Pod(uid.clone()));
                self.queue.add(Key::Node);
            }
        }
    }
}
