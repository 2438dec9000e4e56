//! What one decision needs, gathered from the caches.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::matching::{Misfits, Place, delays_binding};
use stowage_model::object::{self, Projection};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{AttributesClass, Claim, Pod, StorageClass, Volume, names};
use stowage_runtime::cache::View;
use stowage_runtime::engine::Reserved;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::told;

use crate::decide::Source;
use crate::decide::binder::provision::provisioner_of;
use crate::matchmaker::{Choice, Sight};
use crate::options::Rules;
use crate::recycler;
use crate::watches::{BY_ATTRIBUTES_CLASS, BY_RECYCLED, BY_USED_CLAIM, Caches, DEFAULT, Key};

/// What people were told about each key, by each component that told them anything.
pub type Told = told::Told<Key, Source>;

/// What people know about one key.
pub type Known = told::Known<Source>;

/// Everything that one decision is made from.
#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    /// There is no such object, or nobody can read it.
    Gone,
    Claim(Box<ClaimSnapshot>),
    Volume(Box<VolumeSnapshot>),
    Pod(PodSnapshot),
    AttributesClass(AttributesClassSnapshot),
}

/// Whether the pod that a claim was made for is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The claim was not made for a pod.
    Nobody,
    Present,
    Gone,
}

/// Everything that decides what happens to one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimSnapshot {
    pub claim: Arc<Claim>,
    pub class: Option<Arc<StorageClass>>,
    pub default_class: Option<String>,
    /// The volume the claim names.
    pub named: View<Volume>,
    /// The few volumes among which the claim's best match is, if there is one.
    pub candidates: Vec<Arc<Volume>>,
    /// The volume to wait for, rather than to take one of these or to ask for another.
    pub held_up: Option<String>,
    /// Why all volumes were no candidates.
    pub misfits: Misfits,
    /// The state of the index that the candidates are from.
    pub version: u64,
    /// Pods that use the claim.
    pub pods: Vec<Arc<Pod>>,
    pub owner: Owner,
    /// Whether a fresh look at the pods was asked for and has not ended.
    pub is_pod_lookup_pending: bool,
    /// Since when a provisioner is asked for a volume, as far as we remember.
    pub asked_since: Option<Timestamp>,
    pub told: Known,
    pub rules: Rules,
}

/// The work that reclaims a volume: of one object, after one claim, by one policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Work {
    pub volume: object::Key,
    pub uid: String,
    /// The claim that is gone; a volume that was used again is reclaimed anew.
    pub claim: String,
    pub policy: ReclaimPolicy,
}

impl Work {
    /// Before all work on the volume.
    pub fn first_of(volume: object::Key) -> Self {
        Self { volume, uid: String::new(), claim: String::new(), policy: ReclaimPolicy::Retain }
    }

    pub fn of(volume: &Volume) -> Self {
        Self {
            volume: volume.key(),
            uid: volume.meta.uid.clone(),
            claim: volume.spec.claim_ref.as_ref().map(|held| held.uid.clone()).unwrap_or_default(),
            policy: volume.spec.reclaim_policy,
        }
    }
}

/// Everything that decides what happens to one volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSnapshot {
    pub volume: Arc<Volume>,
    /// The claim the volume refers to, by name.
    pub claim: View<Claim>,
    /// Pods that may still use the volume although its claim is gone.
    pub users: Vec<String>,
    /// The pod that removes what is in it, although nobody wants that any more.
    pub eraser: Option<object::Key>,
    /// What became of reclaiming it.
    pub operation: Option<Record<()>>,
    pub told: Known,
    pub rules: Rules,
}

impl VolumeSnapshot {
    /// Whether the volume's data was deleted by us.
    pub fn is_data_deleted(&self) -> bool {
        self.volume.spec.reclaim_policy == ReclaimPolicy::Delete
            && matches!(self.operation, Some(Record { state: State::Done(()), .. }))
    }
}

/// Everything that decides what happens for one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSnapshot {
    pub pod: Arc<Pod>,
    /// Its ephemeral volumes with their claims' keys and what is known of them.
    pub ephemeral: Vec<(String, object::Key, View<Claim>)>,
    /// Whether it erases a volume that needs no erasing.
    pub is_stray_recycler: bool,
    pub told: Known,
    pub rules: Rules,
}

/// Everything that decides what happens to one VolumeAttributesClass.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributesClassSnapshot {
    pub class: Arc<AttributesClass>,
    /// How many claims and volumes name it.
    pub users: usize,
}

