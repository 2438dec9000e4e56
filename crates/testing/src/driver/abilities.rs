//! What the driver says it can do beyond volumes.

use stowage_csi::v1::controller_service_capability::rpc::Type;

/// Which calls are served besides those about volumes; a call that is not is refused as unimplemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Abilities {
    /// CreateSnapshot, DeleteSnapshot, and CreateVolume from a snapshot.
    pub snapshots: bool,
    /// ListSnapshots.
    pub list_snapshots: bool,
    /// CreateVolume from a volume.
    pub clones: bool,
    /// The GroupController service.
    pub group_snapshots: bool,
}

impl Abilities {
    /// All of them.
    pub const ALL: Self = Self { snapshots: true, list_snapshots: true, clones: true, group_snapshots: true };

    /// What ControllerGetCapabilities says.
    pub(super) fn types(self) -> Vec<Type> {
        let optional = [
            (self.snapshots, Type::CreateDeleteSnapshot),
            (self.list_snapshots, Type::ListSnapshots),
            (self.clones, Type::CloneVolume),
        ];
        let always = [Type::CreateDeleteVolume, Type::PublishUnpublishVolume];
        always.into_iter().chain(optional.into_iter().filter(|(can, _)| *can).map(|(_, kind)| kind)).collect()
    }
}
