//! A content of either sort, as decisions see it.

use stowage_model::annotations::SNAPSHOT_GROUP_HANDLE;
use stowage_model::object::{Meta, ObjectRef, Projection};
use stowage_model::volume_snapshot::{DeletionPolicy, SnapshotError, SnapshotRef};
use stowage_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

use crate::sort::{Sort, Words};

#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    pub sort: Sort,
    pub about: ObjectRef,
    pub meta: Meta,
    pub driver: String,
    pub policy: DeletionPolicy,
    /// The user's object.
    pub user: SnapshotRef,
    pub class: Option<String>,
    pub source: Source,
    /// `None` until somebody has written one: then no call has ever ended for it, as far as the API knows.
    pub status: Option<Status>,
    /// Part of a group, made and deleted with it.
    pub is_member: bool,
}

/// Where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Made of these volumes; one, but for a group.
    Volumes(Vec<String>),
    /// In the driver already; the members of a group beside it.
    Existing { handle: String, members: Vec<String> },
    /// Neither or both.
    Unclear,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    pub handle: Option<String>,
    pub is_ready: bool,
    pub error: Option<String>,
    pub has_creation_time: bool,
    pub has_size: bool,
    /// Of the group that a snapshot was made with.
    pub group: Option<String>,
    /// The snapshots of a group.
    pub members: Vec<String>,
}

impl From<&VolumeSnapshotContent> for Content {
    fn from(content: &VolumeSnapshotContent) -> Self {
        let spec = &content.spec;
        let source = match (filled(&spec.source.volume_handle), filled(&spec.source.snapshot_handle)) {
            (Some(volume), None) => Source::Volumes(vec![volume]),
            (None, Some(handle)) => Source::Existing { handle, members: Vec::new() },
            _ => Source::Unclear,
        };
        let status = content.status.as_ref().map(|status| Status {
            handle: filled(&status.snapshot_handle),
            is_ready: status.ready_to_use.unwrap_or_default(),
            error: message(status.error.as_ref()),
            has_creation_time: status.creation_time.is_some(),
            has_size: status.restore_size.is_some(),
            group: filled(&status.volume_group_snapshot_handle),
            members: Vec::new(),
        });
        let in_group = status.as_ref().is_some_and(|status| status.group.is_some());
        Self {
            sort: Sort::Snapshot,
            about: content.reference(),
            driver: spec.driver.clone(),
            policy: spec.deletion_policy,
            user: spec.volume_snapshot_ref.clone(),
            class: filled(&spec.volume_snapshot_class_name),
            source,
            is_member: in_group || content.meta.annotation(SNAPSHOT_GROUP_HANDLE).is_some(),
            status,
            meta: content.meta.clone(),
        }
    }
}

impl From<&VolumeGroupSnapshotContent> for Content {
    fn from(content: &VolumeGroupSnapshotContent) -> Self {
        let spec = &content.spec;
        let source = match (&spec.source.volume_handles[..], &spec.source.group_snapshot_handles) {
            (volumes @ [_, ..], None) => Source::Volumes(volumes.to_vec()),
            ([], Some(handles)) => Source::Existing {
                handle: handles.volume_group_snapshot_handle.clone(),
                members: handles.volume_snapshot_handles.clone(),
            },
            _ => Source::Unclear,
        };
        let status = content.status.as_ref().map(|status| Status {
            handle: filled(&status.volume_group_snapshot_handle),
            is_ready: status.ready_to_use.unwrap_or_default(),
            error: message(status.error.as_ref()),
            has_creation_time: status.creation_time.is_some(),
            has_size: false,
            group: None,
            members: status.volume_snapshot_info_list.iter().map(|info| info.snapshot_handle.clone()).collect(),
        });
        Self {
            sort: Sort::Group,
            about: content.reference(),
            driver: spec.driver.clone(),
            policy: spec.deletion_policy,
            user: spec.volume_group_snapshot_ref.clone(),
            class: filled(&spec.volume_group_snapshot_class_name),
            source,
            status,
            is_member: false,
            meta: content.meta.clone(),
        }
    }
}

fn filled(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

fn message(error: Option<&SnapshotError>) -> Option<String> {
    error.map(|error| error.message.clone().unwrap_or_default())
}

impl Content {
    pub fn words(&self) -> &'static Words {
        self.sort.words()
    }

    /// The driver's id, as it is recorded.
    pub fn handle(&self) -> Option<&str> {
        self.status.as_ref()?.handle.as_deref()
    }

    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.is_ready)
    }

    pub fn error(&self) -> Option<&str> {
        self.status.as_ref()?.error.as_deref()
    }

    pub fn is_protected(&self) -> bool {
        self.meta.has_finalizer(self.words().finalizer)
    }

    /// Whether it says that a snapshot may be on its way.
    pub fn is_marked(&self) -> bool {
        self.meta.annotation(self.words().being_created).is_some()
    }

    /// Whether it is to go. One that is deleted by hand while its user's object lives is not: the snapshot is still wanted.
    pub fn is_going(&self) -> bool {
        let unbound = matches!(self.source, Source::Existing { .. }) && self.user.uid.is_empty();
        self.meta.is_deleting() && (unbound || self.meta.annotation(self.words().being_deleted).is_some())
    }

    /// Whether a call that was decided on for `self` is still right for what was just read.
    pub fn still_asks_for_the_same(&self, fresh: &Self) -> bool {
        self.meta.uid == fresh.meta.uid
            && self.is_going() == fresh.is_going()
            && self.is_protected() == fresh.is_protected()
            && self.handle() == fresh.handle()
            && self.policy == fresh.policy
            && (fresh.is_marked() || !self.is_marked())
    }
}
