//! What was read of a cluster, and what it means that something is not among it.

use std::collections::{BTreeMap, BTreeSet};

use stowage_model::migration::IN_TREE;
use stowage_model::object::{Key, Kind, Projection};
use stowage_model::{
    AttributesClass, Claim, CsiDriver, CsiNode, Lease, Node, Pod, StorageCapacity, StorageClass, Volume,
    VolumeAttachment, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::told::Told;

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Everything that is not where it should be, in a namespace or in all.
    All {
        namespace: Option<String>,
    },
    Claim(Key),
    Pod(Key),
    Volume(Key),
    Snapshot(Key),
}

/// What was seen of a kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen<T> {
    objects: Vec<T>,
    /// Where among them each is.
    places: BTreeMap<Key, usize>,
    /// Whether what is not among them is not there.
    pub is_known: bool,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), places: BTreeMap::new(), is_known: true }
    }
}

/// What came of looking for an object.
#[derive(Debug)]
pub enum Look<'a, T> {
    There(&'a T),
    Absent,
    /// It may not be read.
    Unread,
}

impl<'a, T> Look<'a, T> {
    pub fn there(self) -> Option<&'a T> {
        match self {
            Self::There(object) => Some(object),
            Self::Absent | Self::Unread => None,
        }
    }

    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<T: Projection> Seen<T> {
    pub fn new(objects: Vec<T>, is_known: bool) -> Self {
        let mut seen = Self { is_known, ..Self::default() };
        seen.extend(objects);
        seen
    }

    pub fn all(&self) -> &[T] {
        &self.objects
    }

    pub fn into_all(self) -> Vec<T> {
        self.objects
    }

    pub fn push(&mut self, object: T) {
        self.places.entry(object.key()).or_insert(self.objects.len());
        self.objects.push(object);
    }

    pub fn extend(&mut self, objects: impl IntoIterator<Item = T>) {
        objects.into_iter().for_each(|object| self.push(object));
    }

    pub fn look(&self, key: &Key) -> Look<'_, T> {
        match self.places.get(key) {
            Some(place) => Look::There(&self.objects[*place]),
            None if self.is_known => Look::Absent,
            None => Look::Unread,
        }
    }

    pub fn named(&self, name: &str) -> Look<'_, T> {
        self.look(&Key::cluster(name))
    }
}

/// A kind that could not be read, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    pub kind: Kind,
    pub why: String,
}

/// Everything that a report is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    pub wanted: Wanted,
    pub claims: Seen<Claim>,
    pub pods: Seen<Pod>,
    pub volumes: Seen<Volume>,
    pub classes: Seen<StorageClass>,
    pub attachments: Seen<VolumeAttachment>,
    pub nodes: Seen<Node>,
    pub csi_nodes: Seen<CsiNode>,
    pub drivers: Seen<CsiDriver>,
    pub capacities: Seen<StorageCapacity>,
    pub leases: Seen<Lease>,
    pub attributes_classes: Seen<AttributesClass>,
    pub snapshots: Seen<VolumeSnapshot>,
    pub contents: Seen<VolumeSnapshotContent>,
    pub snapshot_classes: Seen<VolumeSnapshotClass>,
    pub events: Seen<Told>,
    pub unread: Vec<Unread>,
}

impl Gathered {
    /// Nothing yet.
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            claims: Seen::default(),
            pods: Seen::default(),
            volumes: Seen::default(),
            classes: Seen::default(),
            attachments: Seen::default(),
            nodes: Seen::default(),
            csi_nodes: Seen::default(),
            drivers: Seen::default(),
            capacities: Seen::default(),
            leases: Seen::default(),
            attributes_classes: Seen::default(),
            snapshots: Seen::default(),
            contents: Seen::default(),
            snapshot_classes: Seen::default(),
            events: Seen::default(),
            unread: Vec::new(),
        }
    }

    /// The drivers whose components may have to act.
    pub fn drivers_in_play(&self) -> BTreeSet<String> {
        let of_classes = self.classes.all().iter().map(|class| class.provisioner.as_str());
        let of_claims = self.claims.all().iter().filter_map(|claim| claim.storage_provisioner());
        let of_volumes = self.volumes.all().iter().flat_map(|volume| {
            let own = volume.spec.csi.as_ref().map(|csi| csi.driver.as_str());
            [own, volume.migrated_to(), volume.provisioned_by()].into_iter().flatten()
        });
        let of_contents = self.contents.all().iter().map(|content| content.spec.driver.as_str());
        let all = of_classes.chain(of_claims).chain(of_volumes).chain(of_contents);
        all.filter(|name| !name.is_empty() && !name.starts_with(IN_TREE)).map(str::to_owned).collect()
    }
}
