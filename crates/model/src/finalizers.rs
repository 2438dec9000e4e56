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

/// On a VolumeAttachment and its volume: this driver's attacher has detached it.
pub fn attacher(driver: &str) -> String {
    format!("external-attacher/{}", names::sanitised(driver))
}
