//! Finalizers: who must agree before an object goes.

use crate::names;

/// On a claim: no scheduled pod uses it.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// On a volume: it is not bound.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// On a VolumeAttributesClass: nobody refers to it.
pub const ATTRIBUTES_CLASS_PROTECTION: &str = "kubernetes.io/vac-protection";
/// On an in-tree volume with policy Delete: the in-tree deleter is done.
pub const IN_TREE_DELETER: &str = "kubernetes.io/pv-controller";
/// On a volume with policy Delete: the external provisioner has deleted its data.
pub const PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On a claim: no clone of it is being made.
pub const CLONING_PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// On a VolumeSnapshot: no volume is being made from it; the provisioner's own.
pub const SNAPSHOT_SOURCE_OF_PROVISIONER: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a claim: no snapshot of it is being made.
pub const CLAIM_AS_SNAPSHOT_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// On a VolumeSnapshot: no volume is being made from it.
pub const SNAPSHOT_AS_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a VolumeSnapshot: its content is gone, or stays without it.
pub const SNAPSHOT_BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// On a VolumeSnapshot: the group it was made with is gone.
pub const SNAPSHOT_IN_GROUP: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// On a VolumeSnapshotContent: the snapshotter is done with it.
pub const SNAPSHOT_CONTENT_BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// On a VolumeGroupSnapshot: its content is gone, or stays without it.
pub const GROUP_SNAPSHOT_BOUND: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
/// On a VolumeGroupSnapshotContent: the snapshotter is done with it.
pub const GROUP_SNAPSHOT_CONTENT_BOUND: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

/// On a VolumeAttachment and its volume: this driver's attacher has detached it.
pub fn attacher(driver: &str) -> String {
    format!("external-attacher/{}", names::sanitised(driver))
}
