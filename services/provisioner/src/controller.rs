//! Ties caches, journal and operations to the decisions, and every change to the keys it may concern.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::volume::Volume;
use stowage_runtime::cache::{Cache, Change, View};
use stowage_runtime::engine::{self, Reserved};
use stowage_runtime::operation::{Operations, State};
use stowage_runtime::queue::Queue;
use stowage_runtime::told::Told;

use crate::calls::Calls;
use crate::decide::{self, Action, Step, Why};
use crate::facts::Facts;
use crate::error::Error;
use crate::intent::Made;
use crate::ownership::Bids;
use crate::requirement::Cluster;
use crate::snapshot::{ClaimSnapshot, VolumeSnapshot};

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A claim and the record it may have left, by the claim's uid.
    Claim(String),
    /// A PersistentVolume, by name.
    Volume(String),
}

/// The views of the API that decisions need.
#[derive(Clone)]
pub struct Caches {
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    /// Empty for drivers that do not attach.
    pub attachments: Cache<VolumeAttachment>,
    /// These two are empty unless places have to be chosen.
    pub nodes: Cache<Node>,
    pub csi_nodes: Cache<CsiNode>,
}

impl Caches {
    pub fn new() -> Self {
        Self {
            claims: Cache::indexed(&[
                ("uid", |claim| vec![claim.meta.uid.clone()]),
                ("class", |claim| vec![claim.class_name().to_owned()]),
            ]),
            volumes: Cache::indexed(&[("handle", |volume| {
                volume.spec.csi.iter().map(|csi| csi.volume_handle.clone()).collect()
            })]),
            classes: Cache::new(),
            attachments: Cache::indexed(&[("volume", |attachment| {
                attachment.spec.source.persistent_volume_name.iter().cloned().collect()
            })]),
            nodes: Cache::new(),
            csi_nodes: Cache::new(),
        }
    }
}

pub struct Controller {
    pub facts: Arc<Facts>,
    pub caches: Caches,
    pub calls: Calls,
    /// CreateVolume, by claim uid.
    pub creations: Operations<String, Made>,
    /// GetCapacity before a claim is taken, by claim uid; the result is whether there is room.
    pub rooms: Operations<String, bool>,
    /// DeleteVolume of volumes without an owner, by claim uid; the result is the handle.
    pub cleanups: Operations<String, String>,
    /// DeleteVolume of released volumes, by name; the result is the object's uid.
    pub deletions: Operations<String, String>,
    pub told: Told<Key>,
    /// Claims by the name their volume gets.
    pub by_volume_name: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    pub bids: Bids,
}

impl Controller {
    /// Lets every change enqueue the keys whose decision may depend on it.
    pub fn subscribe(&self, queue: &Queue<Key>) {
        let driver = self.facts.driver.clone();
        self.caches.claims.on_change({
            let (queue, driver, journal) = (queue.clone(), driver.clone(), self.calls.journal.clone());
            let (facts, names) = (Arc::clone(&self.facts), Arc::clone(&self.by_volume_name));
            move |change| {
                note_volume_name(&mut lock(&names), &facts, change);
                for claim in both(change) {
                    if decide::is_ours(claim, &driver) || journal.get(&claim.meta.uid).is_some() {
                        queue.add(Key::Claim(claim.meta.uid.clone()));
                    }
                }
            }
        });
        self.caches.volumes.on_change({
            let (queue, driver, names) = (queue.clone(), driver.clone(), Arc::clone(&self.by_volume_name));
            move |change| {
                if both(change).any(|volume| decide::is_our_volume(volume, &driver)) {
                    queue.add(Key::Volume(change.key.name.clone()));
                }
                // Only whether there is such an object concerns its claim.
                if change.before.is_none() || change.after.is_none() {
                    let claims = both(change).filter_map(|volume| volume.spec.claim_ref.as_ref());
                    let mut uids: BTreeSet<String> = claims.map(|claim| claim.uid.clone()).collect();
                    uids.extend(lock(&names).get(&change.key.name).into_iter().flatten().cloned());
                    uids.into_iter().filter(|uid| !uid.is_empty()).for_each(|uid| queue.add(Key::Claim(uid)));
                }
            }
        });
        self.caches.classes.on_change({
            let (queue, claims) = (queue.clone(), self.caches.claims.clone());
            move |change| {
                let waiting = claims.by_index("class", &change.key.name).into_iter();
                let waiting = waiting.filter(|claim| decide::is_ours(claim, &driver) && decide::is_wanted(claim));
                waiting.for_each(|claim| queue.add(Key::Claim(claim.meta.uid.clone())));
            }
        });
        self.subscribe_to_nodes(queue);
        self.caches.attachments.on_change({
            let queue = queue.clone();
            move |change| {
                if let (Some(before), None) = (change.before, change.after)
                    && let Some(volume) = &before.spec.source.persistent_volume_name
                {
                    queue.add(Key::Volume(volume.clone()));
                }
            }
        });
    }

    /// A node that came, or told its place, may be what claims wait for.
    fn subscribe_to_nodes(&self, queue: &Queue<Key>) {
        let waiting = {
            let (queue, claims, driver) = (queue.clone(), self.caches.claims.clone(), self.facts.driver.clone());
            Arc::new(move || {
                let waiting = claims.list().into_iter();
                let waiting = waiting.filter(|claim| decide::is_ours(claim, &driver) && decide::is_wanted(claim));
                waiting.for_each(|claim| queue.add(Key::Claim(claim.meta.uid.clone())));
            })
        };
        self.caches.nodes.on_change({
            let waiting = Arc::clone(&waiting);
            move |change| {
                // Heartbeats change everything but the labels.
                let labels = |node: Option<&Arc<Node>>| node.map(|node| node.meta.labels.clone());
                if labels(change.before) != labels(change.after) {
                    waiting();
                }
            }
        });
        self.caches.csi_nodes.on_change(move |_| waiting());
    }

