//! Which decisions a change concerns. A hang starts with a line missing here; a storm with a filter missing.

use std::sync::Arc;

use stowage_model::condition::ConditionStatus;
use stowage_model::object::{Key, Projection};
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, CsiNode, Lease, Node, Pod, StorageClass, Volume, VolumeAttachment};
use stowage_runtime::cache::Change;
use stowage_runtime::clock::Clock;
use stowage_runtime::queue::Queue;

use crate::decide::Subject;
use crate::assumed::Ledger;
use crate::heartbeats::Sightings;
use crate::snapshot::{ALL, BY_CLAIM, BY_NODE, BY_VOLUME, Caches, PENDING, WAITING, WITH_CLAIMS};

/// What changes are told to.
#[derive(Clone)]
pub(crate) struct Wake {
    pub(crate) queue: Queue<Subject>,
    pub(crate) caches: Caches,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sightings: Arc<Sightings>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Wake {
    pub(crate) fn subscribe(&self) {
        let wake = self.clone();
        self.caches.pods.on_change(move |change| wake.pod(change));
        let wake = self.clone();
        self.caches.nodes.on_change(move |change| wake.node(change));
        let wake = self.clone();
        self.caches.claims.on_change(move |change| wake.claim(change));
        let wake = self.clone();
        self.caches.volumes.on_change(move |change| wake.volume(change));
        let wake = self.clone();
        self.caches.classes.on_change(move |change| wake.class(change));
        let wake = self.clone();
        self.caches.csi_nodes.on_change(move |change| wake.csi_node(change));
        let wake = self.clone();
        self.caches.attachments.on_change(move |change| wake.attachment(change));
        let wake = self.clone();
        self.caches.leases.on_change(move |change| wake.lease(change));
    }

    /// Something that pods with volumes compete for became free.
    pub(crate) fn freed(&self) {
        self.pending(WITH_CLAIMS);
    }

    fn pod(&self, change: &Change<'_, Pod>) {
        self.queue.add(Subject::Pod(change.key.clone()));
        let uses = |pod: &&Arc<Pod>| !pod.is_terminal() && pod.claims().next().is_some();
        let Some(before) = change.before else { return };
        if change.after.is_none_or(|after| after.meta.uid != before.meta.uid) {
            self.ledger.plan(change.key, None);
            self.ledger.told.forget(change.key);
            let node = &before.spec.node_name;
            if self.caches.pods.by_index(BY_NODE, node).is_empty() {
                self.sightings.forget_missing(node);
            }
        }
        let left = change.after.is_none_or(|after| after.is_terminal() || after.meta.uid != before.meta.uid);
        if left && uses(&before) {
            self.freed();
        }
    }

    fn node(&self, change: &Change<'_, Node>) {
        let name = &change.key.name;
        let now = self.clock.boottime();
        match (change.before, change.after) {
            (_, None) => {
                let has_pods = !self.caches.pods.by_index(BY_NODE, name).is_empty();
                self.sightings.disappeared(name, has_pods, now);
            }
            (None, Some(_)) => self.sightings.appeared(name, now),
            (Some(before), Some(after)) if reported(before, after) => self.sightings.renewed(name, now),
            _ => {}
        }
        self.queue.add(Subject::Node(name.clone()));
        let same = match (change.before, change.after) {
            (Some(before), Some(after)) => before.meta.labels == after.meta.labels && before.spec == after.spec,
            _ => false,
        };
        if !same {
            self.pending(ALL);
        }
        let exists_as_before = change.before.is_some() == change.after.is_some();
        let out_of_service = change.after.is_some_and(|node| node.is_out_of_service());
        if !exists_as_before || out_of_service {
            for pod in self.caches.pods.by_index(BY_NODE, name) {
                if !exists_as_before || pod.meta.is_deleting() {
                    self.queue.add(Subject::Pod(pod.key()));
                }
            }
        }
    }

    fn lease(&self, change: &Change<'_, Lease>) {
        let (Some(before), Some(after)) = (change.before, change.after) else { return };
        if before.spec.renew_time == after.spec.renew_time {
            return;
        }
        let name = &change.key.name;
        let Some(node) = self.caches.nodes.get(&Key::cluster(name.clone())) else { return };
        self.sightings.renewed(name, self.clock.boottime());
        // While a node is well its timer looks at the newest renewal by itself.
        if node.ready().is_some_and(|ready| ready.status == ConditionStatus::Unknown) {
            self.queue.add(Subject::Node(name.clone()));
        }
    }

    fn claim(&self, change: &Change<'_, Claim>) {
        let selected = |claim: Option<&Arc<Claim>>| claim.and_then(|claim| claim.selected_node().map(str::to_owned));
        match (selected(change.before), change.after) {
            (_, None) => self.ledger.settled(change.key),
            (_, Some(after)) if after.is_fully_bound() => self.ledger.settled(change.key),
            (Some(node), Some(after)) if after.selected_node().is_none() => {
                self.ledger.failed(change.key, &node, self.clock.now());
                self.freed();
            }
            _ => {}
        }
        self.users(change.key);
    }

    fn volume(&self, change: &Change<'_, Volume>) {
        for volume in [change.before, change.after].into_iter().flatten() {
            if let Some(claim) = &volume.spec.claim_ref {
                self.users(&claim.key());
            }
        }
        for claim in self.caches.claims.by_index(BY_VOLUME, &change.key.name) {
            self.users(&claim.key());
        }
        let free =
            |volume: &&Arc<Volume>| volume.spec.claim_ref.is_none() && volume.status.phase == VolumePhase::Available;
        if let Some(volume) = change.after.filter(free) {
            self.waiting(volume.class_name());
        }
    }

    fn class(&self, change: &Change<'_, StorageClass>) {
        self.waiting(&change.key.name);
    }

    fn csi_node(&self, change: &Change<'_, CsiNode>) {
        if change.before.map(|node| &node.spec) != change.after.map(|node| &node.spec) {
            self.freed();
        }
    }

    fn attachment(&self, change: &Change<'_, VolumeAttachment>) {
        if change.after.is_none() {
            self.freed();
        }
    }

    /// Pods whose unbound claims are of the class.
    fn waiting(&self, class: &str) {
        for claim in self.caches.claims.by_index(WAITING, class) {
            self.users(&claim.key());
        }
    }

    /// Pods without a node that use the claim.
    fn users(&self, claim: &Key) {
        for pod in self.caches.pods.by_index(BY_CLAIM, &claim.to_string()) {
            if !pod.is_scheduled() {
                self.queue.add(Subject::Pod(pod.key()));
            }
        }
    }

    fn pending(&self, which: &str) {
        for pod in self.caches.pods.by_index(PENDING, which) {
            self.queue.add(Subject::Pod(pod.key()));
        }
    }
}

/// Whether the node itself wrote its status: what we write leaves the heartbeat alone.
fn reported(before: &Node, after: &Node) -> bool {
    let heartbeat = |node: &Node| node.ready().and_then(|ready| ready.last_heartbeat_time);
    heartbeat(after).is_some() && heartbeat(before) != heartbeat(after)
}
