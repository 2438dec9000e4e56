//! The sources of in-tree plugins whose work CSI drivers have taken over, as volumes and pods write them.

projection! {
    /// A disk of Amazon's Elastic Block Store.
    pub struct AwsElasticBlockStore {
        /// `aws://ZONE/vol-ID`, `aws:///vol-ID` or the bare id.
        #[serde(rename = "volumeID")]
        pub volume_id: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// The partition to mount, 0 for the whole disk.
        pub partition: i32,
        /// Whether it may only be read.
        pub read_only: bool,
    }

    /// A persistent disk of Google Compute Engine.
    pub struct GcePersistentDisk {
        /// The disk's name.
        pub pd_name: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// The partition to mount, 0 for the whole disk.
        pub partition: i32,
        /// Whether it may only be read.
        pub read_only: bool,
    }

    /// A data disk of Azure.
    pub struct AzureDisk {
        /// Where the disk is.
        #[serde(rename = "diskURI")]
        pub disk_uri: String,
        /// `None`, `ReadOnly` or `ReadWrite`.
        pub caching_mode: Option<String>,
        /// The file system.
        pub fs_type: Option<String>,
        /// Whether it may only be read.
        pub read_only: Option<bool>,
        /// `Shared`, `Dedicated` or `Managed`.
        pub kind: Option<String>,
    }

    /// A file share of Azure.
    pub struct AzureFile {
        /// The secret that holds the account's name and key.
        pub secret_name: String,
        /// Where the secret is; only volumes have it.
        pub secret_namespace: Option<String>,
        /// The share's name.
        pub share_name: String,
        /// Whether it may only be read.
        pub read_only: bool,
    }

    /// A volume of OpenStack.
    pub struct Cinder {
        /// The volume's id.
        #[serde(rename = "volumeID")]
        pub volume_id: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// Whether it may only be read.
        pub read_only: bool,
    }

    /// A disk of vSphere.
    pub struct VsphereVolume {
        /// Path of its file.
        pub volume_path: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// The storage policy's name, if it has one.
        pub storage_policy_name: String,
    }

    /// A volume of Portworx.
    pub struct PortworxVolume {
        /// The volume's id.
        #[serde(rename = "volumeID")]
        pub volume_id: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// Whether it may only be read.
        pub read_only: bool,
    }
}

/// A source whose plugin's work a CSI driver has taken over.
#[derive(Debug, Clone, PartialEq)]
pub enum InTree {
    /// `awsElasticBlockStore`
    AwsElasticBlockStore(AwsElasticBlockStore),
    /// `gcePersistentDisk`
    GcePersistentDisk(GcePersistentDisk),
    /// `azureDisk`
    AzureDisk(AzureDisk),
    /// `azureFile`
    AzureFile(AzureFile),
    /// `cinder`
    Cinder(Cinder),
    /// `vsphereVolume`
    VsphereVolume(VsphereVolume),
    /// `portworxVolume`
    PortworxVolume(PortworxVolume),
}

impl InTree {
    /// The member of a spec that names it.
    pub fn member(&self) -> &'static str {
        match self {
            Self::AwsElasticBlockStore(_) => "awsElasticBlockStore",
            Self::GcePersistentDisk(_) => "gcePersistentDisk",
            Self::AzureDisk(_) => "azureDisk",
            Self::AzureFile(_) => "azureFile",
            Self::Cinder(_) => "cinder",
            Self::VsphereVolume(_) => "vsphereVolume",
            Self::PortworxVolume(_) => "portworxVolume",
        }
    }
}

/// The first of the sources that is set, in the order of a spec's members.
macro_rules! in_tree {
    ($wire:expr) => {{
        use $crate::migration::source::InTree;
        let wire = $wire;
        let first = wire.aws.take().map(InTree::AwsElasticBlockStore);
        let first = first.or_else(|| wire.gce.take().map(InTree::GcePersistentDisk));
        let first = first.or_else(|| wire.azure_disk.take().map(InTree::AzureDisk));
        let first = first.or_else(|| wire.azure_file.take().map(InTree::AzureFile));
        let first = first.or_else(|| wire.vsphere.take().map(InTree::VsphereVolume));
        let first = first.or_else(|| wire.cinder.take().map(InTree::Cinder));
        first.or_else(|| wire.portworx.take().map(InTree::PortworxVolume)).map(Box::new)
    }};
}

pub(crate) use in_tree;
