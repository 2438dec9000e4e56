//! Reads what is known of one VolumeGroupSnapshot and its members.

use std::sync::Arc;

use stowage_model::object::{self, Meta};
use stowage_model::volume_group_snapshot::VolumeSnapshotInfo;
use stowage_model::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
    names,
};
use stowage_runtime::cache::View;
use stowage_runtime::told::Known;

use super::{Gatherer, Place, Policy};
use crate::memory::Look;
use crate::projections::SourceClaim;
use crate::watches::{self, Key};

/// One VolumeGroupSnapshot, what it is bound to and what it is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub group: Arc<VolumeGroupSnapshot>,
    /// Whether contents and classes of groups are known: before, none of them seems to exist.
    pub is_listed: bool,
    /// The one content that it has or may have.
    pub content_name: String,
    pub content: View<VolumeGroupSnapshotContent>,
    /// The class that it names.
    pub class: Option<Arc<VolumeGroupSnapshotClass>>,
    /// The classes that are somebody's default, where it names none.
    pub defaults: Vec<Arc<VolumeGroupSnapshotClass>>,
    /// The claims that its selector chooses, or why it chooses nothing.
    pub claims: Result<Vec<Candidate>, String>,
    /// Where snapshots of all their volumes can be made.
    pub place: Place,
    /// What the driver has made.
    pub members: Vec<Member>,
    /// Every VolumeSnapshot that belongs to it.
    pub snapshots: Vec<Arc<VolumeSnapshot>>,
    /// Claims whose volumes are being made from these, where that matters.
    pub restoring: Vec<object::Key>,
    pub told: Known,
    pub policy: Policy,
}

/// A claim that a group is to be made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub claim: Arc<SourceClaim>,
    /// Its volume, if it was just read.
    pub volume: Option<Look>,
}

/// One snapshot that the driver made with the group, and the objects that stand for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    pub info: VolumeSnapshotInfo,
    pub snapshot_name: String,
    pub snapshot: View<VolumeSnapshot>,
    pub content_name: String,
    pub content: View<VolumeSnapshotContent>,
}

/// A group's content by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupContentFacts {
    pub content: Arc<VolumeGroupSnapshotContent>,
    /// The group of the name that it gives.
    pub group: View<VolumeGroupSnapshot>,
    /// Whether groups are known: before, none seems to exist.
    pub is_listed: bool,
    pub told: Known,
}

impl Gatherer<'_> {
    pub(super) fn group(&self, group: Arc<VolumeGroupSnapshot>) -> Group {
        let (meta, spec) = (&group.meta, &group.spec);
        let asked = spec.source.volume_group_snapshot_content_name.as_deref();
        let content_name = match group.bound_content().or(asked) {
            Some(name) => name.to_owned(),
            None => names::group_snapshot_content(&meta.uid),
        };
        let content = self.caches.group_contents.view(&object::Key::cluster(content_name.as_str()));
        let members = match &content {
            View::Known(content) if asked.is_none() => self.members(meta, content),
            _ => Vec::new(),
        };
        let class_name = spec.volume_group_snapshot_class_name.as_deref().unwrap_or_default();
        let class = object::Key::cluster(class_name);
        let of_name = self.caches.snapshots.by_index("group", &meta.key().to_string());
        let snapshots: Vec<_> = of_name.into_iter().filter(|snapshot| watches::is_member(snapshot, meta)).collect();
        let restoring = snapshots.iter().flat_map(|snapshot| self.restoring(&snapshot.meta.key()));
        let needs_claims = asked.is_none() && !meta.is_deleting() && !group.is_ready();
        let claims = if needs_claims { self.candidates(&group) } else { Ok(Vec::new()) };
        let looks = claims.iter().flatten().filter_map(|candidate| candidate.volume.as_ref());
        let place = self.place(looks.filter_map(|look| look.volume.as_deref()));
        Group {
            is_listed: self.caches.group_contents.is_synced() && self.caches.group_classes.is_synced(),
            class: if class_name.is_empty() { None } else { self.caches.group_classes.get(&class) },
            defaults: if class_name.is_empty() { self.default_group_classes() } else { Vec::new() },
            restoring: if meta.is_deleting() { restoring.collect() } else { Vec::new() },
            told: self.memory.told.known(&Key::Group(meta.key())),
            policy: self.policy,
            content_name,
            content,
            claims,
            place,
            members,
            snapshots,
            group,
        }
    }

    fn default_group_classes(&self) -> Vec<Arc<VolumeGroupSnapshotClass>> {
        self.caches.group_classes.list().into_iter().filter(|class| class.is_default()).collect()
    }

    fn candidates(&self, group: &VolumeGroupSnapshot) -> Result<Vec<Candidate>, String> {
        let Some(selector) = &group.spec.source.selector else { return Ok(Vec::new()) };
        let mut chosen = Vec::new();
        for claim in self.caches.claims.list() {
            if claim.meta.namespace == group.meta.namespace
                && selector.matches(&claim.meta.labels).map_err(|error| error.to_string())?
            {
                let volume = self.memory.look(&claim.spec.volume_name, self.now);
                chosen.push(Candidate { claim, volume });
            }
        }
        Ok(chosen)
    }

    fn members(&self, group: &Meta, content: &VolumeGroupSnapshotContent) -> Vec<Member> {
        let infos = content.status.iter().flat_map(|status| &status.volume_snapshot_info_list);
        let member = |info: &VolumeSnapshotInfo| {
            let (snapshot_name, content_name) = names::group_member(&group.uid, &info.volume_handle);
            let snapshot = object::Key::namespaced(group.namespace.as_str(), snapshot_name.as_str());
            Member {
                snapshot: self.caches.snapshots.view(&snapshot),
                content: self.caches.contents.view(&object::Key::cluster(content_name.as_str())),
                info: info.clone(),
                snapshot_name,
                content_name,
            }
        };
        infos.map(member).collect()
    }
}