    fn cluster(&self) -> Cluster {
        Cluster { nodes: self.caches.nodes.list(), drivers: self.caches.csi_nodes.list() }
    }

    fn claim_step(&self, uid: &str, now: Timestamp) -> Step {
        let journal = &self.calls.journal;
        let claim = self.caches.claims.by_index("uid", uid).into_iter().next();
        let recorded = journal.get(uid);
        if claim.is_none() && recorded.is_none() {
            self.creations.forget(&uid.to_owned());
            self.drop_bid(uid);
            self.told.forget(&Key::Claim(uid.to_owned()));
            return Step::rest(Why::Gone);
        }
        if claim.as_ref().is_some_and(|claim| claim.selected_node().is_some() || !decide::is_wanted(claim)) {
            self.drop_bid(uid);
        }
        // A request that may have been sent keeps its places.
        let settled = recorded.as_ref().is_some_and(|recorded| recorded.maybe_made);
        let cluster = if settled { Cluster::default() } else { self.cluster() };
        let class_name = claim.as_ref().map(|claim| claim.class_name().to_owned()).unwrap_or_default();
        let name =
            recorded.as_ref().map_or_else(|| self.facts.volume_name(uid), |recorded| recorded.intent.volume.clone());
        let creation = self.creations.record(&uid.to_owned());
        let owner = match creation.as_ref().map(|record| &record.state) {
            Some(State::Done(made)) => self.owner_of(&made.handle),
            _ => None,
        };
        let snapshot = ClaimSnapshot {
            facts: &self.facts,
            claim,
            class: self.caches.classes.get(&ObjectKey::cluster(class_name)),
            volume: self.caches.volumes.view(&ObjectKey::cluster(name)),
            recorded,
            creation,
            cleanup: self.cleanups.record(&uid.to_owned()),
            owner,
            cluster,
            bid: self.bids.get(uid),
            room: self.rooms.record(&uid.to_owned()),
            told: self.told.known(&Key::Claim(uid.to_owned())),
        };
        decide::decide(&snapshot, now)
    }

    fn drop_bid(&self, uid: &str) {
        self.bids.drop(uid);
        self.rooms.forget(&uid.to_owned());
    }

    /// A PersistentVolume that has the handle.
    fn owner_of(&self, handle: &str) -> Option<String> {
        let mut volumes = self.caches.volumes.by_index("handle", handle).into_iter();
        let owner = volumes.find(|volume| decide::has_handle(volume, handle, &self.facts.driver));
        owner.map(|volume| volume.meta.name.clone())
    }

    fn volume_step(&self, name: &str, now: Timestamp) -> Step {
        let view = self.caches.volumes.view(&ObjectKey::cluster(name));
        if let View::Absent = view {
            self.deletions.forget(&name.to_owned());
            self.told.forget(&Key::Volume(name.to_owned()));
        }
        let attachments = self.caches.attachments.by_index("volume", name);
        let snapshot = VolumeSnapshot {
            facts: &self.facts,
            volume: view,
            deletion: self.deletions.record(&name.to_owned()),
            attached_to: attachments.first().map(|attachment| attachment.spec.node_name.clone()),
            trace: self.calls.journal.trace(name),
            told: self.told.known(&Key::Volume(name.to_owned())),
        };
        decide::decide_volume(&snapshot, name, now)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no code panics while holding the names")
}

/// Keeps the claims of this driver under the name their volume gets; flags may shorten it, so it does not tell the uid.
fn note_volume_name(names: &mut BTreeMap<String, BTreeSet<String>>, facts: &Facts, change: &Change<'_, Claim>) {
    let replaced = |before: &&Arc<Claim>| change.after.is_none_or(|after| after.meta.uid != before.meta.uid);
    if let Some(gone) = change.before.filter(replaced) {
        let name = facts.volume_name(&gone.meta.uid);
        if let Some(uids) = names.get_mut(&name) {
            uids.remove(&gone.meta.uid);
            if uids.is_empty() {
                names.remove(&name);
            }
        }
    }
    if let Some(claim) = change.after.filter(|claim| decide::is_ours(claim, &facts.driver)) {
        names.entry(facts.volume_name(&claim.meta.uid)).or_default().insert(claim.meta.uid.clone());
    }
}

fn both<'a, T: Projection>(change: &'a Change<'_, T>) -> impl Iterator<Item = &'a T> {
    change.before.into_iter().chain(change.after).map(AsRef::as_ref)
}

impl engine::Controller for Controller {
    type Key = Key;
    type Action = Action;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "provisioner";

    fn decide(&self, key: &Key, now: Timestamp, _reserved: &Reserved) -> Step {
        match key {
            Key::Claim(uid) => self.claim_step(uid, now),
            Key::Volume(name) => self.volume_step(name, now),
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(key, action).await
    }

    fn keys(&self) -> Vec<Key> {
        let driver = &self.facts.driver;
        let claims = self.caches.claims.list().into_iter().filter(|claim| decide::is_ours(claim, driver));
        let mut uids: BTreeSet<String> = claims.map(|claim| claim.meta.uid.clone()).collect();
        uids.extend(self.calls.journal.uids());
        let volumes = self.caches.volumes.list().into_iter().filter(|volume| decide::is_our_volume(volume, driver));
        let volumes = volumes.map(|volume| Key::Volume(volume.meta.name.clone()));
        uids.into_iter().map(Key::Claim).chain(volumes).collect()
    }
}
