//! One kind of volume: its name, its traits, and what can be done with it.
//!
//! A plugin decides nothing and remembers nothing. Whoever calls it has decided; what it needs to know is in the request,
//! on the disk or behind the [`VolumeHost`]. Each step can be repeated, and undone after any part of it.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use jiff::Timestamp;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_model::pod::FsGroupChangePolicy;
use stowage_model::volume_source::SourceKind;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::spec::VolumeSpec;
use crate::traits::Traits;

/// What a plugin claims as its own; no two plugins may claim the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// All sources of a kind.
    Source(SourceKind),
    /// FlexVolumes of one driver.
    Flex(String),
}

impl Claim {
    /// What a plugin must claim to have this volume.
    pub fn of(spec: &VolumeSpec) -> Self {
        match &spec.source {
            stowage_model::volume_source::VolumeSource::Flex(flex) => Self::Flex(flex.driver.clone()),
            source => Self::Source(source.kind()),
        }
    }
}

/// One kind of volume.
pub trait VolumePlugin: Send + Sync + 'static {
    /// As Kubernetes calls it, with exactly one slash: `kubernetes.io/csi`.
    fn name(&self) -> &str;

    /// The sources it has.
    fn claims(&self) -> Vec<Claim>;

    /// The name of the volume among those of this plugin, without the plugin's own.
    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault>;

    /// What can be done with the volume.
    fn traits(&self, spec: &VolumeSpec, host: &VolumeHost) -> Traits;

    /// Whether anything can be done with it on this node now; the sentence says what is missing.
    fn reachable(&self, _spec: &VolumeSpec, _host: &VolumeHost) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether it can be mounted on this node now. What it takes to be taken away again is [`VolumePlugin::reachable`].
    fn ready(&self, _spec: &VolumeSpec, _host: &VolumeHost) -> Result<(), Fault> {
        Ok(())
    }

    /// Sets the volume up for a pod; none for a plugin that only refuses.
    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        None
    }

    /// Takes the volume from a pod.
    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        None
    }

    /// Mounts the volume once for the node.
    fn device_mounter(&self) -> Option<&dyn DeviceMounter> {
        None
    }

    /// Maps the volume as a device.
    fn block_mapper(&self) -> Option<&dyn BlockMapper> {
        None
    }

    /// Has the node's part in its growth.
    fn expander(&self) -> Option<&dyn VolumeExpander> {
        None
    }

    /// Attaches it from the node itself, where no controller does.
    fn attacher(&self) -> Option<&dyn VolumeAttacher> {
        None
    }

    /// Knows how full it is.
    fn metrics(&self) -> Option<&dyn VolumeMetrics> {
        None
    }

    /// Tells from what is on the disk what a volume is.
    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        None
    }
}

/// Set a volume up for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct SetUp<'a> {
    /// The volume.
    pub spec: &'a VolumeSpec,
    /// The pod.
    pub pod: &'a NodePod,
    /// The name under which the node knows it.
    pub volume: &'a UniqueVolumeName,
    /// Where its device is, if attaching told.
    pub device_path: &'a str,
    /// The group that its files are given to.
    pub fs_group: Option<i64>,
    /// When they are.
    pub fs_group_change_policy: FsGroupChangePolicy,
    /// The user all containers run as.
    pub fs_user: Option<i64>,
    /// The label it is mounted with.
    pub se_linux_label: Option<&'a str>,
    /// It is mounted already, and set up again because what it is made of has changed.
    pub is_remount: bool,
    /// It was found at start: a final error does not prove that nothing is mounted.
    pub is_reconstructed: bool,
}

/// What is known once a volume is set up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IsSetUp {
    /// When it must be set up again even if nothing changes, as for a token that ends.
    pub again_at: Option<Timestamp>,
    /// Where the device is, of a volume that is mapped.
    pub device: Option<PathBuf>,
}

/// A pod's volume that is to go, told from the disk alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TearDown<'a> {
    /// The volume's own name, which names its directory.
    pub name: &'a str,
    /// The pod.
    pub pod_uid: &'a str,
}

/// Mount a volume once for the node, or stage its device.
#[derive(Debug, Clone, PartialEq)]
pub struct MountDevice<'a> {
    /// The volume.
    pub spec: &'a VolumeSpec,
    /// The pod that asks first.
    pub pod: &'a NodePod,
    /// Where its device is, if attaching told.
    pub device_path: &'a str,
    /// The group that its files are given to, for drivers that do so when staging.
    pub fs_group: Option<i64>,
    /// The label it is mounted with.
    pub se_linux_label: Option<&'a str>,
    /// It was found at start: a final error does not prove that nothing is mounted.
    pub is_reconstructed: bool,
}

/// A volume that is to leave the node, told from its name or from the disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnmountDevice<'a> {
    /// The name under which the node knows it.
    pub volume: &'a UniqueVolumeName,
    /// What it is; after a restart only as much as the disk says.
    pub spec: &'a VolumeSpec,
}

