//! What is cached, and which change wakes which keys.

mod trim;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::attachment::VolumeAttachment;
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::csi_node::CsiNode;
use stowage_model::finalizers::{CLONING_PROTECTION, SNAPSHOT_SOURCE_OF_PROVISIONER};
use stowage_model::migration;
use stowage_model::node::Node;
use stowage_model::object::Key as ObjectKey;
use stowage_model::reference_grant::ReferenceGrant;
use stowage_model::volume::Volume;
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::atlas::{is_moved, is_registered_anew};
use crate::controller::{Controller, Key};
use crate::decide::{asked, is_our_volume, is_ours, is_wanted};
use crate::facts::Facts;
use crate::source::{Origin, Restorable};

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
    /// Empty unless the driver makes volumes from snapshots.
    pub snapshots: Cache<Restorable>,
    /// Empty unless sources may be in other namespaces.
    pub grants: Cache<ReferenceGrant>,
}

impl Caches {
    pub fn new() -> Self {
        Self {
            claims: Cache::<Claim>::indexed(&[
                ("uid", |claim| vec![claim.meta.uid.clone()]),
                // Only those that the class still matters to.
                ("class", |claim| match is_wanted(claim) || Origin::of(claim).is_some() {
                    true => vec![claim.class_name().to_owned()],
                    false => Vec::new(),
                }),
                ("waiting", |claim| match is_wanted(claim) {
                    true => asked(claim).into_iter().flatten().map(str::to_owned).collect(),
                    false => Vec::new(),
                }),
                ("source", |claim| Origin::of(claim).iter().map(Origin::to_string).collect()),
            ])
            .trimmed(trim::claim),
            volumes: Cache::<Volume>::indexed(&[("handle", |volume| {
                let translated = migration::to_csi(volume).ok().flatten();
                match (translated.as_ref().and_then(|volume| volume.spec.csi.as_ref()), volume.provisioned_by()) {
                    (Some(csi), _) => vec![csi.volume_handle.clone()],
                    (None, Some(_)) => vec![volume.meta.name.clone()],
                    (None, None) => Vec::new(),
                }
            })])
            .trimmed(trim::volume),
            classes: Cache::new(),
            attachments: Cache::indexed(&[("volume", |attachment| {
                attachment.spec.source.persistent_volume_name.iter().cloned().collect()
            })]),
            nodes: Cache::new().trimmed(trim::node),
            csi_nodes: Cache::new(),
            snapshots: Cache::new(),
            grants: Cache::new(),
        }
    }
}

/// The claims of this driver by the name their volume gets, where flags shorten it, so that it does not tell the uid.
#[derive(Clone, Default)]
pub struct VolumeNames(Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>);

impl VolumeNames {
    fn note(&self, facts: &Facts, change: &Change<'_, Claim>) {
        if facts.tells_uid() {
            return;
        }
        let mut names = self.lock();
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
        if let Some(claim) = change.after.filter(|claim| is_ours(claim, &facts.driver)) {
            names.entry(facts.volume_name(&claim.meta.uid)).or_default().insert(claim.meta.uid.clone());
        }
    }

    fn uids(&self, facts: &Facts, claims: &Cache<Claim>, name: &str) -> BTreeSet<String> {
        if facts.tells_uid() {
            let claims = facts.uid_in(name).map(|uid| claims.by_index("uid", uid)).unwrap_or_default();
            let ours = claims.iter().filter(|claim| is_ours(claim, &facts.driver));
            return ours.map(|claim| claim.meta.uid.clone()).collect();
        }
        self.lock().get(name).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.0.lock().expect("no code panics while holding the names")
    }
}

