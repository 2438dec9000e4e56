//! Where a volume comes from: every source that a pod or a PersistentVolume can name, in full.
//!
//! Only nodes keep these; controllers that look at all pods or volumes of a cluster keep their trimmed projections.

mod files;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::pod::CsiInline;
use crate::quantity::Quantity;
use crate::volume::{CsiSource, SecretRef};

pub use files::{
    ClusterTrustBundleProjection, ConfigMapSource, DownwardApiFile, DownwardApiSource, FieldRef, KeyToPath,
    PodCertificateProjection, ProjectedSource, ProjectionSource, ResourceFieldRef, SecretProjection, SecretSource,
    ServiceAccountTokenProjection,
};

projection! {
    /// A directory, or a file system in memory, that lives as long as its pod.
    pub struct EmptyDirSource {
        /// Empty for the node's disk, `Memory`, `HugePages` or `HugePages-<size>`.
        pub medium: String,
        /// The most it may hold.
        pub size_limit: Option<Quantity>,
        /// Permissions of the directory.
        pub mode: Option<u32>,
    }

    /// A path of the node.
    pub struct HostPathSource {
        /// The path.
        pub path: String,
        /// What must be there, or is made.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// A directory or device of one node, as a PersistentVolume.
    pub struct LocalSource {
        /// The path.
        pub path: String,
        /// The file system a device is formatted with.
        pub fs_type: String,
    }

    /// A directory that another machine exports.
    pub struct NfsSource {
        /// The machine.
        pub server: String,
        /// The directory there.
        pub path: String,
        /// Whether it may only be read.
        pub read_only: bool,
    }

    /// What an OCI image holds.
    pub struct ImageSource {
        /// The image.
        pub reference: String,
        /// When it is pulled.
        pub pull_policy: String,
    }

    /// A volume of a FlexVolume driver.
    pub struct FlexSource {
        /// The driver, as in `vendor/driver`.
        pub driver: String,
        /// The file system, empty for the driver's default.
        pub fs_type: String,
        /// Secret for the driver; in a pod only the name is set.
        pub secret_ref: Option<SecretRef>,
        /// Whether it may only be read.
        pub read_only: bool,
        /// What the driver is told.
        pub options: BTreeMap<String, String>,
    }
}

/// Where a volume comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeSource {
    /// `csi` of a PersistentVolume.
    Csi(CsiSource),
    /// `csi` of a pod: a CSI volume that lives as long as the pod.
    CsiInline(CsiInline),
    /// `emptyDir`
    EmptyDir(EmptyDirSource),
    /// `configMap`
    ConfigMap(ConfigMapSource),
    /// `secret`
    Secret(SecretSource),
    /// `downwardAPI`
    DownwardApi(DownwardApiSource),
    /// `projected`
    Projected(ProjectedSource),
    /// `hostPath`
    HostPath(HostPathSource),
    /// `local`
    Local(LocalSource),
    /// `nfs`
    Nfs(NfsSource),
    /// `image`
    Image(ImageSource),
    /// `flexVolume`
    Flex(FlexSource),
    /// `iscsi`
    Iscsi,
    /// `fc`
    Fc,
    /// `gitRepo`
    GitRepo,
    /// A source whose work a CSI driver has taken over, or that Kubernetes has dropped, as it was written.
    InTree {
        /// The field that names it, as in `awsElasticBlockStore`.
        member: String,
        /// What it says.
        value: Value,
    },
}

/// The kinds of [`VolumeSource`], to find a plugin by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    Csi,
    CsiInline,
    EmptyDir,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    HostPath,
    Local,
    Nfs,
    Image,
    Flex,
    Iscsi,
    Fc,
    GitRepo,
    InTree,
}

impl VolumeSource {
    /// The source of a pod's volume, by the field that names it.
    pub fn of_pod(member: &str, value: Value) -> Result<Self, serde_json::Error> {
        match member {
            "csi" => Ok(Self::CsiInline(read(value)?)),
            "emptyDir" => Ok(Self::EmptyDir(read(value)?)),
            "configMap" => Ok(Self::ConfigMap(read(value)?)),
            "secret" => Ok(Self::Secret(read(value)?)),
            "downwardAPI" => Ok(Self::DownwardApi(read(value)?)),
            "projected" => Ok(Self::Projected(read(value)?)),
            "image" => Ok(Self::Image(read(value)?)),
            "gitRepo" => Ok(Self::GitRepo),
            _ => Self::of_either(member, value),
        }
    }

    /// The source of a PersistentVolume, by the field that names it.
    pub fn of_volume(member: &str, value: Value) -> Result<Self, serde_json::Error> {
        match member {
            "csi" => Ok(Self::Csi(read(value)?)),
            "local" => Ok(Self::Local(read(value)?)),
            _ => Self::of_either(member, value),
        }
    }

