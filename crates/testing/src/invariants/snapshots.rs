//! The invariants about snapshots: S1, and P1, P2, P3 and L1 as far as they speak of them.

mod rest;

use std::collections::BTreeSet;

use stowage_model::object::{Meta, Projection};
use stowage_model::volume_group_snapshot::VolumeGroupSnapshotContent;
use stowage_model::volume_snapshot::{DeletionPolicy, SnapshotRef, VolumeSnapshot, VolumeSnapshotContent};

use crate::driver::{Cut, Grouped};

use super::{Observed, Violation, violation};

/// How long what the driver has may go unnamed by the object that owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owned {
    /// It is enough that it was made for an object, as its name tells.
    ByName,
    /// The object names its id.
    ById,
}

impl Observed {
    pub(super) fn broken_snapshots(&self) -> Vec<Violation> {
        let mut found = self.ownerless_snapshots(Owned::ByName);
        found.extend(self.double_snapshots());
        found.extend(self.lost_snapshots());
        found.extend(self.spoiled_snapshots());
        found
    }

    pub(super) fn broken_snapshots_at_rest(&self) -> Vec<Violation> {
        let mut found = self.ownerless_snapshots(Owned::ById);
        for content in self.ours_of_contents().filter(|content| content.is_ready()) {
            if self.cut(content).is_none() {
                found.push(violation(
                    "P3",
                    format!("content {} is ready, but the driver has no such snapshot", content.meta.name),
                ));
            }
        }
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.is_ready()) {
            if self.content_of(snapshot).is_none() {
                found.push(violation(
                    "S1",
                    format!("snapshot {} is said to be ready, but has no content", snapshot.key()),
                ));
            }
        }
        found.extend(self.restored_from_elsewhere());
        found.extend(self.held_for_nothing());
        found
    }

    pub(super) fn left_snapshots(&self) -> Vec<String> {
        let mut left = Vec::new();
        left.extend(self.snapshots.iter().map(|snapshot| format!("snapshot {}", snapshot.key())));
        left.extend(self.contents.iter().map(|content| format!("content {}", content.meta.name)));
        left.extend(self.group_snapshots.iter().map(|group| format!("group snapshot {}", group.key())));
        left.extend(self.group_contents.iter().map(|content| format!("group content {}", content.meta.name)));
        left.extend(self.driver.snapshots.keys().map(|id| format!("snapshot {id} in the driver")));
        left.extend(self.driver.groups.keys().map(|id| format!("group snapshot {id} in the driver")));
        left
    }

    fn ours_of_contents(&self) -> impl Iterator<Item = &VolumeSnapshotContent> {
        self.contents.iter().filter(|content| content.spec.driver == self.driver_name)
    }

    fn ours_of_group_contents(&self) -> impl Iterator<Item = &VolumeGroupSnapshotContent> {
        self.group_contents.iter().filter(|content| content.spec.driver == self.driver_name)
    }

    /// The driver's snapshot that a content names.
    fn cut(&self, content: &VolumeSnapshotContent) -> Option<&Cut> {
        self.driver.snapshots.get(content.snapshot_handle()?)
    }

    /// The content a snapshot is bound to, if that one agrees.
    fn content_of(&self, snapshot: &VolumeSnapshot) -> Option<&VolumeSnapshotContent> {
        let name = snapshot.bound_content()?;
        let agrees = |content: &&VolumeSnapshotContent| {
            content.meta.name == name && content.spec.volume_snapshot_ref.names(&snapshot.meta)
        };
        self.contents.iter().find(agrees)
    }

    fn ownerless_snapshots(&self, how: Owned) -> Vec<Violation> {
        let mut found = Vec::new();
        for (id, group) in self.driver.groups.iter().filter(|(_, group)| !group.by_hand) {
            if !self.is_group_owned(id, group, how) {
                let name = &group.name;
                found.push(violation(
                    "P1",
                    format!("the driver has group snapshot {id} ({name}), which belongs to nobody"),
                ));
            }
        }
        for (id, cut) in self.driver.snapshots.iter().filter(|(_, cut)| !cut.by_hand) {
            let group = cut.group.as_ref().and_then(|group| Some((group, self.driver.groups.get(group)?)));
            // A member may wait for objects of its own as long as its group has one.
            if group.is_some_and(|(id, group)| self.is_group_owned(id, group, how)) {
                continue;
            }
            let owns = |content: &VolumeSnapshotContent| {
                let named = content.spec.source.snapshot_handle.as_deref().or_else(|| content.snapshot_handle());
                named == Some(id.as_str())
                    || (how == Owned::ByName && is_made_for(&cut.name, &content.spec.volume_snapshot_ref))
            };
            if !self.ours_of_contents().any(owns) {
                let name = &cut.name;
                found.push(violation("P1", format!("the driver has snapshot {id} ({name}), which belongs to nobody")));
            }
        }
        found
    }

    fn is_group_owned(&self, id: &str, group: &Grouped, how: Owned) -> bool {
        self.ours_of_group_contents().any(|content| {
            let source = content.spec.source.group_snapshot_handles.as_ref();
            let named =
                source.map(|handles| handles.volume_group_snapshot_handle.as_str()).or_else(|| content.group_handle());
            named == Some(id)
                || (how == Owned::ByName && is_made_for(&group.name, &content.spec.volume_group_snapshot_ref))
        })
    }

    fn double_snapshots(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for snapshot in &self.snapshots {
            let is_ours = |content: &&VolumeSnapshotContent| {
                let reference = &content.spec.volume_snapshot_ref;
                !reference.uid.is_empty() && reference.names(&snapshot.meta)
            };
            let contents: BTreeSet<&str> =
                self.contents.iter().filter(is_ours).map(|content| content.meta.name.as_str()).collect();
            if contents.len() > 1 {
                found.push(violation("P2", format!("snapshot {} has the contents {contents:?}", snapshot.key())));
            }
            let recorded = self.ours_of_contents().filter(is_ours).filter_map(|content| content.snapshot_handle());
            let made = self.driver.snapshots.iter().filter(|(_, cut)| is_named_after(&cut.name, &snapshot.meta.uid));
            let ids: BTreeSet<&str> = made.map(|(id, _)| id.as_str()).chain(recorded).collect();
            if ids.len() > 1 {
                found.push(violation(
                    "P2",
                    format!("snapshot {} has the snapshots {ids:?} in the driver", snapshot.key()),
                ));
            }
        }
        for group in &self.group_snapshots {
            let made = self.driver.groups.iter().filter(|(_, made)| is_named_after(&made.name, &group.meta.uid));
            let ids: BTreeSet<&str> = made.map(|(id, _)| id.as_str()).collect();
            if ids.len() > 1 {
                found.push(violation("P2", format!("group snapshot {} has {ids:?} in the driver", group.key())));
            }
        }
        found
    }

    fn lost_snapshots(&self) -> Vec<Violation> {
        let may_go = |meta: &Meta, policy| meta.is_deleting() && policy == DeletionPolicy::Delete;
        let text = |what: &str, meta: &Meta, policy: DeletionPolicy, handle: &str| {
            format!("{what} {} ({policy}) is there, but its {handle} in the driver is deleted", meta.name)
        };
        let mut found = Vec::new();
        for content in self.ours_of_contents() {
            let policy = content.spec.deletion_policy;
            let Some(handle) = content.snapshot_handle().filter(|handle| !self.driver.snapshots.contains_key(*handle))
            else {
                continue;
            };
            // A member goes with its group, of which its own content learns later.
            let group = content.status.as_ref().and_then(|status| status.volume_group_snapshot_handle.as_deref());
            let went_with_its_group =
                policy == DeletionPolicy::Delete && group.is_some_and(|group| !self.driver.groups.contains_key(group));
            if !went_with_its_group && !may_go(&content.meta, policy) {
                found.push(violation("P3", text("content", &content.meta, policy, handle)));
            }
        }
        for content in self.ours_of_group_contents() {
            let policy = content.spec.deletion_policy;
            let handle = content.group_handle().filter(|handle| !self.driver.groups.contains_key(*handle));
            if let Some(handle) = handle.filter(|_| !may_go(&content.meta, policy)) {
                found.push(violation("P3", text("group content", &content.meta, policy, handle)));
            }
        }
        found
    }

    fn spoiled_snapshots(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut spoiled = |text: String| found.push(violation("S1", text));
        for (id, cut) in &self.driver.snapshots {
            let (held, then) = (cut.content, self.driver.content_at(&cut.volume, cut.moment));
            if held != then {
                spoiled(format!("snapshot {id} in the driver holds {held}, but its volume held {then} at its moment"));
            }
        }
        for content in self.ours_of_contents().filter(|content| content.is_ready()) {
            let (name, Some(cut)) = (&content.meta.name, self.cut(content)) else { continue };
            // Who cannot list must take an administrator's word for it.
            let is_told = self.driver.abilities.list_snapshots || content.spec.source.snapshot_handle.is_none();
            if is_told && !cut.is_ready() {
                spoiled(format!("content {name} is said to be ready, but its snapshot is not"));
            }
            let (volume, wanted) = (&cut.volume, &content.spec.source.volume_handle);
            if wanted.as_ref().is_some_and(|wanted| wanted != volume) {
                spoiled(format!("content {name} is of volume {wanted:?}, but its snapshot is of {volume}"));
            }
            let told = content.status.as_ref().and_then(|status| status.creation_time);
            let created = i64::try_from(cut.created.as_nanosecond()).ok();
            if told.is_some() && told != created {
                spoiled(format!("content {name} is said to be of {told:?}, but its snapshot is of {created:?}"));
            }
        }
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.is_ready() && !snapshot.meta.is_deleting()) {
            let Some(content) = self.content_of(snapshot).filter(|content| !content.meta.is_deleting()) else {
                continue;
            };
            let (key, name) = (snapshot.key(), &content.meta.name);
            if !content.is_ready() {
                spoiled(format!("snapshot {key} is said to be ready, but its content {name} is not"));
            }
            let told = snapshot.status.as_ref().and_then(|status| status.creation_time);
            let created = self.cut(content).map(|cut| cut.created);
            // The API keeps whole seconds.
            if told.is_some() && created.is_some() && told.map(|t| t.as_second()) != created.map(|t| t.as_second()) {
                spoiled(format!("snapshot {key} is said to be of {told:?}, but its data is of {created:?}"));
            }
        }
        for content in self.ours_of_group_contents().filter(|content| content.is_ready()) {
            let Some(group) = content.group_handle().and_then(|handle| self.driver.groups.get(handle)) else {
                continue;
            };
            let members = group.members.iter().filter_map(|id| self.driver.snapshots.get(id));
            if members.clone().any(|cut| !cut.is_ready()) {
                spoiled(format!("group content {} is said to be ready, but a member is not", content.meta.name));
            }
            if members.map(|cut| cut.moment).collect::<BTreeSet<_>>().len() > 1 {
                spoiled(format!("the members of group content {} are of several moments", content.meta.name));
            }
        }
        found
    }
}

/// Whether something in the driver was made for the object that a content belongs to.
fn is_made_for(name: &str, reference: &SnapshotRef) -> bool {
    is_named_after(name, &reference.uid)
}

/// Names in the driver end with the uid of the object they were made for.
fn is_named_after(name: &str, uid: &str) -> bool {
    !uid.is_empty() && name.strip_suffix(uid).is_some_and(|prefix| prefix.ends_with('-'))
}

#[cfg(test)]
mod tests;
