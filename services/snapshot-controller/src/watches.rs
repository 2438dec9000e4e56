//! What is watched, the ways from one object to another, and which change wakes which key.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::object::{self, Meta, OwnerReference, kinds};
use stowage_model::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::projections::{LabelledNode, SourceClaim};

/// What is decided on together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Snapshot(object::Key),
    Content(String),
    /// A claim, as far as it must be kept: one writer for all snapshots of it.
    Claim(object::Key),
    Group(object::Key),
    GroupContent(String),
}

/// Clones share the views.
#[derive(Clone)]
pub struct Caches {
    pub snapshots: Cache<VolumeSnapshot>,
    pub contents: Cache<VolumeSnapshotContent>,
    pub classes: Cache<VolumeSnapshotClass>,
    pub claims: Cache<SourceClaim>,
    /// Empty unless nodes make their own snapshots.
    pub nodes: Cache<LabelledNode>,
    pub groups: Cache<VolumeGroupSnapshot>,
    pub group_contents: Cache<VolumeGroupSnapshotContent>,
    pub group_classes: Cache<VolumeGroupSnapshotClass>,
}

/// Which kinds are watched besides those of single snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub nodes: bool,
    pub groups: bool,
}

impl Caches {
    pub fn new() -> Self {
        Self {
            snapshots: Cache::indexed(&[
                ("claim", |snapshot| open_source(snapshot).map(|claim| claim.to_string()).into_iter().collect()),
                ("class", |snapshot| {
                    let class = snapshot.spec.volume_snapshot_class_name.clone().unwrap_or_default();
                    if is_open(snapshot) { vec![class] } else { Vec::new() }
                }),
                ("content", |snapshot| snapshot.spec.source.volume_snapshot_content_name.clone().into_iter().collect()),
                ("group", |snapshot| group_of(snapshot).map(|group| group.to_string()).into_iter().collect()),
            ]),
            contents: Cache::indexed(&[("group", |content| group_handle(content).into_iter().collect())]),
            classes: Cache::new(),
            claims: Cache::indexed(&[("restores", |claim| {
                claim.restores().map(|snapshot| snapshot.to_string()).into_iter().collect()
            })]),
            nodes: Cache::new(),
            groups: Cache::indexed(&[
                ("class", |group| {
                    let class = group.spec.volume_group_snapshot_class_name.clone().unwrap_or_default();
                    if group.is_ready() { Vec::new() } else { vec![class] }
                }),
                ("content", |group| group.spec.source.volume_group_snapshot_content_name.clone().into_iter().collect()),
                ("open", |group| if group.is_ready() { Vec::new() } else { vec![group.meta.namespace.clone()] }),
            ]),
            group_contents: Cache::indexed(&[("handle", |content| {
                content.group_handle().map(str::to_owned).into_iter().collect()
            })]),
            group_classes: Cache::new(),
        }
    }

