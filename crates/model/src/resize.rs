//! How far a claim's volume has grown or changed: words of its status, and the conditions beside them.

text_enum! {
    /// `status.allocatedResourceStatuses.storage`.
    pub enum ResizeStatus {
        /// No expansion is under way.
        #[default]
        Nothing = "",
        /// The driver's controller is or may be at it; set by the resizer before it calls.
        ControllerResizeInProgress = "ControllerResizeInProgress",
        /// The driver's controller cannot do it; another size may be asked for.
        ControllerResizeInfeasible = "ControllerResizeInfeasible",
        /// The node has to do its part.
        NodeResizePending = "NodeResizePending",
        /// The node is at it.
        NodeResizeInProgress = "NodeResizeInProgress",
        /// The node cannot do it.
        NodeResizeInfeasible = "NodeResizeInfeasible",
    }
}

text_enum! {
    /// `status.modifyVolumeStatus.status`.
    pub enum ModifyStatus {
        /// Not said.
        #[default]
        Nothing = "",
        /// Something is missing, such as the VolumeAttributesClass.
        Pending = "Pending",
        /// The driver is or may be at it.
        InProgress = "InProgress",
        /// The driver refuses the class.
        Infeasible = "Infeasible",
    }
}

/// On a claim: its volume is being expanded.
pub const RESIZING: &str = "Resizing";
/// On a claim: the node has to do its part of an expansion.
pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";
/// On a claim: the driver's controller refused to expand its volume.
pub const CONTROLLER_RESIZE_ERROR: &str = "ControllerResizeError";
/// On a claim: the node failed to do its part of an expansion.
pub const NODE_RESIZE_ERROR: &str = "NodeResizeError";
/// Every condition that is about expansions.
pub const RESIZE_CONDITIONS: [&str; 4] =
    [RESIZING, FILE_SYSTEM_RESIZE_PENDING, CONTROLLER_RESIZE_ERROR, NODE_RESIZE_ERROR];
/// On a claim: its volume's attributes are being changed.
pub const MODIFYING_VOLUME: &str = "ModifyingVolume";
/// On a claim: the driver did not change its volume's attributes.
pub const MODIFY_VOLUME_ERROR: &str = "ModifyVolumeError";
