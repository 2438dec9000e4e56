//! The two sorts of contents, and the words by which they differ.

use stowage_model::{annotations, finalizers};

/// Whether a content stands for one snapshot or for a group of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sort {
    Snapshot,
    Group,
}

/// What the original calls things that are the same for both.
#[derive(Debug)]
pub struct Words {
    pub finalizer: &'static str,
    /// Annotation: the create call may be under way or done, nobody knows.
    pub being_created: &'static str,
    /// Annotation: the user's object is going, so that the content may go.
    pub being_deleted: &'static str,
    /// Annotations: the secret of the calls.
    pub secret_name: &'static str,
    pub secret_namespace: &'static str,
    /// Parameters: the secret of looking at what exists already.
    pub look_secret: (&'static str, &'static str),
    /// The only token in those parameters.
    pub content_token: &'static str,
    /// The same for people.
    pub content_token_shown: &'static str,
    /// Event reasons.
    pub creation_failed: &'static str,
    pub check_failed: &'static str,
    pub delete_failed: &'static str,
    /// Kinds, for people.
    pub class: &'static str,
    pub user: &'static str,
}

const SNAPSHOT: Words = Words {
    finalizer: finalizers::SNAPSHOT_CONTENT_BOUND,
    being_created: annotations::SNAPSHOT_BEING_CREATED,
    being_deleted: annotations::SNAPSHOT_BEING_DELETED,
    secret_name: annotations::SNAPSHOT_SECRET_NAME,
    secret_namespace: annotations::SNAPSHOT_SECRET_NAMESPACE,
    look_secret: (
        "csi.storage.k8s.io/snapshotter-list-secret-name",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace",
    ),
    content_token: "volumesnapshotcontent.name",
    content_token_shown: "${volumesnapshotcontent.name}",
    creation_failed: "SnapshotCreationFailed",
    check_failed: "SnapshotContentCheckandUpdateFailed",
    delete_failed: "SnapshotDeleteError",
    class: "VolumeSnapshotClass",
    user: "VolumeSnapshot",
};

const GROUP: Words = Words {
    finalizer: finalizers::GROUP_SNAPSHOT_CONTENT_BOUND,
    being_created: annotations::GROUP_SNAPSHOT_BEING_CREATED,
    being_deleted: annotations::GROUP_SNAPSHOT_BEING_DELETED,
    secret_name: annotations::GROUP_SNAPSHOT_SECRET_NAME,
    secret_namespace: annotations::GROUP_SNAPSHOT_SECRET_NAMESPACE,
    look_secret: (
        "csi.storage.k8s.io/group-snapshotter-get-secret-name",
        "csi.storage.k8s.io/group-snapshotter-get-secret-namespace",
    ),
    content_token: "volumegroupsnapshotcontent.name",
    content_token_shown: "${volumegroupsnapshotcontent.name}",
    creation_failed: "GroupSnapshotCreationFailed",
    check_failed: "GroupSnapshotContentCheckandUpdateFailed",
    delete_failed: "GroupSnapshotDeleteError",
    class: "VolumeGroupSnapshotClass",
    user: "VolumeGroupSnapshot",
};

impl Sort {
    pub fn words(self) -> &'static Words {
        match self {
            Self::Snapshot => &SNAPSHOT,
            Self::Group => &GROUP,
        }
    }
}
