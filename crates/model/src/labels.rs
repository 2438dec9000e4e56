//! Label keys.

/// On a node: its name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// On a node or volume: its zone; a volume's value may hold several, joined by `__`.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// On a node or volume: its region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The legacy form of [`ZONE`].
pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// The legacy form of [`REGION`].
pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// On a CSIStorageCapacity: the driver; set by the provisioner.
pub const CAPACITY_DRIVER: &str = "csi.storage.k8s.io/drivername";
/// On a CSIStorageCapacity: the provisioner instance that owns it.
pub const CAPACITY_MANAGER: &str = "csi.storage.k8s.io/managed-by";
/// On a VolumeSnapshotContent of a driver whose nodes make their snapshots: the node; set by the snapshot-controller.
pub const SNAPSHOT_MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
