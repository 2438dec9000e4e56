//! Taint keys.

/// An operator says the node is dead: its volumes may be detached at once (only the key counts).
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The node says that it is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The node has not been heard of.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// No new pod may come.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
