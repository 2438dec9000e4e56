//! Gathers what one decision needs from the caches and the states into plain structs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::node_view::NodePod;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_plugins::{Traits, VolumeSpec};
use stowage_runtime::cache::View;

use crate::actual_state::MountState;
use crate::api;
use crate::controller::Controller;
use crate::decide::expand::Expansion;
use crate::decide::volume::{Attachment, Wanted};
use crate::decide::waiting::Waiting;
use crate::decide::{self, pod::is_live};
use crate::drivers::Drivers;
use crate::executor::Operation;
use crate::outlook::Outlook;
use crate::populator::{self, Sources};
use crate::state::States;
use crate::watches::{Key, driver_of};

/// All that one decision is made from.
#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    Node(decide::node::Snapshot),
    CsiNode(decide::csi_node::Snapshot),
    Plugin(decide::plugin::Snapshot),
    Pod(Box<decide::pod::Snapshot>),
    Volume(Box<decide::volume::Snapshot>),
}

impl Controller {
    pub(crate) fn snapshot(&self, key: &Key) -> Snapshot {
        match key {
            Key::Node => Snapshot::Node(self.node_snapshot()),
            Key::CsiNode => Snapshot::CsiNode(self.csi_node_snapshot()),
            Key::Plugin(socket) => Snapshot::Plugin(self.plugin_snapshot(socket)),
            Key::Pod(uid) => Snapshot::Pod(Box::new(self.pod_snapshot(uid))),
            Key::Volume(volume) => Snapshot::Volume(Box::new(self.volume_snapshot(volume))),
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

    /// The newest version of the pod with this uid. More than one object may claim to stand for a static pod, which
    /// lives as long as one of them does.
    pub(crate) fn pod(&self, uid: &str) -> Option<Arc<NodePod>> {
        let pods = self.caches.pods.by_index("uid", uid);
        pods.iter().find(|pod| is_live(pod)).or_else(|| pods.first()).cloned()
    }

    fn live_pod(&self, uid: &str) -> Option<Arc<NodePod>> {
        self.pod(uid).filter(|pod| is_live(pod))
    }

    /// Whether a pod's mounts stay.
    fn may_keep(&self, uid: &str) -> bool {
        let has_ended = |pod: &NodePod| pod.is_terminal() && !pod.meta.is_deleting();
        let keeps = self.options.keep_terminated_pod_volumes;
        match self.pod(uid) {
            Some(pod) => is_live(&pod) || (keeps && has_ended(&pod)),
            // One of the pods that nobody can read may be this one.
            None => self.caches.pods.has_unreadable(),
        }
    }

    /// What can be done with a volume, by what its plugin says now.
    fn traits_of(&self, spec: &VolumeSpec) -> Traits {
        self.outlook().traits_of(spec)
    }

    /// Unique names of the attachable volumes that live pods want or that are or may be mounted.
    pub(crate) fn in_use<'a>(&self, states: &'a States) -> BTreeSet<UniqueVolumeName> {
        let mut names = states.report.kept_in_use.clone();
        for name in states.desired.volumes() {
            let attachable = |(uid, mount): (&str, &crate::desired_state::VolumeToMount)| {
                mount.traits.is_attachable && self.live_pod(uid).is_some()
            };
            if states.desired.users(name).any(attachable) {
                names.insert(name.clone());
            }
        }
        let node = self.caches.nodes.get(&self.node_key());
        let reported = node.iter().flat_map(|node| &node.status.volumes_in_use);
        let reported: BTreeSet<&str> = reported.map(String::as_str).collect();
        // A driver has many volumes, and is asked once for all of them.
        let mut drivers: BTreeMap<&str, bool> = BTreeMap::new();
        let mut is_attachable = |spec: &'a VolumeSpec| match driver_of(spec).filter(|_| spec.persistent.is_some()) {
            Some(driver) => *drivers.entry(driver).or_insert_with(|| self.traits_of(spec).is_attachable),
            None => self.traits_of(spec).is_attachable,
        };
        for (name, volume) in states.actual.iter() {
            // What was reported stays reported until it is unmounted, whatever its CSIDriver says by now.
            if !names.contains(name) && (reported.contains(name.as_str()) || is_attachable(&volume.spec)) {
                names.insert(name.clone());
            }
        }
        // A pod whose volumes are not known yet may want any of those that were reported before a restart.
        let others: Vec<UniqueVolumeName> =
            reported.into_iter().map(UniqueVolumeName::from).filter(|name| !names.contains(name)).collect();
        if !others.is_empty() && self.has_unresolved_pods(states) {
            names.extend(others);
        }
        names
    }

