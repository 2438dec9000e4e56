//! What one decision needs, gathered from the caches and from what is remembered.

pub mod rooms;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::{self, Projection};
use stowage_model::pod::PodVolumeSource;
use stowage_model::{Claim, CsiNode, Node, Pod, StorageClass, Volume};
use stowage_runtime::cache::View;
use stowage_runtime::engine::Reserved;
use stowage_runtime::told::Known;

use crate::controller::Controller;
use crate::failures::Failures;
use crate::snapshot::rooms::Rooms;
use crate::watches::{BY_CLAIM, BY_CLASS, Caches, Key};

/// All that one decision is made from.
#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    Pod(PodSnapshot),
    Node(NodeSnapshot),
    /// A node, where looking after nodes is another's duty.
    ForeignNode,
}

/// Everything that decides what happens to one pod.
#[derive(Debug, Clone, PartialEq)]
pub enum PodSnapshot {
    Absent,
    /// A write got no answer; to be read again.
    Unknown(object::Key),
    /// On a node.
    Placed(PlacedSnapshot),
    /// To be put on a node by us.
    Pending(Box<PendingSnapshot>),
    /// On no node, and not for us to place: another scheduler's, gated, ended or on its way out.
    Other(Arc<Pod>),
    /// Another controller's in every respect.
    Foreign {
        placed: bool,
    },
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedSnapshot {
    pub pod: Arc<Pod>,
    pub node: View<Node>,
    /// Means nothing while the node exists.
    pub missing_since: Timestamp,
    /// How long a node must be missing before its pods go.
    pub quarantine: SignedDuration,
}

/// A pod that needs a node.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingSnapshot {
    pub pod: Arc<Pod>,
    /// The pod's claims, each once.
    pub claims: Vec<ClaimState>,
    /// Volumes the pod would have attached, by driver.
    pub volumes: Volumes,
    /// Drivers that the pod needs, and that want it only where they are.
    pub required_drivers: BTreeSet<String>,
    /// The pod's ReadWriteOncePod claims that another pod has.
    pub once_pod_in_use: BTreeSet<object::Key>,
    pub nodes: Vec<NodeState>,
    /// Where the last decision sent it.
    pub heading_for: Option<String>,
    /// Where making its volumes failed.
    pub failures: Failures,
    /// Why it cannot be placed, as its user was told.
    pub told: Known<(), String>,
}

/// Volumes by driver; an unbound claim stands for the volume it will get.
pub type Volumes = BTreeMap<String, BTreeSet<String>>;

/// A claim of a pod with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimState {
    pub key: object::Key,
    /// Made for the pod, not by the user.
    pub ephemeral: bool,
    pub claim: View<Claim>,
    pub class: Option<Arc<StorageClass>>,
    /// The volume the claim names.
    pub volume: View<Volume>,
    /// Volumes an unbound claim may get: of its class or reserved for it, and not being written.
    pub candidates: Vec<Arc<Volume>>,
    /// The volume of the claim that an unbound one is to be cloned from, as far as that is bound.
    pub cloned: Option<Arc<Volume>>,
    /// What is published of the room for a new volume, where the driver wants that looked at.
    pub rooms: Option<Arc<Rooms>>,
}

/// A node with what is on it or on the way to it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    pub node: Arc<Node>,
    pub csi_node: Option<Arc<CsiNode>>,
    pub pods: usize,
    /// Volumes of the drivers the pod may need: of pods here, and attached here.
    pub present: Volumes,
    /// Those, and the ones of pods and claims that are on the way.
    pub expected: Volumes,
}

impl NodeState {
    /// Whether the driver is registered here.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.csi_node.as_ref().is_some_and(|csi_node| csi_node.driver(driver).is_some())
    }
}

/// Everything that decides what happens to one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSnapshot {
    pub node: View<Node>,
    /// Its last sign of life.
    pub heard_at: Timestamp,
    /// Whether that was a renewal we saw happen.
    pub renewed: bool,
    /// How long it may be silent.
    pub silence: SignedDuration,
    /// How long it may take to report for the first time.
    pub startup: SignedDuration,
}