/// Where snapshots are read from. Reading them changes nothing.
pub struct Sources<'a> {
    pub caches: &'a Caches,
    pub rules: Rules,
    pub told: &'a Told,
    pub reserved: &'a Reserved,
    /// What is known of the work of reclaiming.
    pub record: &'a dyn Fn(&Work) -> Option<Record<()>>,
    pub is_pod_lookup_pending: &'a dyn Fn(&object::Key) -> bool,
    pub asked_since: &'a dyn Fn(&object::Key) -> Option<Timestamp>,
}

impl Sources<'_> {
    pub fn gather(&self, key: &Key) -> Snapshot {
        let told = self.told.known(key);
        let found = match key {
            Key::Claim(key) => self.claim(key, told).map(|s| Snapshot::Claim(Box::new(s))),
            Key::Volume(key) => self.volume(key, told).map(|s| Snapshot::Volume(Box::new(s))),
            Key::Pod(key) => self.pod(key, told).map(Snapshot::Pod),
            Key::AttributesClass(key) => self.attributes_class(key).map(Snapshot::AttributesClass),
        };
        found.unwrap_or(Snapshot::Gone)
    }

    pub fn claim(&self, key: &object::Key, told: Known) -> Option<ClaimSnapshot> {
        let View::Known(claim) = self.caches.claims.view(key) else { return None };
        let class = self.caches.classes.get(&object::Key::cluster(claim.class_name()));
        let named = if claim.names_volume() {
            match self.caches.volumes.view(&object::Key::cluster(claim.spec.volume_name.clone())) {
                View::Known(volume) if self.caches.eraser(&volume).is_some() => View::Unknown,
                view => view,
            }
        } else {
            View::Absent
        };
        let seeks = self.rules.controllers.binder
            && !claim.names_volume()
            && !claim.is_bind_completed()
            && !claim.meta.is_deleting();
        let choice = if !seeks {
            Choice::default()
        } else {
            let delayed = delays_binding(&claim, class.as_deref()).unwrap_or(true);
            let place = if delayed { Place::Undecided } else { Place::Anywhere };
            // Where somebody makes volumes, none has to fit, and nobody asks why.
            let explained = class.as_ref().is_none_or(|class| provisioner_of(class).is_none());
            self.caches.matchmaker.choice(&claim, place, explained, |volume| self.caches.sight(volume, self.reserved))
        };
        Some(ClaimSnapshot {
            default_class: (seeks && !claim.has_class()).then(|| self.caches.default_class()).flatten(),
            class,
            named,
            candidates: choice.candidates,
            held_up: choice.held_up,
            misfits: choice.misfits,
            version: choice.version,
            pods: self.caches.pods.by_index(BY_USED_CLAIM, &key.to_string()),
            owner: self.caches.owner(&claim),
            is_pod_lookup_pending: claim.meta.is_deleting() && (self.is_pod_lookup_pending)(key),
            asked_since: seeks.then(|| (self.asked_since)(key)).flatten(),
            told,
            rules: self.rules,
            claim,
        })
    }

    pub fn volume(&self, key: &object::Key, told: Known) -> Option<VolumeSnapshot> {
        let View::Known(volume) = self.caches.volumes.view(key) else { return None };
        let claim = match &volume.spec.claim_ref {
            Some(reference) => self.caches.claims.view(&reference.key()),
            None => View::Absent,
        };
        let users = match &volume.spec.claim_ref {
            Some(held) if claim == View::Absent && volume.spec.reclaim_policy == ReclaimPolicy::Recycle => {
                let pods = self.caches.pods.by_index(BY_USED_CLAIM, &held.key().to_string());
                pods.iter().filter(|pod| !pod.is_terminated()).map(|pod| pod.meta.name.clone()).collect()
            }
            _ => vec![],
        };
        let eraser = self.caches.eraser(&volume);
        let operation = (self.record)(&Work::of(&volume));
        Some(VolumeSnapshot { volume, claim, users, eraser, operation, told, rules: self.rules })
    }

    fn pod(&self, key: &object::Key, told: Known) -> Option<PodSnapshot> {
        let View::Known(pod) = self.caches.pods.view(key) else { return None };
        let ephemeral = pod.ephemeral_volumes().filter_map(|volume| {
            let claim = pod.claim_of(volume)?;
            let view = self.caches.claims.view(&claim);
            Some((volume.name.clone(), claim, view))
        });
        Some(PodSnapshot {
            ephemeral: ephemeral.collect(),
            is_stray_recycler: self.caches.is_stray_recycler(&pod),
            told,
            rules: self.rules,
            pod,
        })
    }

    fn attributes_class(&self, key: &object::Key) -> Option<AttributesClassSnapshot> {
        if !self.rules.controllers.attributes_class_protection {
            return None;
        }
        let View::Known(class) = self.caches.attributes_classes.view(key) else { return None };
        let claims = self.caches.claims.by_index(BY_ATTRIBUTES_CLASS, &key.name).len();
        let volumes = self.caches.volumes.by_index(BY_ATTRIBUTES_CLASS, &key.name).len();
        Some(AttributesClassSnapshot { class, users: claims + volumes })
    }
}

