//! Annotation keys. Who writes each and who reads it is said beside it.

/// On a claim: the controller finished binding it (only presence counts).
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or volume: the controller, not the user, chose the other half (only presence counts).
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a volume: the provisioner that made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a claim or volume: the CSI driver that took over from an in-tree plugin; set by the pv-controller.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a claim: who is asked to make its volume; set by the pv-controller.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// On a claim: the legacy form of [`STORAGE_PROVISIONER`], always written with it.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim: the node of its first consumer; set by the scheduler, removed by the provisioner to ask again.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: the alpha form of [`SELECTED_NODE`], only ever read.
pub const ALPHA_SELECTED_NODE: &str = "volume.alpha.kubernetes.io/selected-node";
/// On a claim or volume: the class, winning over the field even when empty; set by users of old.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a volume: the claim's capacity before a resize in progress; set by the resizer.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// On a claim: the resizer that owns it.
pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// On a claim: nodes need not grow the file system; set by the resizer.
pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// On a class: it is the default if the value is exactly `true`.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// On a class: the legacy form of [`DEFAULT_CLASS`], with equal weight.
pub const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// On a CSINode: in-tree plugins handled by CSI, comma-separated; set by the node.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// On a volume: informational, set by the hostPath provisioner.
pub const CREATED_BY: &str = "kubernetes.io/createdby";
/// On a node: the attach-detach controller looks after it (only presence counts); set by the node.
pub const CONTROLLER_MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// On a node: a JSON object from driver name to the driver's id of the node; set by the node.
pub const CSI_NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// On a volume: a group that pods using it get.
pub const VOLUME_GID: &str = "pv.beta.kubernetes.io/gid";
/// On a volume: mount options of in-tree plugins, winning over the field.
pub const BETA_MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// On a volume: name of the secret DeleteVolume needs; set by the provisioner, empty if none.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// On a volume: namespace of the secret DeleteVolume needs; set by the provisioner, empty if none.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// On a volume: name of the secret ControllerModifyVolume needs; set by the provisioner.
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// On a volume: namespace of the secret ControllerModifyVolume needs; set by the provisioner.
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
/// On a VolumeAttachment: the driver's id of the node; set and read by the attacher.
pub const ATTACHMENT_NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// On a VolumeSnapshotClass: it is the default of its driver if the value is exactly `true`.
pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// On a VolumeGroupSnapshotClass: it is the default of its driver if the value is exactly `true`.
pub const DEFAULT_GROUP_SNAPSHOT_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";
/// On a VolumeSnapshotContent: CreateSnapshot may be under way, so that deletion waits; set by the snapshotter.
pub const SNAPSHOT_BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a VolumeSnapshotContent: its VolumeSnapshot is going, the snapshotter may delete; set by the snapshot-controller.
pub const SNAPSHOT_BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a VolumeSnapshotContent: name of the secret its driver calls need; set by the snapshot-controller.
pub const SNAPSHOT_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// On a VolumeSnapshotContent: namespace of the secret its driver calls need; set by the snapshot-controller.
pub const SNAPSHOT_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a VolumeSnapshotContent that is a group's member: the driver's id of the group; set by the snapshot-controller.
pub const SNAPSHOT_GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
/// As [`SNAPSHOT_BEING_CREATED`], for a group.
pub const GROUP_SNAPSHOT_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
/// As [`SNAPSHOT_BEING_DELETED`], for a group.
pub const GROUP_SNAPSHOT_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
/// As [`SNAPSHOT_SECRET_NAME`], for a group.
pub const GROUP_SNAPSHOT_SECRET_NAME: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
/// As [`SNAPSHOT_SECRET_NAMESPACE`], for a group.
pub const GROUP_SNAPSHOT_SECRET_NAMESPACE: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";
/// On a VolumeSnapshotContent: the volume mode may differ from the source's; set by an administrator.
pub const ALLOW_VOLUME_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// Not an annotation but a key of a volume's CSI attributes: which provisioner instance made it.
pub const CSI_PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// On a pod: it stands for a static pod of a node, whose uid this is; set by the kubelet.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