    /// Contents are listed before their snapshots: a snapshot whose content is not known yet would get another one.
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Controller>, extent: Extent) {
        watches.cache(&self.contents, Scope::all(), |controller, change| controller.caches.of_content(change));
        watches.cache(&self.classes, Scope::all(), |controller, change| controller.caches.of_class(change));
        if extent.nodes {
            watches.cache(&self.nodes, Scope::all(), |_, _| None);
        }
        if extent.groups {
            watches.optional(&self.group_contents, Scope::all(), |controller, change| {
                controller.caches.of_group_content(change)
            });
            watches.optional(&self.group_classes, Scope::all(), |controller, change| {
                controller.caches.of_group_class(change)
            });
            watches.optional(&self.groups, Scope::all(), |controller, change| controller.caches.of_group(change));
        }
        watches.then();
        watches.cache(&self.claims, Scope::all(), |controller, change| controller.caches.of_claim(change));
        watches.cache(&self.snapshots, Scope::all(), |controller, change| controller.caches.of_snapshot(change));
    }

    /// Every key there can be something to decide under.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys: BTreeSet<Key> = self.snapshots.keys().into_iter().map(Key::Snapshot).collect();
        keys.extend(self.contents.keys().into_iter().map(|key| Key::Content(key.name)));
        let claims = self.claims.list();
        let kept =
            claims.iter().filter(|claim| claim.is_protected() || !self.snapshots_of(&claim.meta.key()).is_empty());
        keys.extend(kept.map(|claim| Key::Claim(claim.meta.key())));
        keys.extend(self.groups.keys().into_iter().map(Key::Group));
        keys.extend(self.group_contents.keys().into_iter().map(|key| Key::GroupContent(key.name)));
        keys.into_iter().collect()
    }

    /// The snapshots that are being made of a claim, or are not ready for another reason.
    pub fn snapshots_of(&self, claim: &object::Key) -> Vec<Arc<VolumeSnapshot>> {
        self.snapshots.by_index("claim", &claim.to_string())
    }

    fn of_snapshot(&self, change: &Change<'_, VolumeSnapshot>) -> BTreeSet<Key> {
        let mut keys = BTreeSet::from([Key::Snapshot(change.key.clone())]);
        keys.extend(change.both().filter_map(open_source).map(Key::Claim));
        keys.extend(change.both().filter_map(group_of).map(Key::Group));
        keys
    }

    fn of_content(&self, change: &Change<'_, VolumeSnapshotContent>) -> BTreeSet<Key> {
        let mut keys = BTreeSet::from([Key::Content(change.key.name.clone())]);
        let named = self.snapshots.by_index("content", &change.key.name);
        let snapshots = change.both().map(|content| content.spec.volume_snapshot_ref.key());
        for key in snapshots.chain(named.iter().map(|snapshot| snapshot.meta.key())) {
            if let Some(snapshot) = self.snapshots.get(&key) {
                keys.extend(open_source(&snapshot).map(Key::Claim));
                keys.extend(group_of(&snapshot).map(Key::Group));
            }
            keys.insert(Key::Snapshot(key));
        }
        keys
    }

    fn of_class(&self, change: &Change<'_, VolumeSnapshotClass>) -> BTreeSet<Key> {
        let mut waiting = self.snapshots.by_index("class", &change.key.name);
        // Which class is the default may have changed.
        waiting.extend(self.snapshots.by_index("class", ""));
        let claims = waiting.iter().filter_map(|snapshot| open_source(snapshot)).map(Key::Claim);
        claims.chain(waiting.iter().map(|snapshot| Key::Snapshot(snapshot.meta.key()))).collect()
    }

    fn of_claim(&self, change: &Change<'_, SourceClaim>) -> BTreeSet<Key> {
        let snapshots = self.snapshots_of(change.key);
        let mut keys: BTreeSet<Key> = snapshots.iter().map(|snapshot| Key::Snapshot(snapshot.meta.key())).collect();
        if !keys.is_empty() || change.both().any(SourceClaim::is_protected) {
            keys.insert(Key::Claim(change.key.clone()));
        }
        for snapshot in change.both().filter_map(SourceClaim::restores) {
            let group = self.snapshots.get(&snapshot).and_then(|snapshot| group_of(&snapshot));
            keys.extend(group.map(Key::Group));
            keys.insert(Key::Snapshot(snapshot));
        }
        let open = self.groups.by_index("open", &change.key.namespace);
        keys.extend(open.iter().map(|group| Key::Group(group.meta.key())));
        keys
    }

    fn of_group(&self, change: &Change<'_, VolumeGroupSnapshot>) -> BTreeSet<Key> {
        let mut keys = BTreeSet::from([Key::Group(change.key.clone())]);
        let members = self.snapshots.by_index("group", &change.key.to_string());
        keys.extend(members.iter().map(|member| Key::Snapshot(member.meta.key())));
        keys
    }

    fn of_group_content(&self, change: &Change<'_, VolumeGroupSnapshotContent>) -> BTreeSet<Key> {
        let mut keys = BTreeSet::from([Key::GroupContent(change.key.name.clone())]);
        let named = self.groups.by_index("content", &change.key.name);
        keys.extend(named.iter().map(|group| Key::Group(group.meta.key())));
        for content in change.both() {
            let group = content.spec.volume_group_snapshot_ref.key();
            // Members that were made by hand learn the name of their group from here.
            let members =
                content.group_handle().map(|handle| self.contents.by_index("group", handle)).unwrap_or_default();
            keys.extend(members.iter().map(|member| Key::Snapshot(member.spec.volume_snapshot_ref.key())));
            keys.insert(Key::Group(group));
        }
        keys
    }

    fn of_group_class(&self, change: &Change<'_, VolumeGroupSnapshotClass>) -> BTreeSet<Key> {
        let mut waiting = self.groups.by_index("class", &change.key.name);
        waiting.extend(self.groups.by_index("class", ""));
        waiting.iter().map(|group| Key::Group(group.meta.key())).collect()
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether something is still to be done about a snapshot.
fn is_open(snapshot: &VolumeSnapshot) -> bool {
    !snapshot.is_ready() || snapshot.meta.is_deleting()
}

/// The claim that a snapshot, which is not ready, is to be made of.
pub fn open_source(snapshot: &VolumeSnapshot) -> Option<object::Key> {
    let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref().filter(|claim| !claim.is_empty())?;
    let is_source = !snapshot.is_ready() && group_owner(snapshot).is_none();
    is_source.then(|| object::Key::namespaced(snapshot.meta.namespace.as_str(), claim))
}

/// The driver's id of the group that a content is a member of.
pub fn group_handle(content: &VolumeSnapshotContent) -> Option<String> {
    content.status.as_ref()?.volume_group_snapshot_handle.clone().filter(|handle| !handle.is_empty())
}

/// The group snapshot that owns a snapshot.
pub fn group_owner(snapshot: &VolumeSnapshot) -> Option<&OwnerReference> {
    snapshot.meta.owner_references.iter().find(|owner| owner.kind == kinds::VOLUME_GROUP_SNAPSHOT.kind)
}

/// The uid of the group snapshot that owns a snapshot, where it is told.
pub fn group_uid(snapshot: &VolumeSnapshot) -> Option<&str> {
    group_owner(snapshot).map(|owner| owner.uid.as_str()).filter(|uid| !uid.is_empty())
}

/// Whether a snapshot belongs to this very group: there may have been another of its name.
pub fn is_member(snapshot: &VolumeSnapshot, group: &Meta) -> bool {
    group_of(snapshot).is_some_and(|named| named == group.key())
        && group_uid(snapshot).is_none_or(|uid| uid == group.uid)
}

/// The group snapshot that a snapshot belongs to, by its owner or its status.
pub fn group_of(snapshot: &VolumeSnapshot) -> Option<object::Key> {
    let told = snapshot.status.as_ref().and_then(|status| status.volume_group_snapshot_name.as_deref());
    let name =
        told.filter(|name| !name.is_empty()).or_else(|| group_owner(snapshot).map(|owner| owner.name.as_str()))?;
    Some(object::Key::namespaced(snapshot.meta.namespace.as_str(), name))
}
