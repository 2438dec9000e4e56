//! What the driver says it can do beyond making volumes.

use stowage_csi::v1::controller_service_capability::rpc::Type;

/// Which calls are served besides those about volumes; a call that is not is refused as unimplemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// CreateSnapshot, DeleteSnapshot, and CreateVolume from a snapshot.
    pub snapshots: bool,
    /// ListSnapshots.
    pub list_snapshots: bool,
    /// CreateVolume from a volume.
    pub clones: bool,
    /// The GroupController service.
    pub group_snapshots: bool,
    /// ControllerExpandVolume.
    pub expansion: bool,
    /// ControllerModifyVolume.
    pub modification: bool,
    /// ListVolumes, with the nodes that each is published to.
    pub listing: bool,
    /// GetCapacity.
    pub capacity: bool,
}

/// It knows nothing of snapshots and clones, and tells neither what it has nor how much room there is.
impl Default for Abilities {
    fn default() -> Self {
        Self {
            snapshots: false,
            list_snapshots: false,
            clones: false,
            group_snapshots: false,
            listing: false,
            capacity: false,
            ..Self::ALL
        }
    }
}

impl Abilities {
    /// All of them.
    pub const ALL: Self = Self {
        snapshots: true,
        list_snapshots: true,
        clones: true,
        group_snapshots: true,
        expansion: true,
        modification: true,
        listing: true,
        capacity: true,
    };

    /// What ControllerGetCapabilities says.
    pub(super) fn types(self) -> Vec<Type> {
        let optional = [
            (self.snapshots, Type::CreateDeleteSnapshot),
            (self.list_snapshots, Type::ListSnapshots),
            (self.clones, Type::CloneVolume),
            (self.expansion, Type::ExpandVolume),
            (self.modification, Type::ModifyVolume),
            (self.listing, Type::ListVolumes),
            (self.listing, Type::ListVolumesPublishedNodes),
            (self.capacity, Type::GetCapacity),
        ];
        let always = [Type::CreateDeleteVolume, Type::PublishUnpublishVolume];
        always.into_iter().chain(optional.into_iter().filter(|(can, _)| *can).map(|(_, kind)| kind)).collect()
    }
}
