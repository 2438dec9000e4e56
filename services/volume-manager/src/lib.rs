//! The volume half of the kubelet, for nodes that have no kubelet and for tests.
//!
//! Watches the pods of one node, its own Node and CSINode, and CSIDrivers; reads claims, volumes, attachments and
//! secrets live. Writes its Node (labels, Ready, `volumesInUse`), its Lease, CSINode, and the pods' status; where no
//! controller attaches for it, also its VolumeAttachments.
//! Calls the registration sockets of plugins and NodeGetInfo, NodeGetCapabilities, NodeStageVolume,
//! NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume and NodeGetVolumeStats of their drivers.
//!
//! No container is run here: a pod is said to be Running once its volumes are mounted, never Succeeded, and its
//! deletion is finished once they are unmounted.
#![forbid(unsafe_code)]

pub mod actual_state;
pub mod api;
mod apply;
pub mod args;
mod conditions;
mod controller;
pub mod decide;
pub mod desired_state;
mod drain;
pub mod drivers;
pub mod executor;
mod generator;
mod heartbeat;
mod host;
mod machine;
mod made_of;
mod metrics;
mod node;
mod options;
mod outlook;
pub mod plugin_watcher;
pub mod populator;
mod reconstruct;
mod registration;
mod selinux;
mod size_limits;
mod snapshot;
mod state;
mod stats;
mod turns;
mod watches;

use std::sync::Arc;

use futures::future::BoxFuture;

use stowage_mount::Mounter;
use stowage_runtime::{Context, Stop};

use crate::plugin_watcher::PluginSource;

pub use drain::drain;
pub use machine::{LinuxMachine, LookAtMachine, Machine, Pressure};
pub use options::{Occupancy, Options};
pub use selinux::SeLinux;

/// Manages the volumes of one node until shutdown, which leaves every mount in place.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(
    context: Context,
    host: Arc<dyn Mounter>,
    plugins: Arc<dyn PluginSource>,
    options: Options,
) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, host, plugins, options))
}