/// Whether the pod is ours to put on a node.
fn is_ours(pod: &Pod, scheduler: &str) -> bool {
    let name = pod.spec.scheduler_name.as_str();
    !pod.is_scheduled()
        && !pod.is_terminal()
        && !pod.meta.is_deleting()
        && pod.spec.scheduling_gates.is_empty()
        && (name.is_empty() || name == scheduler)
}

pub fn gather(controller: &Controller, key: &Key, reserved: &Reserved, now: Timestamp) -> Snapshot {
    match key {
        Key::Pod(key) => Snapshot::Pod(controller.gather_pod(key, reserved, now)),
        Key::Node(_) if !controller.options.node_lifecycle => Snapshot::ForeignNode,
        Key::Node(name) => Snapshot::Node(controller.gather_node(name, now)),
    }
}

impl Controller {
    fn gather_pod(&self, key: &object::Key, reserved: &Reserved, now: Timestamp) -> PodSnapshot {
        match self.caches.pods.view(key) {
            View::Absent => PodSnapshot::Absent,
            View::Unknown => PodSnapshot::Unknown(key.clone()),
            View::Known(pod) if !self.is_our_duty(&pod) => PodSnapshot::Foreign { placed: pod.is_scheduled() },
            View::Known(pod) if pod.is_scheduled() => PodSnapshot::Placed(self.placed(pod, now)),
            View::Known(pod) if is_ours(&pod, &self.options.scheduler_name) => {
                PodSnapshot::Pending(Box::new(self.pending(pod, reserved)))
            }
            View::Known(pod) => PodSnapshot::Other(pod),
        }
    }

    /// Beside a kube-controller-manager only what names us is ours, and only until it has a node.
    fn is_our_duty(&self, pod: &Pod) -> bool {
        let ours = pod.spec.scheduler_name == self.options.scheduler_name && is_ours(pod, &self.options.scheduler_name);
        self.options.node_lifecycle || ours
    }

    fn placed(&self, pod: Arc<Pod>, now: Timestamp) -> PlacedSnapshot {
        let name = &pod.spec.node_name;
        let node = self.caches.nodes.view(&object::Key::cluster(name.clone()));
        // What nobody has noticed yet begins now; that it did is noted after the decision.
        let missing_since = self.heartbeats.missing_since(name).filter(|_| node == View::Absent);
        let missing_since = missing_since.map_or(now, |since| self.on_wall_clock(since, now));
        PlacedSnapshot { pod, node, missing_since, quarantine: signed(self.options.quarantine) }
    }

    fn pending(&self, pod: Arc<Pod>, reserved: &Reserved) -> PendingSnapshot {
        let caches = &self.caches;
        let claims = caches.claims_of(&pod, reserved);
        let volumes = caches.volumes_of(&pod);
        let key = pod.key();
        let coming = caches.coming(&self.assumed, &key);
        let once_pod_in_use = caches.once_pod_in_use(&pod, &coming);
        let drivers = usage::drivers(&volumes, &claims);
        let required_drivers = volumes.keys().filter(|driver| caches.is_required(driver)).cloned().collect();
        // Which version of a node is the newest does not matter here: one whose write got no answer takes pods, too.
        let nodes = caches.nodes.keys().into_iter().filter_map(|key| caches.nodes.get(&key));
        let nodes = nodes.map(|node| caches.node_state(node, &drivers, &coming)).collect();
        let failures = claims.iter().map(|claim| self.failures.of(&claim.key));
        let failures = failures.fold(Failures::default(), Failures::merge);
        let assumed = self.assumed.get(&key).filter(|assumed| assumed.uid == pod.meta.uid);
        let heading_for = assumed.map(|assumed| assumed.node);
        let told = self.told.known(&key);
        PendingSnapshot { pod, claims, volumes, required_drivers, once_pod_in_use, nodes, heading_for, failures, told }
    }

