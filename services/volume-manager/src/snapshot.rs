//! Gathers what one decision needs from the caches and the world into plain structs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::pod::Pod;
use stowage_runtime::cache::View;
use stowage_runtime::operation::State;

use crate::controller::Controller;
use crate::decide::volume::{Attachment, Held, Wanted};
use crate::decide::{self, Operation, pod::is_live};
use crate::desired::VolumeId;
use crate::watches::Key;
use crate::world::{DriverInfo, Hold, Plugin, World};

/// All that one decision is made from.
#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    Node(decide::node::Snapshot),
    CsiNode(decide::csi_node::Snapshot),
    Plugin(decide::plugin::Snapshot),
    Pod(decide::pod::Snapshot),
    Volume(decide::volume::Snapshot),
}

impl Controller {
    pub(crate) fn snapshot(&self, key: &Key) -> Snapshot {
        match key {
            Key::Node => Snapshot::Node(self.node_snapshot()),
            Key::CsiNode => Snapshot::CsiNode(self.csi_node_snapshot()),
            Key::Plugin(socket) => Snapshot::Plugin(self.plugin_snapshot(socket)),
            Key::Pod(uid) => Snapshot::Pod(self.pod_snapshot(uid)),
            Key::Volume(volume) => Snapshot::Volume(self.volume_snapshot(volume)),
        }
    }

    pub(crate) fn node_key(&self) -> ObjectKey {
        ObjectKey::cluster(&self.options.node_name)
    }

    /// The Node, if it may be decided on.
    fn node(&self) -> Option<Arc<Node>> {
        match self.caches.nodes.view(&self.node_key()) {
            View::Known(node) => Some(node),
            View::Absent | View::Unknown => None,
        }
    }

