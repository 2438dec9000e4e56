//! snapshot-controller: binds VolumeSnapshots to VolumeSnapshotContents, and group snapshots to theirs.
//!
//! Watches the six snapshot kinds and claims, and nodes where these make their own snapshots; reads volumes live when a
//! snapshot of one is to be made. Creates contents, which the snapshotter beside each driver fills, copies what it says
//! into the status of the user's object, deletes contents as their policy says, and keeps finalizers on all of them and on
//! the claims that snapshots are made of. Calls no driver. What is kept in memory is what people were told, volumes that
//! were just read and since when operations run.
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
pub mod controller;
pub mod decide;
pub mod definitions;
pub mod memory;
pub mod metrics;
pub mod projections;
pub mod secrets;
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
