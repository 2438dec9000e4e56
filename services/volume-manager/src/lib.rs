//! The volume half of the kubelet, for nodes that have no kubelet and for tests.
//!
//! Watches the pods of one node, its own Node and CSINode, and CSIDrivers; reads claims, volumes, attachments and
//! secrets live. Writes its Node (labels, Ready, `volumesInUse`), its Lease, CSINode, and the pods' status.
//! Calls the registration sockets of plugins and NodeGetInfo, NodeGetCapabilities, NodeStageVolume,
//! NodePublishVolume, NodeUnpublishVolume and NodeUnstageVolume of their drivers.
//!
//! No container is run here: a pod is said to be Running once its volumes are mounted, never Succeeded, and its
//! deletion is finished once they are unmounted.
#![forbid(unsafe_code)]

mod apply;
pub mod args;
mod calls;
mod conditions;
mod controller;
pub mod decide;
pub mod desired;
mod drain;
mod heartbeat;
pub mod layout;
mod node;
mod options;
pub mod plugins;
pub mod reconstruct;
mod registration;
mod resolve;
mod snapshot;
pub mod vol_data;
mod watches;
pub mod world;

use std::sync::Arc;

use futures::future::BoxFuture;

use stowage_mount::Mounter;
use stowage_runtime::{Context, Stop};

use crate::plugins::PluginSource;

pub use drain::drain;
pub use options::{Occupancy, Options};

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