pub fn declare(controller: &Controller, watches: &mut Watches<'_, Controller>) {
    let Controller { facts, caches, names, .. } = controller;
    let (of, named) = (Arc::clone(facts), names.clone());
    caches.claims.on_change(move |change| named.note(&of, change));

    watches.cache(&caches.claims, Scope::all(), claim_changed);
    watches.cache(&caches.volumes, Scope::all(), volume_changed);
    watches.cache(&caches.classes, Scope::all(), |controller, change| {
        let claims = controller.caches.claims.by_index("class", &change.key.name);
        let sources = keys_of_sources(&claims);
        keys_of_waiting(controller, claims).into_iter().chain(sources).collect::<Vec<_>>()
    });
    // In node deployment the only place is our own node's, which the driver told.
    let needs_places = facts.topology || facts.options.capacity.is_some();
    if needs_places && facts.node.is_none() {
        watches.cache(&caches.nodes, Scope::all(), |controller, change| match is_moved(change) {
            true => keys_of_all_waiting(controller),
            false => Vec::new(),
        });
        watches.cache(&caches.csi_nodes, Scope::all(), |controller, change| {
            match is_registered_anew(change, &controller.facts.driver) {
                true => keys_of_all_waiting(controller),
                false => Vec::new(),
            }
        });
    }
    if facts.snapshots {
        watches.optional(&caches.snapshots, Scope::all(), snapshot_changed);
    }
    if facts.options.cross_namespace {
        watches.optional(&caches.grants, Scope::all(), |controller, change| {
            let namespace = &change.key.namespace;
            let names = |claim: &Arc<Claim>| Origin::of(claim).is_some_and(|origin| origin.key.namespace == *namespace);
            let claims: Vec<_> = controller.caches.claims.list().into_iter().filter(names).collect();
            let sources = keys_of_sources(&claims);
            keys_of_waiting(controller, claims).into_iter().chain(sources).collect::<Vec<_>>()
        });
    }
    if facts.attaches {
        watches.cache(&caches.attachments, Scope::all(), |_, change| {
            let gone = change.before.filter(|_| change.after.is_none());
            let volume = gone.and_then(|attachment| attachment.spec.source.persistent_volume_name.clone());
            volume.map(Key::Volume)
        });
    }
}

/// Everything there may be something to decide about.
pub fn keys(controller: &Controller) -> Vec<Key> {
    let Controller { facts, caches, .. } = controller;
    let claims = caches.claims.list().into_iter().filter(|claim| is_ours(claim, &facts.driver));
    let mut uids: BTreeSet<String> = claims.map(|claim| claim.meta.uid.clone()).collect();
    uids.extend(controller.journal().uids());
    let volumes = caches.volumes.list().into_iter().filter(|volume| is_our_volume(volume, &facts.driver));
    let volumes = volumes.map(|volume| Key::Volume(volume.meta.name.clone()));
    let cloned = caches.claims.list().into_iter().filter(|claim| claim.meta.has_finalizer(CLONING_PROTECTION));
    let cloned = cloned.map(|claim| Origin::claim(&claim.meta.key()));
    let restored = caches.snapshots.list().into_iter().filter(|snapshot| is_held(snapshot));
    let restored = restored.map(|snapshot| Origin::snapshot(&snapshot.meta.key()));
    uids.into_iter().map(Key::Claim).chain(volumes).chain(cloned.chain(restored).map(Key::Source)).collect()
}

fn claim_changed(controller: &Controller, change: &Change<'_, Claim>) -> Vec<Key> {
    let concerns_us = |claim: &&Claim| {
        is_ours(claim, &controller.facts.driver) || controller.journal().get(&claim.meta.uid).is_some()
    };
    let mut keys: Vec<Key> =
        change.both().filter(concerns_us).map(|claim| Key::Claim(claim.meta.uid.clone())).collect();
    if change.both().any(|claim| claim.meta.has_finalizer(CLONING_PROTECTION)) {
        keys.push(Key::Source(Origin::claim(change.key)));
    }
    // Whoever waited for its source may be what the source is held for.
    keys.extend(change.both().filter_map(Origin::of).map(Key::Source).next());
    keys.extend(keys_of_filled(controller, &Origin::claim(change.key)));
    keys
}

fn snapshot_changed(controller: &Controller, change: &Change<'_, Restorable>) -> Vec<Key> {
    let origin = Origin::snapshot(change.key);
    let mut keys = keys_of_filled(controller, &origin);
    if change.both().any(is_held) || controller.looks.record(change.key).is_some() {
        keys.push(Key::Source(origin));
    }
    keys
}