    fn of_either(member: &str, value: Value) -> Result<Self, serde_json::Error> {
        Ok(match member {
            "hostPath" => Self::HostPath(read(value)?),
            "nfs" => Self::Nfs(read(value)?),
            "flexVolume" => Self::Flex(read(value)?),
            "iscsi" => Self::Iscsi,
            "fc" => Self::Fc,
            _ => Self::InTree { member: member.to_owned(), value },
        })
    }

    /// What kind of source it is.
    pub fn kind(&self) -> SourceKind {
        match self {
            Self::Csi(_) => SourceKind::Csi,
            Self::CsiInline(_) => SourceKind::CsiInline,
            Self::EmptyDir(_) => SourceKind::EmptyDir,
            Self::ConfigMap(_) => SourceKind::ConfigMap,
            Self::Secret(_) => SourceKind::Secret,
            Self::DownwardApi(_) => SourceKind::DownwardApi,
            Self::Projected(_) => SourceKind::Projected,
            Self::HostPath(_) => SourceKind::HostPath,
            Self::Local(_) => SourceKind::Local,
            Self::Nfs(_) => SourceKind::Nfs,
            Self::Image(_) => SourceKind::Image,
            Self::Flex(_) => SourceKind::Flex,
            Self::Iscsi => SourceKind::Iscsi,
            Self::Fc => SourceKind::Fc,
            Self::GitRepo => SourceKind::GitRepo,
            Self::InTree { .. } => SourceKind::InTree,
        }
    }

    /// The field that names it.
    pub fn member(&self) -> &str {
        match self {
            Self::Csi(_) | Self::CsiInline(_) => "csi",
            Self::EmptyDir(_) => "emptyDir",
            Self::ConfigMap(_) => "configMap",
            Self::Secret(_) => "secret",
            Self::DownwardApi(_) => "downwardAPI",
            Self::Projected(_) => "projected",
            Self::HostPath(_) => "hostPath",
            Self::Local(_) => "local",
            Self::Nfs(_) => "nfs",
            Self::Image(_) => "image",
            Self::Flex(_) => "flexVolume",
            Self::Iscsi => "iscsi",
            Self::Fc => "fc",
            Self::GitRepo => "gitRepo",
            Self::InTree { member, .. } => member,
        }
    }

    /// Whether the source itself says that it may only be read.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::CsiInline(source) => source.read_only,
            Self::Nfs(source) => source.read_only,
            Self::Flex(source) => source.read_only,
            Self::ConfigMap(_) | Self::Secret(_) | Self::DownwardApi(_) | Self::Projected(_) | Self::Image(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for VolumeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csi(source) => write!(f, "csi {}^{}", source.driver, source.volume_handle),
            Self::CsiInline(source) => write!(f, "csi {} (inline)", source.driver),
            Self::HostPath(source) => write!(f, "hostPath {}", source.path),
            Self::Local(source) => write!(f, "local {}", source.path),
            Self::Nfs(source) => write!(f, "nfs {}:{}", source.server, source.path),
            Self::Image(source) => write!(f, "image {}", source.reference),
            Self::Flex(source) => write!(f, "flexVolume {}", source.driver),
            other => f.write_str(other.member()),
        }
    }
}

fn read<T: for<'de> Deserialize<'de> + Default>(value: Value) -> Result<T, serde_json::Error> {
    if value.is_null() { Ok(T::default()) } else { T::deserialize(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_source_is_read_by_the_field_that_names_it() {
        let source = VolumeSource::of_pod("emptyDir", json!({ "medium": "Memory", "sizeLimit": "1Gi" })).unwrap();
        assert_eq!(source.kind(), SourceKind::EmptyDir);
        let VolumeSource::EmptyDir(source) = source else { panic!("an emptyDir") };
        assert_eq!((source.medium.as_str(), source.size_limit), ("Memory", Some("1Gi".parse().unwrap())));
        assert_eq!(VolumeSource::of_pod("emptyDir", Value::Null).unwrap().kind(), SourceKind::EmptyDir);
    }

    #[test]
    fn csi_means_one_thing_in_a_pod_and_another_in_a_volume() {
        let value = json!({ "driver": "d", "volumeHandle": "h" });
        assert_eq!(VolumeSource::of_pod("csi", value.clone()).unwrap().kind(), SourceKind::CsiInline);
        let source = VolumeSource::of_volume("csi", value).unwrap();
        assert_eq!((source.kind(), source.to_string().as_str()), (SourceKind::Csi, "csi d^h"));
    }

    #[test]
    fn a_source_of_an_in_tree_plugin_is_kept_as_it_was_written() {
        let value = json!({ "volumeID": "v" });
        let source = VolumeSource::of_volume("cinder", value.clone()).unwrap();
        assert_eq!(source, VolumeSource::InTree { member: "cinder".into(), value });
    }

    #[test]
    fn what_is_made_of_files_may_only_be_read() {
        let read_only = |member, value| VolumeSource::of_pod(member, value).unwrap().is_read_only();
        assert!(read_only("configMap", json!({ "name": "c" })));
        assert!(read_only("csi", json!({ "driver": "d", "readOnly": true })));
        assert!(!read_only("emptyDir", json!({})));
    }
}
