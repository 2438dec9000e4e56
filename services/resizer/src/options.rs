//! What a user can set, with the original's defaults.

use std::time::Duration;

use stowage_runtime::driver;

/// How the resizer runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How the driver is called. Its workers are calls at a time: to expand, and separately to modify.
    pub driver: driver::Options,
    /// Whether the driver is told the names of claim and volume when attributes change.
    pub extra_modify_metadata: bool,
    /// Whether pods are looked at before what cannot grow in use is tried again.
    pub handle_volume_in_use: bool,
    /// Name of this node, if every node runs a resizer for the volumes that are there.
    pub node: Option<String>,
    /// How often every decision is taken again, as a net under missed events; zero for never.
    pub resync: Duration,
    /// What is switched on.
    pub gates: Gates,
}

/// The original's feature gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// The size before an expansion is kept on the volume until the node has done its part.
    pub annotate_fs_resize: bool,
    /// Claims tell how far their expansion is, and an impossible one can be taken back.
    pub recover_volume_expansion_failure: bool,
    /// Claims can change their VolumeAttributesClass.
    pub volume_attributes_class: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self { annotate_fs_resize: true, recover_volume_expansion_failure: true, volume_attributes_class: true }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver: driver::Options::default(),
            extra_modify_metadata: false,
            handle_volume_in_use: true,
            node: None,
            resync: Duration::from_secs(600),
            gates: Gates::default(),
        }
    }
}