fn is_held(snapshot: &Restorable) -> bool {
    snapshot.meta.has_finalizer(SNAPSHOT_SOURCE_OF_PROVISIONER)
}

/// Whom the end of a live look at a snapshot wakes.
pub fn looked(claims: &Cache<Claim>, key: &ObjectKey) -> Vec<Key> {
    let origin = Origin::snapshot(key);
    let claims = claims.by_index("source", &origin.to_string()).into_iter().filter(|claim| is_wanted(claim));
    claims.map(|claim| Key::Claim(claim.meta.uid.clone())).chain([Key::Source(origin.clone())]).collect()
}

/// The claims that wait to be filled from the object.
fn keys_of_filled(controller: &Controller, origin: &Origin) -> Vec<Key> {
    keys_of_waiting(controller, controller.caches.claims.by_index("source", &origin.to_string()))
}

/// What these claims name, and may be held for.
fn keys_of_sources(claims: &[Arc<Claim>]) -> BTreeSet<Key> {
    claims.iter().filter_map(|claim| Origin::of(claim)).map(Key::Source).collect()
}

fn volume_changed(controller: &Controller, change: &Change<'_, Volume>) -> Vec<Key> {
    let name = &change.key.name;
    let mut keys = Vec::new();
    if change.both().any(|volume| is_our_volume(volume, &controller.facts.driver)) {
        keys.push(Key::Volume(name.clone()));
    }
    // Clones of it wait for it to be bound.
    if let Some(claim) = change.after.and_then(|volume| volume.spec.claim_ref.as_ref()) {
        let key = ObjectKey::namespaced(&claim.namespace, &claim.name);
        keys.extend(keys_of_filled(controller, &Origin::claim(&key)));
    }
    // Only whether there is such an object concerns its claim.
    if change.before.is_none() || change.after.is_none() {
        let claims = change.both().filter_map(|volume| volume.spec.claim_ref.as_ref());
        let mut uids: BTreeSet<String> = claims.map(|claim| claim.uid.clone()).collect();
        uids.extend(controller.names.uids(&controller.facts, &controller.caches.claims, name));
        keys.extend(uids.into_iter().filter(|uid| !uid.is_empty()).map(Key::Claim));
    }
    keys
}

/// A node that came or changed may be what they wait for.
fn keys_of_all_waiting(controller: &Controller) -> Vec<Key> {
    keys_of_waiting(controller, controller.caches.claims.by_index("waiting", &controller.facts.driver))
}

/// A class that came or changed may be what claims wait for.
fn keys_of_waiting(controller: &Controller, claims: Vec<Arc<Claim>>) -> Vec<Key> {
    let waiting = claims.into_iter().filter(|claim| is_ours(claim, &controller.facts.driver) && is_wanted(claim));
    waiting.map(|claim| Key::Claim(claim.meta.uid.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DRIVER, claim_with};

    /// Each change of a CSINode went through all claims.
    #[test]
    fn who_waits_for_nodes_is_found_among_many_who_do_not() {
        let claims = Caches::new().claims;
        let add = |name: &str, provisioner: &str, volume: &str, migrated_to: Option<&str>| {
            claims.observe(claim_with(|claim| {
                claim["metadata"]["name"] = name.into();
                claim["metadata"]["uid"] = name.into();
                claim["spec"]["volumeName"] = volume.into();
                let annotations = &mut claim["metadata"]["annotations"];
                annotations["volume.kubernetes.io/storage-provisioner"] = provisioner.into();
                if let Some(driver) = migrated_to {
                    annotations["pv.kubernetes.io/migrated-to"] = driver.into();
                }
            }));
        };
        for number in 0..50 {
            add(&format!("bound-{number}"), DRIVER, "pvc-1", None);
            add(&format!("other-{number}"), "other.example", "", None);
        }
        add("waits", DRIVER, "", Some(DRIVER));
        add("was-in-tree", "kubernetes.io/aws-ebs", "", Some(DRIVER));
        let waiting = claims.by_index("waiting", DRIVER);
        let names: Vec<&str> = waiting.iter().map(|claim| claim.meta.name.as_str()).collect();
        assert_eq!(names, ["waits", "was-in-tree"]);
    }
}
