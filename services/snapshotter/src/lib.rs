//! The snapshotter: stands in for the csi-snapshotter sidecar, one per driver.
//!
//! Watches VolumeSnapshotContents and VolumeSnapshotClasses, and their group forms where the server has them; reads
//! secrets. Writes the status of contents, their finalizer when they go, and the mark of a creation in doubt. Calls
//! CreateSnapshot, ListSnapshots and DeleteSnapshot, and the three calls of groups. No call that makes something starts
//! before the content's finalizer is on it, so that a content cannot vanish while a snapshot may exist for it.
#![forbid(unsafe_code)]

mod apply;
mod args;
mod calls;
mod content;
mod controller;
mod decide;
mod doubts;
mod options;
mod request;
mod snapshot;
mod sort;
mod watches;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use self::args::Args;
pub use self::options::{Names, Options};

/// Makes and deletes snapshots until asked to stop.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