impl Caches {
    /// What follows a reservation is decided on this; none once the pair is no pair any more.
    pub fn pair(&self, key: &object::Key, reserved: &Volume, rules: Rules) -> Option<ClaimSnapshot> {
        let View::Known(claim) = self.claims.view(key) else { return None };
        let View::Known(volume) = self.volumes.view(&reserved.key()) else { return None };
        let held = volume.spec.claim_ref.as_ref()?;
        let is_pair = volume.meta.uid == reserved.meta.uid
            && held.uid == claim.meta.uid
            && held.key() == *key
            // As it is decided: what is completed is kept in line also while the claim goes.
            && (!claim.meta.is_deleting() || claim.is_bind_completed())
            && (!claim.names_volume() || claim.spec.volume_name == volume.meta.name);
        is_pair.then(|| ClaimSnapshot {
            class: None,
            default_class: None,
            named: View::Known(volume),
            candidates: vec![],
            held_up: None,
            misfits: Misfits::default(),
            version: 0,
            pods: self.pods.by_index(BY_USED_CLAIM, &key.to_string()),
            owner: Owner::Nobody,
            is_pod_lookup_pending: false,
            asked_since: None,
            told: Known::default(),
            rules,
            claim,
        })
    }

    fn sight(&self, volume: &Volume, reserved: &Reserved) -> Sight {
        // Asked first: of the volumes that were just chosen every claim passes a few.
        if reserved.has(Volume::KIND, "", &volume.meta.name) {
            return Sight::Busy;
        }
        let key = volume.key();
        match self.volumes.view(&key) {
            View::Known(volume) if self.eraser(&volume).is_some() => Sight::Unknown,
            View::Known(_) => Sight::Free,
            View::Unknown if self.volumes.is_unreadable(&key) => Sight::Unreadable,
            View::Unknown | View::Absent => Sight::Unknown,
        }
    }

    /// The pod that still removes what is in a volume which was taken back from it: whoever has it next would lose files.
    /// Its end wakes those that would.
    fn eraser(&self, volume: &Volume) -> Option<object::Key> {
        // Few volumes are of a kind that pods erase, and nobody erases one that is in use.
        if !matches!(volume.spec.other_source, Some("hostPath" | "nfs")) || volume.status.phase == VolumePhase::Bound {
            return None;
        }
        let held = volume.spec.claim_ref.as_ref().map_or("", |held| held.uid.as_str());
        let is_in_the_way = |pod: &Arc<Pod>| {
            let is_of_another_time = recycler::task(pod).is_some_and(|(_, claim)| claim != held);
            is_of_another_time && !pod.is_terminal() && pod.meta.name == names::recycler_pod(&volume.meta.name)
        };
        self.pods.by_index(BY_RECYCLED, &volume.meta.name).into_iter().find(is_in_the_way).map(|pod| pod.key())
    }

    fn default_class(&self) -> Option<String> {
        let marked = self.classes.by_index(DEFAULT, "");
        let default = stowage_model::class::default_class(marked.iter().map(Arc::as_ref));
        default.map(|class| class.meta.name.clone())
    }

    fn owner(&self, claim: &Claim) -> Owner {
        let Some(owner) = claim.meta.controller().filter(|owner| owner.kind == "Pod") else { return Owner::Nobody };
        match self.pods.view(&object::Key::namespaced(claim.meta.namespace.clone(), owner.name.clone())) {
            View::Absent => Owner::Gone,
            View::Known(pod) if pod.meta.uid != owner.uid => Owner::Gone,
            View::Known(_) | View::Unknown => Owner::Present,
        }
    }

    fn is_stray_recycler(&self, pod: &Pod) -> bool {
        let Some((volume, claim)) = recycler::task(pod).filter(|_| !pod.meta.is_deleting()) else { return false };
        match self.volumes.view(&object::Key::cluster(volume)) {
            View::Unknown => false,
            View::Absent => true,
            View::Known(volume) => {
                let waits = volume.spec.reclaim_policy == ReclaimPolicy::Recycle
                    && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
                !waits || Work::of(&volume).claim != claim
            }
        }
    }
}