    pub(crate) fn attachment(&self, volume: &UniqueVolumeName, spec: &VolumeSpec, states: &States) -> Attachment {
        self.outlook().attachment(volume, spec, states)
    }

    fn outlook(&self) -> Outlook<'_> {
        Outlook {
            host: &self.host,
            plugins: &self.plugins,
            executor: &self.executor,
            nodes: &self.caches.nodes,
            controller_attach: self.options.controller_attach,
        }
    }

    fn node_snapshot(&self) -> decide::node::Snapshot {
        self.state.read(|states| decide::node::Snapshot {
            name: self.options.node_name.clone(),
            registers: self.options.register_node,
            controller_attach: self.options.controller_attach,
            node: self.caches.nodes.view(&self.node_key()),
            labels: crate::node::labels(&self.options),
            status: crate::node::status(&self.options, &states.report.machine),
            reported: states.report.reported.clone(),
            pressure: states.report.machine.pressure,
            drivers: self.state.read_drivers(Drivers::announced),
            dismissed: self.state.read_drivers(|drivers| drivers.dismissed.clone()),
            in_use: self.in_use(states),
            heartbeat: states.report.heartbeat,
            lease_duration: SignedDuration::try_from(self.options.lease_duration).unwrap_or(SignedDuration::MAX),
            report_every: SignedDuration::try_from(self.options.node_status_report).unwrap_or(SignedDuration::MAX),
        })
    }

    fn csi_node_snapshot(&self) -> decide::csi_node::Snapshot {
        let refresh = self.state.read_drivers(|drivers| {
            let registered = drivers.plugins.values().filter_map(|plugin| plugin.registered.as_ref());
            let names = registered.map(|driver| driver.info.name.clone());
            let refreshed = names.filter_map(|name| {
                let period = self.refresh_period(&name)?;
                let record = self.executor.record(&Operation::Refresh(name.clone()));
                Some((name, decide::csi_node::Refresh { period, record }))
            });
            refreshed.collect()
        });
        self.state.read_drivers(|drivers| decide::csi_node::Snapshot {
            refresh,
            name: self.options.node_name.clone(),
            csi_node: self.caches.csi_nodes.view(&self.node_key()),
            node_uid: self.node().map(|node| node.meta.uid.clone()),
            drivers: drivers.announced(),
            dismissed: drivers.dismissed.clone(),
        })
    }

    /// How often a driver wants to be asked how many volumes this node can take.
    fn refresh_period(&self, driver: &str) -> Option<SignedDuration> {
        let object = self.caches.csi_drivers.get(&ObjectKey::cluster(driver))?;
        object.spec.node_allocatable_update_period_seconds.map(SignedDuration::from_secs)
    }

    fn plugin_snapshot(&self, socket: &str) -> decide::plugin::Snapshot {
        let (plugin, twin) = self.state.read_drivers(|drivers| {
            let plugins = &drivers.plugins;
            let plugin = plugins.get(socket);
            let greeted = plugin.and_then(|plugin| plugin.greeted.as_ref()).map(|driver| driver.info.clone());
            let twin = greeted.as_ref().and_then(|driver| {
                let others = plugins.iter().filter(|(other, _)| *other != socket);
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
            greeting: self.executor.record(&Operation::Greet(socket.to_owned())),
            notification: self.executor.record(&Operation::Notify(socket.to_owned())),
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
        let found = match &pod {
            decide::pod::View::Known(pod) if is_live(pod) => Some(self.populated(pod)),
            _ => None,
        };
        // Asked of all records, and of interest only once the pod is gone.
        let has_records = matches!(pod, decide::pod::View::Absent) && self.executor.remembers_pod(uid);
        let waits_for = match &pod {
            decide::pod::View::Known(pod) if is_live(pod) => self.waits_for(uid),
            _ => Waiting::default(),
        };
        self.state.read(|states| {
            let is_abandoned = match &pod {
                decide::pod::View::Known(pod) => api::is_abandoned(states, &pod.meta),
                _ => false,
            };
            let held: Vec<MountState> = states.actual.of_pod(uid).map(|(_, mounted)| mounted.state).collect();
            decide::pod::Snapshot {
                uid: uid.to_owned(),
                pod,
                found,
                noted: states.desired.pod(uid).cloned(),
                problems_since: states.desired.problems_since(uid),
                held: held.len(),
                mounted: held.iter().filter(|state| **state == MountState::Mounted).count(),
                has_dir: states.pod_dirs.contains(uid),
                has_records,
                waits_for,
                evicted: states.evicted.get(uid).cloned(),
                told: states.told.known(&uid.to_owned()),
                is_abandoned,
            }
        })
    }

    /// What keeps a pod's volumes from being mounted, if that is known of all of them.
    fn waits_for(&self, uid: &str) -> Waiting {
        let is_mounted = |states: &States, name: &UniqueVolumeName| {
            let is = states.actual.get(name).and_then(|known| known.pods.get(uid));
            is.is_some_and(|is| is.state == MountState::Mounted)
        };
        self.state.read(|states| {
            let Some(volumes) = states.desired.pod(uid) else { return Waiting::default() };
            let missing = volumes.volumes.iter().filter(|(name, _)| !is_mounted(states, name));
            let outlook = self.outlook();
            let unmounted = missing.map(|(name, mount)| (name.clone(), outlook.unmounted(uid, name, mount, states)));
            decide::waiting::waiting(uid, volumes, &unmounted.collect())
        })
    }

    fn populated(&self, pod: &NodePod) -> crate::desired_state::PodVolumes {
        let sources = Sources {
            claims: &self.caches.claims,
            volumes: &self.caches.volumes,
            node: self.caches.nodes.get(&self.node_key()),
            plugins: &self.plugins,
            host: &self.host,
            made_of: &self.made_of,
            se_linux: self.options.se_linux.as_ref(),
        };
        populator::populate(pod, &sources)
    }

    fn volume_snapshot(&self, volume: &UniqueVolumeName) -> decide::volume::Snapshot {
        let records = self.executor.of_volume(volume);
        let mut snapshot = self.state.read(|states| {
            let mut wanted = BTreeMap::new();
            for (uid, mount) in states.desired.users(volume) {
                if let Some(pod) = self.live_pod(uid) {
                    let told = states.told.known(&uid.to_owned());
                    wanted.insert(uid.to_owned(), Wanted { pod, mount: mount.clone(), told });
                }
            }
            let mut actual = states.actual.get(volume).cloned();
            // A mount that nobody can tell may be one of it: it stays attached.
            if let Some(actual) = actual.as_mut().filter(|_| states.report.kept_in_use.contains(volume)) {
                actual.is_attached_here = false;
            }
            let pods = actual.iter().flat_map(|actual| actual.pods.keys());
            let live = pods.filter(|uid| self.may_keep(uid)).cloned().collect();
            let wanted_spec = wanted.values().next().map(|wanted: &Wanted| &wanted.mount.spec);
            let spec = wanted_spec.or_else(|| actual.as_ref().map(|actual| &actual.spec));
            let plugin = spec.and_then(|spec| Some((spec, self.plugins.by_spec(spec).ok()?)));
            let unreachable = plugin.as_ref().and_then(|(spec, plugin)| plugin.reachable(spec, &self.host).err());
            let not_ready = plugin.as_ref().and_then(|(spec, plugin)| plugin.ready(spec, &self.host).err());
            // Asked of all pods, and of interest only when nobody has the volume any more.
            let is_idle = wanted.is_empty() && actual.as_ref().is_some_and(|actual| actual.pods.is_empty());
            decide::volume::Snapshot {
                volume: volume.clone(),
                pods_unresolved: is_idle && self.has_unresolved_pods(states),
                traits: plugin.map_or(Traits::PLAIN, |(spec, plugin)| plugin.traits(spec, &self.host)),
                unreachable: unreachable.map(|fault| fault.message),
                not_ready: not_ready.map(|fault| fault.message),
                attachment: spec.map_or(Attachment::NotNeeded, |spec| self.attachment(volume, spec, states)),
                expansion: Expansion::NotNeeded,
                wanted,
                actual,
                live,
                records,
            }
        });
        // One that may only read does not keep the others from a larger volume.
        let writer = snapshot.wanted.values().find(|wanted| !wanted.mount.spec.read_only);
        if let Some(wanted) = writer.or_else(|| snapshot.wanted.values().next()) {
            snapshot.expansion = self.expansion_of(volume, &wanted.mount);
        }
        snapshot
    }

    fn has_unresolved_pods(&self, states: &States) -> bool {
        let is_unknown = |pod: &NodePod| is_live(pod) && states.desired.pod(&pod.meta.uid).is_none();
        self.caches.pods.has_unreadable() || self.caches.pods.list().iter().any(|pod| is_unknown(pod))
    }
}
