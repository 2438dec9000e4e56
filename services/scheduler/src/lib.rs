//! scheduler: places pods where their volumes can be, for stacks that have no kube-scheduler.
//!
//! Watches pods, nodes, claims, volumes, classes, CSINodes, VolumeAttachments and the nodes' Leases. Writes
//! `selected-node` on claims, `claimRef` on volumes, pod bindings and the PodScheduled condition. Does the small duties
//! of absent controllers too, unless told not to: marks silent nodes (Ready condition and taints) and deletes pods of
//! nodes that are gone.
//! Calls no driver. Pods on their way hold their node's volume slots and their ReadWriteOncePod claims: they are
//! `assumed` there, as in kube-scheduler.
#![forbid(unsafe_code)]

mod apply;
pub mod args;
mod assumed;
mod controller;
mod decide;
mod failures;
mod heartbeats;
mod snapshot;
mod watches;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use controller::Options;

/// Places pods and looks after nodes until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
