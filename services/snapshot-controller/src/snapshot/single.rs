//! Reads what is known of one VolumeSnapshot.

use std::sync::Arc;

use stowage_model::object::{self, Meta};
use stowage_model::{Volume, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, names};
use stowage_runtime::cache::View;

use super::{Gatherer, Membership, Place, Single};
use crate::watches::{self, Key};

impl Gatherer<'_> {
    pub(super) fn snapshots_of(&self, claim: &object::Key) -> Vec<Option<Single>> {
        let single = |snapshot: &Arc<VolumeSnapshot>| match self.caches.snapshots.view(&snapshot.meta.key()) {
            View::Known(snapshot) => Some(self.single(snapshot)),
            View::Absent | View::Unknown => None,
        };
        self.caches.snapshots_of(claim).iter().map(single).collect()
    }

    pub(super) fn single(&self, snapshot: Arc<VolumeSnapshot>) -> Single {
        let (meta, spec) = (&snapshot.meta, &snapshot.spec);
        let content_name = content_name(&snapshot);
        let content = self.content(&content_name);
        let class_name = spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        let claim = match watches::open_source(&snapshot) {
            Some(claim) => self.caches.claims.view(&claim),
            None => View::Absent,
        };
        let volume = match (&claim, &content) {
            (View::Known(claim), View::Absent) => self.memory.look(&claim.spec.volume_name, self.now),
            _ => None,
        };
        let found = volume.as_ref().and_then(|look| look.volume.as_deref());
        let needs_default = class_name.is_empty() && found.is_some();
        let deleting = meta.is_deleting();
        Single {
            class: if class_name.is_empty() {
                None
            } else {
                self.caches.classes.get(&object::Key::cluster(class_name))
            },
            defaults: if needs_default { self.default_classes() } else { Vec::new() },
            place: self.place(found),
            restoring: if deleting { self.restoring(&meta.key()) } else { Vec::new() },
            group: self.membership(&snapshot, &content),
            told: self.memory.told.known(&Key::Snapshot(meta.key())),
            policy: self.policy,
            content_name,
            content,
            claim,
            volume,
            snapshot,
        }
    }

    fn content(&self, name: &str) -> View<VolumeSnapshotContent> {
        if name.is_empty() { View::Absent } else { self.caches.contents.view(&object::Key::cluster(name)) }
    }

    fn default_classes(&self) -> Vec<Arc<VolumeSnapshotClass>> {
        self.caches.classes.list().into_iter().filter(|class| class.is_default()).collect()
    }

    /// The first node, by name, that the affinity of all volumes allows.
    pub(super) fn place<'a>(&self, volumes: impl IntoIterator<Item = &'a Volume>) -> Place {
        if !self.policy.distributed {
            return Place::Anywhere;
        }
        let volumes = volumes.into_iter();
        let required: Vec<_> =
            volumes.filter_map(|volume| volume.spec.node_affinity.as_ref()?.required.as_ref()).collect();
        if required.is_empty() {
            return Place::Anywhere;
        }
        let allows = |node: &Meta| {
            required.iter().all(|required| required.matches(&node.name, &node.labels).unwrap_or_default())
        };
        let nodes = self.caches.nodes.list();
        let node = nodes.iter().find(|node| allows(&node.meta));
        node.map_or(Place::Nowhere, |node| Place::Node(node.meta.name.clone()))
    }

    pub(super) fn restoring(&self, snapshot: &object::Key) -> Vec<object::Key> {
        let claims = self.caches.claims.by_index("restores", &snapshot.to_string());
        claims.iter().map(|claim| claim.meta.key()).collect()
    }

    fn membership(&self, snapshot: &VolumeSnapshot, content: &View<VolumeSnapshotContent>) -> Membership {
        if !self.policy.groups {
            return Membership::default();
        }
        let of = watches::group_of(snapshot);
        let group = of.as_ref().and_then(|group| self.caches.groups.get(group));
        let group = group.filter(|group| watches::is_member(snapshot, &group.meta));
        let handle = match content {
            View::Known(content) => watches::group_handle(content),
            View::Absent | View::Unknown => None,
        };
        let contents = handle.map(|handle| self.caches.group_contents.by_index("handle", &handle)).unwrap_or_default();
        let mut groups = contents.iter().map(|content| &content.spec.volume_group_snapshot_ref);
        let by_handle = groups.find(|group| group.namespace == snapshot.meta.namespace);
        Membership {
            owner: watches::group_uid(snapshot).map(str::to_owned),
            is_going: group.as_ref().is_some_and(|group| group.meta.is_deleting()),
            uid: group.map(|group| group.meta.uid.clone()),
            by_handle: by_handle.map(|group| group.name.clone()),
            of,
        }
    }
}

/// The content that a VolumeSnapshot is bound to, asks for, or gets. A member of a group and its content share a hash.
fn content_name(snapshot: &VolumeSnapshot) -> String {
    let asked = snapshot.spec.source.volume_snapshot_content_name.as_deref();
    match snapshot.bound_content().or(asked) {
        Some(name) => name.to_owned(),
        None if watches::group_owner(snapshot).is_some() => {
            names::member_content(&snapshot.meta.name).unwrap_or_default()
        }
        None => names::snapshot_content(&snapshot.meta.uid),
    }
}