    /// The newest version of the pod with this uid.
    pub(crate) fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.caches.pods.by_index("uid", uid).into_iter().next()
    }

    fn live_pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pod(uid).filter(|pod| is_live(pod))
    }

    /// Whether volumes of the driver are attached; so unless its CSIDriver says otherwise.
    pub(crate) fn attaches(&self, driver: &str) -> bool {
        self.caches.csi_drivers.get(&ObjectKey::cluster(driver)).is_none_or(|driver| driver.needs_attach())
    }

    /// Unique names of the attachable volumes that live pods want or that are or may be mounted.
    pub(crate) fn in_use(&self, world: &World) -> BTreeSet<UniqueVolumeName> {
        let wanted = world.resolutions.iter().filter(|(uid, _)| self.live_pod(uid).is_some());
        let wanted = wanted.flat_map(|(_, resolution)| resolution.uses.keys());
        let attachable = wanted.chain(world.held()).filter(|volume| self.attaches(&volume.driver));
        let mut names: BTreeSet<UniqueVolumeName> = attachable.map(VolumeId::unique_name).collect();
        names.extend(world.kept_in_use.iter().cloned());
        let Some(node) = self.caches.nodes.get(&self.node_key()) else {
            return names;
        };
        // What was reported stays reported until it is unmounted, whatever its CSIDriver says by now.
        names.extend(world.held().map(VolumeId::unique_name).filter(|name| node.is_in_use(name.as_str())));
        // A pod whose volumes are not known yet may want any of those that were reported before a restart.
        if self.has_unresolved_pods(world) {
            names.extend(node.status.volumes_in_use.iter().map(|name| name.as_str().into()));
        }
        names
    }

    pub(crate) fn attachment(&self, volume: &VolumeId, world: &World) -> Attachment {
        if !self.attaches(&volume.driver) {
            return Attachment::NotNeeded;
        }
        let Some(node) = self.node() else {
            return Attachment::NodeUnknown;
        };
        let name = volume.unique_name();
        let withdrawing = world.reporting.as_ref().is_some_and(|list| !list.contains(&name));
        if withdrawing || !node.is_in_use(name.as_str()) {
            Attachment::NotInUse
        } else if !node.is_attached(name.as_str()) {
            Attachment::NotAttached
        } else {
            Attachment::Attached
        }
    }

    fn announced(world: &World) -> Vec<DriverInfo> {
        world.plugins.values().filter_map(Plugin::announced).cloned().collect()
    }

    fn node_snapshot(&self) -> decide::node::Snapshot {
        self.state.read(|world| decide::node::Snapshot {
            name: self.options.node_name.clone(),
            node: self.caches.nodes.view(&self.node_key()),
            labels: crate::node::labels(&self.options),
            status: crate::node::status(&self.options),
            drivers: Self::announced(world),
            dismissed: world.dismissed.clone(),
            in_use: self.in_use(world),
            heartbeat: world.heartbeat,
            lease_duration: SignedDuration::try_from(self.options.lease_duration).unwrap_or(SignedDuration::MAX),
        })
    }

    fn csi_node_snapshot(&self) -> decide::csi_node::Snapshot {
        self.state.read(|world| decide::csi_node::Snapshot {
            name: self.options.node_name.clone(),
            csi_node: self.caches.csi_nodes.view(&self.node_key()),
            node_uid: self.node().map(|node| node.meta.uid.clone()),
            drivers: Self::announced(world),
            dismissed: world.dismissed.clone(),
        })
    }

    fn plugin_snapshot(&self, socket: &str) -> decide::plugin::Snapshot {
        let (plugin, twin) = self.state.read(|world| {
            let plugin = world.plugins.get(socket);
            let greeted = plugin.and_then(|plugin| plugin.greeted.as_ref()).map(|driver| driver.info.clone());
            let twin = greeted.as_ref().and_then(|driver| {
                let others = world.plugins.iter().filter(|(other, _)| *other != socket);
                let mut announced = others.filter_map(|(_, plugin)| plugin.announced());
                announced.find(|other| other.name == driver.name).map(|other| other.version.clone())
            });
            let plugin = plugin.map(|plugin| decide::plugin::View {
                instance: plugin.instance,
                greeted,
                accepted: plugin.accepted,
                refused: plugin.refused.clone(),
                notified: plugin.notified,
            });
            (plugin, twin)
        });
        decide::plugin::Snapshot {
            socket: socket.to_owned(),
            plugin,
            twin,
            node: self.node(),
            csi_node: match self.caches.csi_nodes.view(&self.node_key()) {
                View::Known(csi_node) => Some(csi_node),
                View::Absent | View::Unknown => None,
            },
            greeting: self.operations.record(&Operation::Greet(socket.to_owned())),
            notification: self.operations.record(&Operation::Notify(socket.to_owned())),
        }
    }

    fn pod_snapshot(&self, uid: &str) -> decide::pod::Snapshot {
        let pod = match self.pod(uid) {
            None => decide::pod::View::Absent,
            Some(pod) => match self.caches.pods.view(&pod.key()) {
                View::Unknown => decide::pod::View::Unknown(pod.key()),
                View::Absent | View::Known(_) => decide::pod::View::Known(pod),
            },
        };
        let has_records = self.ended_mounts(uid).next().is_some();
        self.state.read(|world| {
            let held: Vec<Hold> =
                world.published.values().filter_map(|pods| pods.get(uid)).map(|published| published.hold).collect();
            decide::pod::Snapshot {
                uid: uid.to_owned(),
                pod,
                resolution: world.resolutions.get(uid).cloned(),
                resolving: self.operations.record(&Operation::Resolve(uid.to_owned())),
                held: held.len(),
                mounted: held.iter().filter(|hold| **hold == Hold::Mounted).count(),
                has_dir: world.pod_dirs.contains(uid),
                has_records,
                told: world.told.known(&uid.to_owned()),
            }
        })
    }

    /// Operations that mounted or unmounted volumes for the pod and are over.
    pub(crate) fn ended_mounts(&self, uid: &str) -> impl Iterator<Item = Operation> {
        let of_pod = move |operation: &Operation| matches!(operation, Operation::Publish(_, of) | Operation::Unpublish(_, of) if of == uid);
        let operations = self.operations.keys().into_iter().filter(of_pod);
        operations
            .filter(|operation| self.operations.record(operation).is_some_and(|record| record.state != State::Running))
    }

    fn volume_snapshot(&self, volume: &VolumeId) -> decide::volume::Snapshot {
        self.state.read(|world| {
            let mut wanted = BTreeMap::new();
            for (uid, resolution) in &world.resolutions {
                if let (Some(usage), Some(pod)) = (resolution.uses.get(volume), self.live_pod(uid)) {
                    let told = world.told.known(uid);
                    wanted.insert(uid.clone(), Wanted { pod, usage: usage.clone(), told });
                }
            }
            let published: BTreeMap<String, Held> = world
                .published
                .get(volume)
                .into_iter()
                .flatten()
                .map(|(uid, published)| {
                    let held = Held { published: published.clone(), pod_is_live: self.live_pod(uid).is_some() };
                    (uid.clone(), held)
                })
                .collect();
            let mut operations = vec![Operation::Stage(volume.clone()), Operation::Unstage(volume.clone())];
            for uid in wanted.keys().chain(published.keys()) {
                operations.push(Operation::Publish(volume.clone(), uid.clone()));
                operations.push(Operation::Unpublish(volume.clone(), uid.clone()));
            }
            let records = operations.into_iter().filter_map(|operation| {
                let record = self.operations.record(&operation)?;
                Some((operation, record))
            });
            let staged = world.staged.get(volume).cloned();
            decide::volume::Snapshot {
                volume: volume.clone(),
                pods_unresolved: staged.is_some() && wanted.is_empty() && self.has_unresolved_pods(world),
                wanted,
                published,
                staged,
                driver: world.driver(&volume.driver).map(|driver| driver.info.clone()),
                attachment: self.attachment(volume, world),
                records: records.collect(),
            }
        })
    }

    fn has_unresolved_pods(&self, world: &World) -> bool {
        self.caches.pods.list().iter().any(|pod| is_live(pod) && !world.resolutions.contains_key(&pod.meta.uid))
    }
}
