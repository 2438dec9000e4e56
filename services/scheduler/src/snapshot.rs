//! What one decision needs, gathered from the caches and from the memory of what is in flight.

pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::{Key, Projection};
use stowage_model::pod::PodVolumeSource;
use stowage_model::{Claim, CsiNode, Lease, Node, Pod, StorageClass, Volume, VolumeAttachment};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::Reserved;
use stowage_runtime::told::Known;

use crate::assumed::{Failures, Ledger};

/// Index of pods by node.
pub const BY_NODE: &str = "node";
/// Index of pods by the claims they use, and of volumes by the claim they refer to.
pub const BY_CLAIM: &str = "claim";
/// Index of pods without a node: all under [`ALL`], those with claims under [`WITH_CLAIMS`] too.
pub const PENDING: &str = "pending";
/// Every pending pod.
pub const ALL: &str = "all";
/// Pending pods that use claims.
pub const WITH_CLAIMS: &str = "claims";
/// Index of volumes by class.
pub const BY_CLASS: &str = "class";
/// Index of claims by the volume they name.
pub const BY_VOLUME: &str = "volume";
/// Index of unbound claims by class.
pub const WAITING: &str = "waiting";
/// Index of unbound claims by the node their volume is to be made for.
pub const SELECTED: &str = "selected";

/// The caches of this service.
#[derive(Clone)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub nodes: Cache<Node>,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    pub csi_nodes: Cache<CsiNode>,
    pub attachments: Cache<VolumeAttachment>,
    pub leases: Cache<Lease>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            pods: Cache::indexed(&[
                (BY_NODE, |pod| some(&pod.spec.node_name)),
                (BY_CLAIM, |pod| pod.claims().map(|claim| claim.to_string()).collect()),
                (PENDING, |pod| match pod.is_scheduled() {
                    true => vec![],
                    false if pod.claims().next().is_none() => vec![ALL.to_owned()],
                    false => vec![ALL.to_owned(), WITH_CLAIMS.to_owned()],
                }),
            ]),
            nodes: Cache::new(),
            claims: Cache::indexed(&[
                (BY_VOLUME, |claim| some(&claim.spec.volume_name)),
                (WAITING, |claim| if claim.names_volume() { vec![] } else { vec![claim.class_name().to_owned()] }),
                (SELECTED, |claim| match claim.selected_node() {
                    Some(node) if !claim.is_fully_bound() => vec![node.to_owned()],
                    _ => vec![],
                }),
            ]),
            volumes: Cache::indexed(&[
                (BY_CLASS, |volume| vec![volume.class_name().to_owned()]),
                (BY_CLAIM, |volume| volume.spec.claim_ref.iter().map(|claim| claim.key().to_string()).collect()),
            ]),
            classes: Cache::new(),
            csi_nodes: Cache::new(),
            attachments: Cache::indexed(&[(BY_NODE, |attachment| some(&attachment.spec.node_name))]),
            leases: Cache::new(),
        }
    }
}

fn some(text: &str) -> Vec<String> {
    if text.is_empty() { vec![] } else { vec![text.to_owned()] }
}

/// Everything that decides what happens to one pod.
#[derive(Debug, Clone)]
pub enum PodSnapshot {
    Absent,
    /// A write got no answer; to be read again.
    Unknown(Key),
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
#[derive(Debug, Clone)]
pub struct PlacedSnapshot {
    pub pod: Arc<Pod>,
    pub node: View<Node>,
    /// Means nothing while the node exists.
    pub missing_since: Timestamp,
    /// How long a node must be missing before its pods go.
    pub quarantine: SignedDuration,
}

/// A pod that needs a node.
#[derive(Debug, Clone)]
pub struct PendingSnapshot {
    pub pod: Arc<Pod>,
    /// The pod's claims, each once.
    pub claims: Vec<ClaimState>,
    /// Volumes the pod would have attached, by driver.
    pub volumes: Volumes,
    /// The pod's ReadWriteOncePod claims that another pod has.
    pub once_pod_in_use: BTreeSet<Key>,
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
#[derive(Debug, Clone)]
pub struct ClaimState {
    pub key: Key,
    /// Made for the pod, not by the user.
    pub ephemeral: bool,
    pub claim: View<Claim>,
    pub class: Option<Arc<StorageClass>>,
    /// The volume the claim names.
    pub volume: View<Volume>,
    /// Volumes an unbound claim may get: of its class or reserved for it, and not being written.
    pub candidates: Vec<Arc<Volume>>,
}

/// A node with what is on it or on the way to it.
#[derive(Debug, Clone)]
pub struct NodeState {
    pub node: Arc<Node>,
    pub csi_node: Option<Arc<CsiNode>>,
    pub pods: usize,
    /// Volumes of the drivers the pod may need: of pods here, and attached here.
    pub present: Volumes,
    /// Those, and the ones of pods and claims that are on the way.
    pub expected: Volumes,
}

/// Everything that decides what happens to one node.
#[derive(Debug, Clone)]
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
pub fn is_ours(pod: &Pod, scheduler: &str) -> bool {
    let name = pod.spec.scheduler_name.as_str();
    !pod.is_scheduled()
        && !pod.is_terminal()
        && !pod.meta.is_deleting()
        && pod.spec.scheduling_gates.is_empty()
        && (name.is_empty() || name == scheduler)
}

impl Caches {
    pub fn pending(&self, pod: Arc<Pod>, ledger: &Ledger, reserved: &Reserved) -> PendingSnapshot {
        let claims = self.claims_of(&pod, reserved);
        let volumes = self.volumes_of(&pod);
        let key = pod.key();
        let in_flight = self.in_flight(ledger, &key);
        let once_pod_in_use = self.once_pod_in_use(&pod, &in_flight);
        let drivers = usage::drivers(&volumes, &claims);
        // Which version of a node is the newest does not matter here: one whose write got no answer takes pods, too.
        let nodes = self.nodes.keys().into_iter().filter_map(|key| self.nodes.get(&key));
        let nodes = nodes.map(|node| self.node_state(node, &drivers, &in_flight)).collect();
        let failures =
            claims.iter().map(|claim| ledger.failures(&claim.key)).fold(Failures::default(), Failures::merge);
        let planned = ledger.planned(&key).filter(|plan| plan.uid == pod.meta.uid);
        let heading_for = planned.map(|plan| plan.node);
        let told = ledger.told.known(&key);
        PendingSnapshot { pod, claims, volumes, once_pod_in_use, nodes, heading_for, failures, told }
    }

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

    fn claim_state(&self, key: Key, ephemeral: bool, reserved: &Reserved) -> ClaimState {
        let view = self.claims.view(&key);
        let mut state = ClaimState {
            key,
            ephemeral,
            claim: View::Absent,
            class: None,
            volume: View::Absent,
            candidates: Vec::new(),
        };
        if let View::Known(claim) = &view {
            state.class = self.class_of(claim);
            if claim.names_volume() {
                state.volume = self.volumes.view(&Key::cluster(claim.spec.volume_name.clone()));
            } else {
                state.candidates = self.candidates(claim, reserved);
            }
        }
        state.claim = view;
        state
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

    fn class_of(&self, claim: &Claim) -> Option<Arc<StorageClass>> {
        self.classes.get(&Key::cluster(claim.class_name()))
    }
}
