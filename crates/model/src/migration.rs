//! In-tree plugins whose work CSI drivers have taken over: their names, and their volumes as those drivers know them.

use crate::volume::Volume;

pub mod source;
pub mod topology;

mod class;
mod in_tree;
mod translate;

pub use class::{Error as ClassError, class_to_csi};
pub use in_tree::{Error as InTreeError, to_in_tree};
pub use translate::{Error, inline_to_csi, repair_handle, to_csi};

/// The prefix of every in-tree plugin's name.
pub const IN_TREE: &str = "kubernetes.io/";

/// The in-tree plugin for paths of a node.
pub const HOST_PATH: &str = "kubernetes.io/host-path";

/// Plugin of volumes that another machine exports.
pub const NFS: &str = "kubernetes.io/nfs";

/// Plugin, the driver that stands in for it, and the member of a volume's spec that names its source.
const MIGRATED: [(&str, &str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "awsElasticBlockStore"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "gcePersistentDisk"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com", "azureDisk"),
    ("kubernetes.io/azure-file", "file.csi.azure.com", "azureFile"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org", "cinder"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", "vsphereVolume"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com", "portworxVolume"),
];

/// The driver that took over from the plugin, if one did.
pub fn driver_of(plugin: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(known, _, _)| *known == plugin).map(|(_, driver, _)| *driver)
}

/// The plugin that the driver took over from, if it did.
pub fn plugin_of(driver: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(_, known, _)| *known == driver).map(|(plugin, _, _)| *plugin)
}

/// The driver that took over the source which this member of a spec names, if one did.
pub fn driver_of_member(member: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(_, _, known)| *known == member).map(|(_, driver, _)| *driver)
}

/// The driver that took over the volume's in-tree source, if one did.
pub fn driver_of_source(volume: &Volume) -> Option<&'static str> {
    driver_of_member(volume.spec.other_source?)
}

/// The in-tree plugin that handles the volume's source, migrated or not; none for CSI and for sources without plugin.
pub fn plugin_of_source(volume: &Volume) -> Option<&'static str> {
    match volume.spec.other_source? {
        "hostPath" => Some(HOST_PATH),
        "nfs" => Some(NFS),
        "fc" => Some("kubernetes.io/fc"),
        "iscsi" => Some("kubernetes.io/iscsi"),
        "local" => Some("kubernetes.io/local-volume"),
        source => MIGRATED.iter().find(|(_, _, member)| *member == source).map(|(plugin, _, _)| *plugin),
    }
}

#[cfg(test)]
mod tests;