/// Sets volumes up for pods.
#[async_trait]
pub trait VolumeMounter: Send + Sync {
    /// Makes the volume appear in the pod's directory.
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault>;

    /// Where containers find it.
    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf;
}

/// Takes volumes from pods.
#[async_trait]
pub trait VolumeUnmounter: Send + Sync {
    /// Removes the volume from the pod's directory; what is gone already is success.
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault>;

    /// The paths that are mount points while the volume is there.
    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf>;
}

/// Mounts volumes once for the node.
#[async_trait]
pub trait DeviceMounter: Send + Sync {
    /// Mounts it where pods' mounts are made from.
    async fn mount_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault>;

    /// Removes that mount; what is gone already is success.
    async fn unmount_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault>;

    /// Where that mount is.
    fn device_mount_path(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<PathBuf, Fault>;
}

/// Maps volumes as devices.
#[async_trait]
pub trait BlockMapper: Send + Sync {
    /// Makes the device ready on the node.
    async fn set_up_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault>;

    /// Makes the device ready for a pod and says where it is.
    async fn map_pod_device(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<PathBuf, Fault>;

    /// Takes the device from a pod.
    async fn unmap_pod_device(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault>;

    /// Takes the device from the node.
    async fn tear_down_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault>;

    /// The directory that has one entry for each pod that uses the device.
    fn global_map_path(&self, host: &VolumeHost, name: &str) -> PathBuf;
}

/// A volume that is to grow on the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Expand<'a> {
    /// The volume.
    pub spec: &'a VolumeSpec,
    /// Where it is mounted for a pod, or the pod's device.
    pub volume_path: &'a Path,
    /// The size it must have, in bytes.
    pub new_size: u64,
}

/// How a volume grew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expanded {
    /// It has the size.
    Done,
    /// There is nothing to do on the node.
    NotSupported,
}

/// Grows volumes on the node.
#[async_trait]
pub trait VolumeExpander: Send + Sync {
    /// Grows device and file system to the size.
    async fn expand(&self, host: &VolumeHost, request: &Expand<'_>) -> Result<Expanded, Fault>;
}

/// Attaches volumes from the node itself.
#[async_trait]
pub trait VolumeAttacher: Send + Sync {
    /// Attaches the volume to this node and says where its device is.
    async fn attach(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<String, Fault>;

    /// Detaches it; what is detached already is success.
    async fn detach(&self, host: &VolumeHost, volume: &UniqueVolumeName) -> Result<(), Fault>;

    /// Whether it still is attached, as far as this node has heard.
    fn is_attached(&self, host: &VolumeHost, spec: &VolumeSpec) -> bool;
}

/// How full a volume is; what is not known is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VolumeStats {
    /// Bytes in all.
    pub capacity_bytes: Option<u64>,
    /// Bytes that can be had.
    pub available_bytes: Option<u64>,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Inodes in all.
    pub inodes: Option<u64>,
    /// Inodes that can be had.
    pub inodes_free: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
    /// Whether something is wrong with it, and what, where its driver says.
    pub condition: Option<Condition>,
}

/// What a driver says about the health of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Something is wrong.
    pub abnormal: bool,
    /// What.
    pub message: String,
}

/// Tells how full volumes are.
#[async_trait]
pub trait VolumeMetrics: Send + Sync {
    /// The figures of this moment.
    async fn stats(&self, host: &VolumeHost, spec: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault>;
}

/// A volume that was found on the disk at start.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconstructed {
    /// As much of it as the disk tells.
    pub spec: VolumeSpec,
    /// The name under which the node knows it.
    pub volume: UniqueVolumeName,
    /// Whether it has a mount or device of its own for the node.
    pub is_device_mountable: bool,
    /// The label it is mounted with.
    pub se_linux_label: Option<String>,
}

/// Something below a pod's directory that may be a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<'a> {
    /// The pod.
    pub pod_uid: &'a str,
    /// The directory's or link's name.
    pub name: &'a str,
    /// Whether it was found among the devices.
    pub is_block: bool,
}

/// Tells from what is on the disk what volumes are there.
#[async_trait]
pub trait Reconstructor: Send + Sync {
    /// What the volume in a pod's directory is.
    async fn reconstruct(&self, host: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault>;

    /// Volumes that are, or may be, mounted for the node whether a pod has them or not, with the directories that cannot
    /// be explained.
    async fn devices(&self, _host: &VolumeHost) -> Result<(Vec<Reconstructed>, Vec<PathBuf>), Fault> {
        Ok(Default::default())
    }

    /// The uids of pods that have, or may have, such a volume even if their directory does not say so.
    async fn users(&self, _host: &VolumeHost, _device: &Reconstructed) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }
}
