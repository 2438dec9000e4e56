//! What is cached, how it is found, and which change wakes which key. A hang starts with a line missing here; a storm
//! with a filter missing.

use std::sync::Arc;

use stowage_model::condition::ConditionStatus;
use stowage_model::object::{self, Projection};
use stowage_model::phase::VolumePhase;
use stowage_model::{
    Claim, CsiDriver, CsiNode, Lease, Node, Pod, StorageCapacity, StorageClass, Volume, VolumeAttachment,
};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::snapshot::source_of;

/// Where nodes keep the Leases they renew.
const NODE_LEASES: &str = "kube-node-lease";

/// Index of pods by node.
pub const BY_NODE: &str = "node";
/// Index of pods by the claims they use, and of volumes by the claim they refer to.
pub const BY_CLAIM: &str = "claim";
/// Index of volumes, and of what is published of room for new ones, by class.
pub const BY_CLASS: &str = "class";
/// Index of unbound claims by the node their volume is to be made for.
pub const SELECTED: &str = "selected";
/// Index of pods without a node: all under [`ALL`], those with claims under [`WITH_CLAIMS`] too.
const PENDING: &str = "pending";
const ALL: &str = "all";
const WITH_CLAIMS: &str = "claims";
/// Index of claims by the volume they name.
const BY_VOLUME: &str = "volume";
/// Index of unbound claims by the claim they are to be cloned from.
const BY_SOURCE: &str = "source";
/// Index of unbound claims by class.
const WAITING: &str = "waiting";

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Pod(object::Key),
    Node(String),
}

impl Key {
    /// The key of the object itself.
    pub fn object(&self) -> object::Key {
        match self {
            Self::Pod(key) => key.clone(),
            Self::Node(name) => object::Key::cluster(name.clone()),
        }
    }
}

#[derive(Clone)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub nodes: Cache<Node>,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    pub csi_nodes: Cache<CsiNode>,
    pub drivers: Cache<CsiDriver>,
    pub capacities: Cache<StorageCapacity>,
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
                (BY_SOURCE, |claim| match source_of(claim) {
                    Some(source) if !claim.names_volume() => vec![source.to_string()],
                    _ => vec![],
                }),
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
            drivers: Cache::new(),
            capacities: Cache::indexed(&[(BY_CLASS, |capacity| some(&capacity.storage_class_name))]),
            attachments: Cache::indexed(&[(BY_NODE, |attachment| some(&attachment.spec.node_name))]),
            leases: Cache::new(),
        }
    }
}

fn some(text: &str) -> Vec<String> {
    if text.is_empty() { vec![] } else { vec![text.to_owned()] }
}

impl Caches {
    pub fn keys(&self) -> Vec<Key> {
        let nodes = self.nodes.keys().into_iter().map(|key| Key::Node(key.name));
        self.pods.keys().into_iter().map(Key::Pod).chain(nodes).collect()
    }

    /// Pods that compete for volumes and for room for them: when some become free, all of them look again.
    pub fn competing(&self) -> impl Iterator<Item = Key> {
        self.pending(WITH_CLAIMS)
    }

    fn pending(&self, which: &str) -> impl Iterator<Item = Key> + use<> {
        self.pods.by_index(PENDING, which).into_iter().map(|pod| Key::Pod(pod.key()))
    }

    /// Pods without a node that use the claim.
    fn users(&self, claim: &object::Key) -> impl Iterator<Item = Key> + use<> {
        let users = self.pods.by_index(BY_CLAIM, &claim.to_string()).into_iter();
        users.filter(|pod| !pod.is_scheduled()).map(|pod| Key::Pod(pod.key()))
    }

    /// Pods whose unbound claims are of the class.
    fn waiting(&self, class: &str) -> impl Iterator<Item = Key> {
        self.claims.by_index(WAITING, class).into_iter().flat_map(|claim| self.users(&claim.key()))
    }
}

