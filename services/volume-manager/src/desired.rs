//! What pods want: which volume, and how it is to be mounted for them.

use std::collections::BTreeMap;
use std::fmt;

use stowage_model::access_mode::AccessModes;
use stowage_model::names::{self, UniqueVolumeName, VolumeHandle};
use stowage_model::object::Key;

/// A CSI volume as a node knows it; one operation at a time runs on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId {
    pub driver: String,
    pub handle: VolumeHandle,
}

impl VolumeId {
    pub fn new(driver: impl Into<String>, handle: impl Into<VolumeHandle>) -> Self {
        Self { driver: driver.into(), handle: handle.into() }
    }

    /// The name in `volumesAttached` and `volumesInUse`.
    pub fn unique_name(&self) -> UniqueVolumeName {
        UniqueVolumeName::csi(&self.driver, &self.handle)
    }

    /// The name of its attachment to a node.
    pub fn attachment(&self, node: &str) -> String {
        names::attachment(self.handle.as_str(), &self.driver, node)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}^{}", self.driver, self.handle)
    }
}

/// One pod's use of one volume, as its claim and volume described it when they were read.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    pub volume: VolumeId,
    /// The PersistentVolume's name, which names the directory inside the pod's.
    pub spec_name: String,
    /// The volume's name in the pod; a second name for the same volume shares the mount.
    pub pod_volume: String,
    pub fs_type: String,
    pub mount_options: Vec<String>,
    pub attributes: BTreeMap<String, String>,
    pub access_modes: AccessModes,
    pub read_only: bool,
    pub fs_group: Option<i64>,
    pub stage_secret: Option<Key>,
    pub publish_secret: Option<Key>,
}

/// What a pod's volumes turned out to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resolution {
    pub uses: BTreeMap<VolumeId, Use>,
    /// Why the other volumes cannot be mounted, one sentence each.
    pub problems: Vec<String>,
}

impl Resolution {
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }
}
