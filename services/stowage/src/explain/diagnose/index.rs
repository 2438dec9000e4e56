//! What was read, filed by what is asked of it: a survey asks of each of many objects, and may not look at all for each.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stowage_model::matching;
use stowage_model::object::{Key, Projection};
use stowage_model::{Claim, Lease, Pod, Volume, VolumeAttachment, VolumeSnapshot};

use crate::explain::gathered::Gathered;
use crate::explain::told::Told;

/// Kind, namespace and name of the object that an event is about.
type Subject<'a> = (&'a str, &'a str, &'a str);

pub struct Index<'a> {
    users: BTreeMap<Key, Vec<&'a Pod>>,
    events: BTreeMap<Subject<'a>, Vec<&'a Told>>,
    attachments_of: BTreeMap<&'a str, Vec<&'a VolumeAttachment>>,
    attachments_on: BTreeMap<&'a str, Vec<&'a VolumeAttachment>>,
    leases: BTreeMap<&'a str, Vec<&'a Lease>>,
    /// The claims without a volume, by the kind, namespace and name of what they are filled from.
    copies: BTreeMap<Subject<'a>, Vec<&'a Claim>>,
    /// The snapshots that are not ready, by the namespace and name of their claim.
    unready: BTreeMap<(&'a str, &'a str), Vec<&'a VolumeSnapshot>>,
    classes_of_volumes: BTreeSet<&'a str>,
    free: BTreeMap<&'a str, Vec<&'a Volume>>,
    matching: OnceCell<matching::Index>,
    volumes: &'a [Volume],
}

impl<'a> Index<'a> {
    pub fn new(g: &'a Gathered) -> Self {
        let users = g.pods.all().iter().flat_map(|pod| pod.claims().map(move |claim| (claim, pod)));
        let mut events = filed(g.events.all().iter().map(|told| (told.subject(), told)));
        events.values_mut().for_each(|told| told.sort_by_key(|told| std::cmp::Reverse(told.last())));
        let attachments = || g.attachments.all().iter();
        let copies = g.claims.all().iter().filter(|claim| !claim.is_bind_completed()).filter_map(|claim| {
            let source = claim.data_source()?;
            let namespace = source.namespace.as_deref().unwrap_or(&claim.meta.namespace);
            Some(((source.kind.as_str(), namespace, source.name.as_str()), claim))
        });
        let unready = g.snapshots.all().iter().filter(|snapshot| !snapshot.is_ready()).filter_map(|snapshot| {
            let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
            Some(((snapshot.meta.namespace.as_str(), claim), snapshot))
        });
        let free = g.volumes.all().iter().filter(|volume| volume.spec.claim_ref.is_none());
        Self {
            users: filed(users),
            events,
            attachments_of: filed(attachments().filter_map(|one| Some((one.volume_name()?, one)))),
            attachments_on: filed(attachments().map(|one| (one.spec.node_name.as_str(), one))),
            leases: filed(g.leases.all().iter().map(|lease| (lease.meta.name.as_str(), lease))),
            copies: filed(copies),
            unready: filed(unready),
            classes_of_volumes: g.volumes.all().iter().map(Volume::class_name).collect(),
            free: filed(free.map(|volume| (volume.class_name(), volume))),
            matching: OnceCell::new(),
            volumes: g.volumes.all(),
        }
    }

    /// The pods that name a claim.
    pub fn users(&self, claim: &Key) -> &[&'a Pod] {
        found(self.users.get(claim))
    }

    /// What was told of an object and of its namesakes before it, the latest first.
    pub fn events<'s, T: Projection>(&'s self, about: &'s T) -> &'s [&'a Told] {
        let meta = about.meta();
        found(self.events.get(&(T::KIND.kind, meta.namespace.as_str(), meta.name.as_str())))
    }

    pub fn attachments_of(&self, volume: &str) -> &[&'a VolumeAttachment] {
        found(self.attachments_of.get(volume))
    }

    pub fn attachments_on(&self, node: &str) -> &[&'a VolumeAttachment] {
        found(self.attachments_on.get(node))
    }

    pub fn leases(&self, name: &str) -> &[&'a Lease] {
        found(self.leases.get(name))
    }

    /// The claims that are being filled from an object.
    pub fn copies<'s, T: Projection>(&'s self, from: &'s T) -> &'s [&'a Claim] {
        let meta = from.meta();
        found(self.copies.get(&(T::KIND.kind, meta.namespace.as_str(), meta.name.as_str())))
    }

    /// The snapshots of a claim that are not ready.
    pub fn unready<'s>(&'s self, claim: &'s Claim) -> &'s [&'a VolumeSnapshot] {
        found(self.unready.get(&(claim.meta.namespace.as_str(), claim.meta.name.as_str())))
    }

    /// Whether somebody has made a volume of a class, free or not.
    pub fn has_volume_of(&self, class: &str) -> bool {
        self.classes_of_volumes.contains(class)
    }

    /// The volumes of a class that no claim has.
    pub fn free_of(&self, class: &str) -> &[&'a Volume] {
        found(self.free.get(class))
    }

    /// The volumes as the pv-controller looks for them.
    pub fn matching(&self) -> &matching::Index {
        self.matching.get_or_init(|| {
            let mut index = matching::Index::default();
            self.volumes.iter().for_each(|volume| index.insert(Arc::new(volume.clone())));
            index
        })
    }
}

fn filed<K: Ord, T>(pairs: impl Iterator<Item = (K, T)>) -> BTreeMap<K, Vec<T>> {
    let mut filed: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for (key, value) in pairs {
        filed.entry(key).or_default().push(value);
    }
    filed
}

fn found<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map_or(&[], Vec::as_slice)
}