/// What is remembered changes first: who is woken is decided on with it.
impl Controller {
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Self>) {
        let caches = &self.caches;
        watches.cache(&caches.pods, Scope::all(), Self::pod_changed);
        watches.cache(&caches.nodes, Scope::all(), Self::node_changed);
        watches.cache(&caches.claims, Scope::all(), Self::claim_changed);
        watches.cache(&caches.volumes, Scope::all(), Self::volume_changed);
        watches.cache(&caches.classes, Scope::all(), Self::class_changed);
        watches.cache(&caches.csi_nodes, Scope::all(), Self::csi_node_changed);
        watches.cache(&caches.drivers, Scope::all(), Self::driver_changed);
        watches.cache(&caches.capacities, Scope::all(), Self::capacity_changed);
        watches.cache(&caches.attachments, Scope::all(), Self::attachment_changed);
        // Without the duty the right to read them is not asked for either.
        if self.options.node_lifecycle {
            watches.cache(&caches.leases, Scope::namespace(NODE_LEASES), Self::lease_changed);
        }
    }

    fn pod_changed(&self, change: &Change<'_, Pod>) -> Vec<Key> {
        let mut woken = vec![Key::Pod(change.key.clone())];
        let Some(before) = change.before else { return woken };
        if change.after.is_none_or(|after| after.meta.uid != before.meta.uid) {
            self.assumed.forget(change.key);
            self.told.forget(change.key);
            let node = &before.spec.node_name;
            if self.caches.pods.by_index(BY_NODE, node).is_empty() {
                self.heartbeats.forget_missing(node);
            }
        }
        let left = change.after.is_none_or(|after| after.is_terminal() || after.meta.uid != before.meta.uid);
        if left && !before.is_terminal() && before.claims().next().is_some() {
            woken.extend(self.caches.competing());
        }
        woken
    }

    fn node_changed(&self, change: &Change<'_, Node>) -> Vec<Key> {
        let name = &change.key.name;
        let now = self.context.clock.boottime();
        let pods = || self.caches.pods.by_index(BY_NODE, name);
        match (change.before, change.after) {
            (_, None) => self.heartbeats.disappeared(name, !pods().is_empty(), now),
            (None, Some(_)) => self.heartbeats.appeared(name, now),
            (Some(before), Some(after)) if reported(before, after) => self.heartbeats.renewed(name, now),
            _ => {}
        }
        let mut woken = vec![Key::Node(name.clone())];
        let same = match (change.before, change.after) {
            (Some(before), Some(after)) => before.meta.labels == after.meta.labels && before.spec == after.spec,
            _ => false,
        };
        if !same {
            woken.extend(self.caches.pending(ALL));
        }
        let exists_as_before = change.before.is_some() == change.after.is_some();
        let out_of_service = change.after.is_some_and(|node| node.is_out_of_service());
        if !exists_as_before || out_of_service {
            let concerned = pods().into_iter().filter(|pod| !exists_as_before || pod.meta.is_deleting());
            woken.extend(concerned.map(|pod| Key::Pod(pod.key())));
        }
        woken
    }

    fn lease_changed(&self, change: &Change<'_, Lease>) -> Option<Key> {
        let (before, after) = (change.before?, change.after?);
        if before.spec.renew_time == after.spec.renew_time {
            return None;
        }
        let name = &change.key.name;
        let node = self.caches.nodes.get(&object::Key::cluster(name.clone()))?;
        self.heartbeats.renewed(name, self.context.clock.boottime());
        // While a node is well its timer looks at the newest renewal by itself.
        let unknown = node.ready().is_some_and(|ready| ready.status == ConditionStatus::Unknown);
        unknown.then(|| Key::Node(name.clone()))
    }

    fn claim_changed(&self, change: &Change<'_, Claim>) -> Vec<Key> {
        let mut woken = Vec::new();
        match (change.before.and_then(|claim| claim.selected_node()), change.after) {
            (_, None) => self.failures.forget(change.key),
            (_, Some(after)) if after.is_fully_bound() => self.failures.forget(change.key),
            // The provisioner cannot make the volume there, and asks for another node.
            (Some(node), Some(after)) if after.selected_node().is_none() => {
                self.failures.add(change.key, node, self.context.clock.now());
                woken.extend(self.caches.competing());
            }
            _ => {}
        }
        woken.extend(self.caches.users(change.key));
        // Its clones can only be made where its volume is.
        let volume = |claim: Option<&Arc<Claim>>| claim.map(|claim| claim.spec.volume_name.clone()).unwrap_or_default();
        if volume(change.before) != volume(change.after) {
            let clones = self.caches.claims.by_index(BY_SOURCE, &change.key.to_string());
            woken.extend(clones.iter().flat_map(|clone| self.caches.users(&clone.key())));
        }
        woken
    }

    fn volume_changed(&self, change: &Change<'_, Volume>) -> Vec<Key> {
        let both = [change.before, change.after].into_iter().flatten();
        let referred = both.filter_map(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.key());
        let naming = self.caches.claims.by_index(BY_VOLUME, &change.key.name).into_iter().map(|claim| claim.key());
        let mut woken: Vec<Key> = referred.chain(naming).flat_map(|claim| self.caches.users(&claim)).collect();
        let free =
            |volume: &&Arc<Volume>| volume.spec.claim_ref.is_none() && volume.status.phase == VolumePhase::Available;
        if let Some(volume) = change.after.filter(free) {
            woken.extend(self.caches.waiting(volume.class_name()));
        }
        woken
    }

    fn class_changed(&self, change: &Change<'_, StorageClass>) -> Vec<Key> {
        self.caches.waiting(&change.key.name).collect()
    }

    fn csi_node_changed(&self, change: &Change<'_, CsiNode>) -> Vec<Key> {
        let same = change.before.map(|node| &node.spec) == change.after.map(|node| &node.spec);
        if same { vec![] } else { self.caches.competing().collect() }
    }

    fn driver_changed(&self, change: &Change<'_, CsiDriver>) -> Vec<Key> {
        let asks = |driver: Option<&Arc<CsiDriver>>| {
            driver.map(|driver| (driver.spec.storage_capacity, driver.spec.prevent_pod_scheduling_if_missing))
        };
        if asks(change.before) == asks(change.after) { vec![] } else { self.caches.competing().collect() }
    }

    /// Less room places nobody.
    pub(crate) fn capacity_changed(&self, change: &Change<'_, StorageCapacity>) -> Vec<Key> {
        let Some(after) = change.after else { return vec![] };
        let has_more = change.before.is_none_or(|before| before.limit() < after.limit());
        if has_more { self.caches.waiting(&after.storage_class_name).collect() } else { vec![] }
    }

    fn attachment_changed(&self, change: &Change<'_, VolumeAttachment>) -> Vec<Key> {
        if change.after.is_some() { vec![] } else { self.caches.competing().collect() }
    }
}

/// Whether the node itself wrote its status: what we write leaves the heartbeat alone.
fn reported(before: &Node, after: &Node) -> bool {
    let heartbeat = |node: &Node| node.ready().and_then(|ready| ready.last_heartbeat_time);
    heartbeat(after).is_some() && heartbeat(before) != heartbeat(after)
}