    fn gather_node(&self, name: &str, now: Timestamp) -> NodeSnapshot {
        let heartbeat = self.heartbeats.last(name);
        NodeSnapshot {
            node: self.caches.nodes.view(&object::Key::cluster(name)),
            heard_at: heartbeat.map_or(now, |heartbeat| self.on_wall_clock(heartbeat.at, now)),
            renewed: heartbeat.is_some_and(|heartbeat| heartbeat.renewed),
            silence: signed(self.options.silence),
            startup: signed(self.options.startup),
        }
    }

    /// A moment since boot on the wall clock as it stands now: what passed since was measured by a clock that nobody sets.
    fn on_wall_clock(&self, since: Duration, now: Timestamp) -> Timestamp {
        let passed = self.context.clock.boottime().saturating_sub(since);
        now.checked_sub(signed(passed)).unwrap_or(Timestamp::MIN)
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// The claim that this one is to be cloned from.
pub fn source_of(claim: &Claim) -> Option<object::Key> {
    let source = claim.data_source().filter(|source| source.kind == object::kinds::CLAIM.kind)?;
    let is_core = source.api_group.as_deref().unwrap_or_default().is_empty();
    let namespace = source.namespace.as_ref().filter(|namespace| !namespace.is_empty());
    is_core.then(|| object::Key::namespaced(namespace.unwrap_or(&claim.meta.namespace), &source.name))
}

impl Caches {
    fn claims_of(&self, pod: &Pod, reserved: &Reserved) -> Vec<ClaimState> {
        let mut seen = BTreeSet::new();
        let mut states = Vec::new();
        for source in &pod.spec.volumes {
            if let Some(key) = pod.claim_of(source).filter(|key| seen.insert(key.clone())) {
                states.push(self.claim_state(key, source.source == PodVolumeSource::Ephemeral, reserved));
            }
        }
        states
    }

    fn claim_state(&self, key: object::Key, ephemeral: bool, reserved: &Reserved) -> ClaimState {
        let view = self.claims.view(&key);
        let mut state = ClaimState {
            key,
            ephemeral,
            claim: View::Absent,
            class: None,
            volume: View::Absent,
            candidates: Vec::new(),
            cloned: None,
            rooms: None,
        };
        if let View::Known(claim) = &view {
            state.class = self.class_of(claim);
            if claim.names_volume() {
                state.volume = self.volumes.view(&object::Key::cluster(claim.spec.volume_name.clone()));
            } else {
                state.candidates = self.candidates(claim, reserved);
                state.cloned = self.cloned(claim);
                state.rooms = self.rooms(claim, state.class.as_deref());
            }
        }
        state.claim = view;
        state
    }

    fn cloned(&self, claim: &Claim) -> Option<Arc<Volume>> {
        let source = self.claims.get(&source_of(claim)?).filter(|source| source.names_volume())?;
        self.volumes.get(&object::Key::cluster(&source.spec.volume_name))
    }

    fn candidates(&self, claim: &Claim, reserved: &Reserved) -> Vec<Arc<Volume>> {
        let mut candidates = self.volumes.by_index(BY_CLASS, claim.class_name());
        let pointing = self.volumes.by_index(BY_CLAIM, &claim.key().to_string());
        candidates.extend(pointing.into_iter().filter(|volume| volume.class_name() != claim.class_name()));
        candidates.retain(|volume| {
            !reserved.contains(&volume.id()) && matches!(self.volumes.view(&volume.key()), View::Known(_))
        });
        candidates
    }

    /// Whether the driver wants pods only where it is.
    fn is_required(&self, driver: &str) -> bool {
        let driver = self.drivers.get(&object::Key::cluster(driver));
        driver.is_some_and(|driver| driver.spec.prevent_pod_scheduling_if_missing)
    }

    fn class_of(&self, claim: &Claim) -> Option<Arc<StorageClass>> {
        self.classes.get(&object::Key::cluster(claim.class_name()))
    }
}
