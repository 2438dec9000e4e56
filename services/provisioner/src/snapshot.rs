//! What one decision needs, gathered from the caches, the journal and the operations.

mod source;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stowage_model::attributes_class::AttributesClass;
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::names::VolumeHandle;
use stowage_model::object::Key as ObjectKey;
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::told::Known;

use crate::controller::{Controller, Key};
use crate::decide::{Why, has_handle, is_wanted};
use crate::facts::Facts;
use crate::intent::Made;
use crate::journal::{Recorded, Trace};
use crate::ownership::{self, Bid};
use crate::requirement::Cluster;
use crate::source::{Found, Need, Object, Origin};

#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    Claim(Box<ClaimSnapshot>),
    Volume(VolumeSnapshot),
    Source(Box<SourceSnapshot>),
}

/// A claim, its record, and what came of the calls for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimSnapshot {
    pub facts: Arc<Facts>,
    /// The claim with this uid; a namesake is not it.
    pub claim: Option<Arc<Claim>>,
    /// The class the claim names, if it exists.
    pub class: Option<Arc<StorageClass>>,
    /// What has the name the claim's volume gets.
    pub volume: View<Volume>,
    pub recorded: Option<Recorded>,
    pub creation: Option<Record<Made>>,
    /// DeleteVolume of a volume that nobody wants any more.
    pub cleanup: Option<Record<VolumeHandle>>,
    /// A PersistentVolume that has the handle of the volume made, whatever its name.
    pub owner: Option<String>,
    /// Where volumes can be; empty where no place has to be chosen any more.
    pub cluster: Cluster,
    /// What the claim names to be filled from; `None` also where that does not matter any more.
    pub source: Option<Found>,
    /// Whether the source that the record names is there, and not held yet.
    pub is_unprotected: bool,
    /// Whether the source that the record names is being deleted.
    pub is_source_going: bool,
    /// Whether the source that the record names is certainly gone.
    pub is_source_gone: bool,
    /// The VolumeAttributesClass that the claim names, as it was found.
    pub attributes: Option<Record<LookedUp>>,
    /// Whether the server is known not to serve VolumeAttributesClasses.
    pub are_attributes_unserved: bool,
    /// Our attempt to become the owner of the claim, in node deployment.
    pub bid: Option<Bid>,
    /// GetCapacity for that attempt: whether the volume has room here.
    pub room: Option<Record<bool>>,
    /// What was said about the claim, so that it is not said again too soon.
    pub told: Known,
}

impl ClaimSnapshot {
    /// Whether the claim is there and belongs to a node, or needs none.
    pub fn is_race_over(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.selected_node().is_some() || !is_wanted(claim))
    }
}

/// A PersistentVolume and what came of its deletion.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSnapshot {
    pub facts: Arc<Facts>,
    /// Known also when nothing else is.
    pub name: String,
    pub volume: View<Volume>,
    /// Result: the uid of the object whose volume was deleted.
    pub deletion: Option<Record<String>>,
    /// Node of an attachment that still names the volume.
    pub attached_to: Option<String>,
    /// What is left of the record of its making.
    pub trace: Trace,
    pub told: Known,
}

/// An object that volumes are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSnapshot {
    pub facts: Arc<Facts>,
    pub origin: Origin,
    pub object: Object,
    /// The claims whose records hold it, in order.
    pub users: Vec<ObjectKey>,
    /// The claims that name it and wait for another node's provisioner, or for who knows whose: that one may be making
    /// their volumes. In order.
    pub others: Vec<ObjectKey>,
    /// The last need for it.
    pub need: Need,
    /// Whether a claim of ours that waits names it.
    pub is_awaited: bool,
    pub told: Known,
}

impl SourceSnapshot {
    /// Whether what was seen of it need not be remembered.
    pub fn is_done_with(&self, why: &Why) -> bool {
        matches!(why, Why::Gone | Why::Unprotected) && !self.is_awaited && self.users.is_empty()
    }
}

