//! attach-detach-controller: sees to it that the volumes of every placed pod are attached to its node, and no others.
//!
//! Watches pods, claims, volumes, nodes, VolumeAttachments and CSIDrivers. Creates and deletes VolumeAttachments, and
//! writes `volumesAttached` in the status of nodes. Calls no driver: that is the attacher's part. Everything is decided
//! from the caches alone, so starting is the same as going on; what is kept in memory is only since when a volume waits
//! to be unmounted and which pods were told what.
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
pub mod controller;
pub mod decide;
pub mod memory;
pub mod metrics;
pub mod notice;
pub mod report;
pub mod snapshot;
pub mod watches;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use controller::Options;

/// Runs the controller until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
