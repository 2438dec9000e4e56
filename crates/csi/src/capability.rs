//! How a volume is used, in CSI's words.

use crate::v1::VolumeCapability;
use crate::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

impl VolumeCapability {
    /// A volume in an access mode, by its number: mounted, or a device where there is no mount.
    pub fn new(mode: i32, mount: Option<MountVolume>) -> Self {
        let access_type = mount.map_or(AccessType::Block(BlockVolume {}), AccessType::Mount);
        Self { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
    }
}