/// The code of a look that our role does not allow.
pub const FORBIDDEN: &str = "Forbidden";

/// A live look at a VolumeAttributesClass.
#[derive(Debug, Clone, PartialEq)]
pub struct LookedUp {
    pub name: String,
    /// None if there is none.
    pub class: Option<AttributesClass>,
}

pub fn gather(controller: &Controller, key: &Key) -> Snapshot {
    let told = controller.told.known(key);
    match key {
        Key::Claim(uid) => Snapshot::Claim(Box::new(gather_claim(controller, uid, told))),
        Key::Volume(name) => Snapshot::Volume(gather_volume(controller, name, told)),
        Key::Source(origin) => Snapshot::Source(Box::new(source::gather(controller, origin, told))),
    }
}

fn gather_claim(controller: &Controller, uid: &String, told: Known) -> ClaimSnapshot {
    let Controller { facts, caches, .. } = controller;
    let claim = caches.claims.by_index("uid", uid).into_iter().next();
    let recorded = controller.journal().get(uid);
    // What has its volume needs no place, and a request that may have been sent keeps its own.
    let has_places = recorded.as_ref().is_some_and(|recorded| recorded.maybe_made);
    let is_placed = claim.as_ref().filter(|claim| !has_places && is_wanted(claim));
    let cluster = is_placed.map(|claim| controller.cluster(claim)).unwrap_or_default();
    let source = is_placed.and_then(|claim| source::find(controller, claim));
    let is_unprotected = recorded.as_ref().is_some_and(|recorded| source::is_unprotected(controller, &recorded.intent));
    let is_source_going = recorded.as_ref().is_some_and(|recorded| source::is_going(controller, &recorded.intent));
    let is_source_gone = recorded.as_ref().is_some_and(|recorded| source::is_gone(controller, &recorded.intent));
    let class_name = claim.as_ref().map(|claim| claim.class_name().to_owned()).unwrap_or_default();
    let name = recorded.as_ref().map_or_else(|| facts.volume_name(uid), |recorded| recorded.intent.volume.clone());
    let creation = controller.creations.record(uid);
    let owner = match creation.as_ref().map(|record| &record.state) {
        Some(State::Done(made)) => owner_of(controller, &made.handle),
        _ => None,
    };
    ClaimSnapshot {
        facts: Arc::clone(facts),
        claim,
        class: caches.classes.get(&ObjectKey::cluster(class_name)),
        volume: caches.volumes.view(&ObjectKey::cluster(name)),
        recorded,
        creation,
        cleanup: controller.cleanups.record(uid),
        owner,
        cluster,
        source,
        is_unprotected,
        is_source_going,
        is_source_gone,
        attributes: controller.attributes.record(uid),
        are_attributes_unserved: controller.attributes_unserved.load(Ordering::Relaxed),
        bid: controller.bids.get(uid),
        room: controller.rooms.record(uid),
        told,
    }
}

/// A PersistentVolume that has the handle, in node deployment on this node.
fn owner_of(controller: &Controller, handle: &VolumeHandle) -> Option<String> {
    let mut volumes = controller.caches.volumes.by_index("handle", handle.as_str()).into_iter();
    let facts = &controller.facts;
    let owner =
        volumes.find(|volume| has_handle(volume, handle, &facts.driver) && ownership::may_be_here(volume, facts));
    owner.map(|volume| volume.meta.name.clone())
}

fn gather_volume(controller: &Controller, name: &String, told: Known) -> VolumeSnapshot {
    let Controller { facts, caches, .. } = controller;
    let attachments = caches.attachments.by_index("volume", name);
    VolumeSnapshot {
        facts: Arc::clone(facts),
        name: name.clone(),
        volume: caches.volumes.view(&ObjectKey::cluster(name)),
        deletion: controller.deletions.record(name),
        attached_to: attachments.first().map(|attachment| attachment.spec.node_name.clone()),
        trace: controller.journal().trace(name),
        told,
    }
}
