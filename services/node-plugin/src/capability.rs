use stowage_csi::v1::VolumeCapability;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing; say how the volume will be used")]
    Missing { field: &'static str },
    #[error("block volumes are not supported; ask for volume mode Filesystem")]
    Block,
    #[error(
        "access mode {mode} is not supported: an image is used by one node at a time; use ReadWriteOnce or ReadWriteOncePod"
    )]
    MultiNode { mode: &'static str },
    #[error("access_mode.mode {value} is unknown; use SINGLE_NODE_WRITER")]
    UnknownMode { value: i32 },
    #[error("volume_mount_group {value:?} is not supported; leave it to the kubelet's fsGroup")]
    MountGroup { value: String },
}

/// A volume capability this driver can honour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    pub mode: Mode,
    pub mount: MountVolume,
}

impl Capability {
    pub fn read(capability: Option<&VolumeCapability>) -> Result<Self, Error> {
        let capability = capability.ok_or(Error::Missing { field: "volume_capability" })?;
        let value = capability.access_mode.ok_or(Error::Missing { field: "volume_capability.access_mode" })?.mode;
        let mode = match Mode::try_from(value) {
            Ok(Mode::Unknown) | Err(_) => return Err(Error::UnknownMode { value }),
            Ok(mode @ (Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter)) => {
                return Err(Error::MultiNode { mode: mode.as_str_name() });
            }
            Ok(mode) => mode,
        };
        let mount = match &capability.access_type {
            None => return Err(Error::Missing { field: "volume_capability.access_type" }),
            Some(AccessType::Block(_)) => return Err(Error::Block),
            Some(AccessType::Mount(mount)) => mount.clone(),
        };
        match mount.volume_mount_group.is_empty() {
            true => Ok(Capability { mode, mount }),
            false => Err(Error::MountGroup { value: mount.volume_mount_group }),
        }
    }

    pub fn read_all(capabilities: &[VolumeCapability]) -> Result<Vec<Self>, Error> {
        match capabilities {
            [] => Err(Error::Missing { field: "volume_capabilities" }),
            all => all.iter().map(|capability| Self::read(Some(capability))).collect(),
        }
    }

    pub fn reads_only(&self) -> bool {
        self.mode == Mode::SingleNodeReaderOnly
    }
}
