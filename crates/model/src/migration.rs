//! In-tree plugins whose work CSI drivers have taken over.

use crate::volume::Volume;

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

/// The driver that took over the volume's in-tree source, if one did.
pub fn driver_of_source(volume: &Volume) -> Option<&'static str> {
    let source = volume.spec.other_source?;
    MIGRATED.iter().find(|(_, _, member)| *member == source).map(|(_, driver, _)| *driver)
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
mod tests {
    use super::*;

    #[test]
    fn a_migrated_plugin_has_a_driver_and_others_have_none() {
        assert_eq!(driver_of("kubernetes.io/aws-ebs"), Some("ebs.csi.aws.com"));
        assert_eq!(driver_of(HOST_PATH), None);
        assert_eq!(driver_of("ebs.csi.aws.com"), None);
    }

    #[test]
    fn a_volumes_source_names_plugin_and_driver() {
        let read = |text| serde_json::from_str::<Volume>(text).unwrap();
        let cinder = read(r#"{"spec":{"cinder":{"volumeID":"x"}}}"#);
        assert_eq!(driver_of_source(&cinder), Some("cinder.csi.openstack.org"));
        assert_eq!(plugin_of_source(&cinder), Some("kubernetes.io/cinder"));
        let path = read(r#"{"spec":{"hostPath":{"path":"/x"}}}"#);
        assert_eq!(driver_of_source(&path), None);
        assert_eq!(plugin_of_source(&path), Some(HOST_PATH));
        let csi = read(r#"{"spec":{"csi":{"driver":"d","volumeHandle":"h"}}}"#);
        assert_eq!((driver_of_source(&csi), plugin_of_source(&csi)), (None, None));
    }
}
