//! attacher: turns the VolumeAttachments of one driver into ControllerPublishVolume and ControllerUnpublishVolume.
//!
//! Watches VolumeAttachments, volumes and CSINodes; reads secrets. Writes the finalizer and node id of attachments, their
//! status, and the finalizer of volumes. One driver call at a time per volume handle, of volumes for many nodes per handle and
//! node, and a lane each for attaches and detaches. Lists what the driver has published where it can, and repeats what it has lost. The finalizer is on the attachment
//! before the first publish and leaves it after a good unpublish only, so no publish that may have happened is forgotten.
#![forbid(unsafe_code)]

pub mod args;

mod apply;
mod calls;
mod controller;
mod decide;
mod lanes;
mod metrics;
mod reconcile;
mod refusals;
mod request;
mod snapshot;
mod watches;
mod written;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use controller::Options;

/// Runs the attacher until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
