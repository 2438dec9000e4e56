//! Numbers that are known by looking at the states.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::actual_state::MountState;
use crate::generator::plugin_label;
use crate::state::{State, States};

const ACTUAL: &str = "actual_state_of_world";
const DESIRED: &str = "desired_state_of_world";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet, PartialOrd, Ord)]
struct InState {
    plugin_name: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet, PartialOrd, Ord)]
struct OfPlugin {
    plugin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet, PartialOrd, Ord)]
struct Difference {
    plugin: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet, PartialOrd, Ord)]
struct Socket {
    socket_path: String,
    state: &'static str,
}

#[derive(Clone, Default)]
pub struct Gauges {
    volumes: Family<InState, Gauge>,
    attached: Family<OfPlugin, Gauge>,
    mounted: Family<OfPlugin, Gauge>,
    difference: Family<Difference, Gauge>,
    plugins: Family<Socket, Gauge>,
}

#[derive(Default)]
struct Counts {
    volumes: BTreeMap<InState, i64>,
    attached: BTreeMap<OfPlugin, i64>,
    mounted: BTreeMap<OfPlugin, i64>,
    difference: BTreeMap<Difference, i64>,
    plugins: BTreeMap<Socket, i64>,
}

impl Gauges {
    pub fn add_to(&self, r: &mut Registry) {
        r.register("volume_manager_total_volumes", "Volumes of pods in each state", self.volumes.clone());
        r.register("kubelet_volumes_attached", "Volumes that are, or may be, on this node", self.attached.clone());
        r.register("kubelet_volumes_mounted", "Volumes that are mounted for pods", self.mounted.clone());
        r.register("volume_manager_state_diff", "Volumes of pods that differ between states", self.difference.clone());
        r.register("plugin_manager_total_plugins", "Registration sockets in each state", self.plugins.clone());
    }

    /// Counts anew over all nodes of this process.
    pub fn look(&self, nodes: &[Arc<State>]) {
        let mut counts = Counts::default();
        for node in nodes {
            node.read(|states| counts.add(states));
            node.read_drivers(|drivers| {
                for (socket, plugin) in &drivers.plugins {
                    counts.socket(socket, DESIRED);
                    if plugin.registered.is_some() {
                        counts.socket(socket, ACTUAL);
                    }
                }
            });
        }
        show(&self.volumes, &counts.volumes);
        show(&self.attached, &counts.attached);
        show(&self.mounted, &counts.mounted);
        show(&self.difference, &counts.difference);
        show(&self.plugins, &counts.plugins);
    }
}

impl Counts {
    fn add(&mut self, states: &States) {
        for name in states.desired.volumes() {
            for (uid, mount) in states.desired.users(name) {
                let plugin = plugin_label(&mount.spec);
                *self.volumes.entry(InState { plugin_name: plugin.clone(), state: DESIRED }).or_default() += 1;
                let is = states.actual.get(name).and_then(|known| known.pods.get(uid));
                if is.is_none_or(|is| is.state != MountState::Mounted) {
                    *self.difference.entry(Difference { plugin, direction: "to_mount" }).or_default() += 1;
                }
            }
        }
        for (name, volume) in states.actual.iter() {
            let plugin = plugin_label(&volume.spec);
            *self.attached.entry(OfPlugin { plugin: plugin.clone() }).or_default() += 1;
            for (uid, is) in &volume.pods {
                *self.volumes.entry(InState { plugin_name: plugin.clone(), state: ACTUAL }).or_default() += 1;
                if is.state == MountState::Mounted {
                    *self.mounted.entry(OfPlugin { plugin: plugin.clone() }).or_default() += 1;
                }
                let is_wanted = states.desired.pod(uid).is_some_and(|pod| pod.volumes.contains_key(name));
                if !is_wanted {
                    let direction = "to_unmount";
                    *self.difference.entry(Difference { plugin: plugin.clone(), direction }).or_default() += 1;
                }
            }
        }
    }

    fn socket(&mut self, socket: &str, state: &'static str) {
        *self.plugins.entry(Socket { socket_path: socket.to_owned(), state }).or_default() += 1;
    }
}

/// What is no longer counted is no longer shown.
fn show<L>(family: &Family<L, Gauge>, counts: &BTreeMap<L, i64>)
where
    L: Clone + std::hash::Hash + Eq,
{
    family.clear();
    for (labels, count) in counts {
        family.get_or_create_owned(labels).set(*count);
    }
}
