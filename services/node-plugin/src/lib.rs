//! Three CSI drivers in one: volumes are images or directories in pools of this node (`local.csi.stowage.dev`) or in
//! pools that several nodes see (`shared.csi.stowage.dev`), or directories of NFS servers (`nfs.csi.k8s.io`, in `nfs`).
//!
//! Watches nothing and writes to no API: it answers Identity, Controller, GroupController, SnapshotMetadata and Node
//! calls on one socket. What it knows lies in the pools (a record per volume, snapshot, group, staging and node) and
//! in the kernel (loop devices that carry our tag, the mount table); nothing is kept in memory but which volumes have
//! a call in progress. All changes go through one `Arc<dyn Host>`. Every call converges: repeated after a kill at any
//! change, it finishes what was begun.

#![forbid(unsafe_code)]

pub mod args;
mod calls;
mod capability;
mod controller;
mod driver;
mod freezing;
mod group;
mod handle;
mod identity;
mod locks;
mod metadata;
pub mod nfs;
mod node;
mod parameters;
mod pool;
mod size;
mod snapshot;
mod staging;
mod token;
mod tuning;
mod volume;

use std::sync::Arc;

use futures::future::BoxFuture;

use stowage_csi::server::{self, Listener};
use stowage_mount::Host;

pub use crate::args::{Kind, Mode, Options};
pub use crate::calls::MOST_CALLS;
pub use crate::driver::Driver;
pub use crate::token::TOKEN_KEY;

/// Serves until `shutdown`, then lets the calls in progress finish; volumes in use stay mounted.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(
    options: Options,
    host: Arc<dyn Host>,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), server::Error>> {
    Box::pin(serve(options, host, shutdown))
}

async fn serve(options: Options, host: Arc<dyn Host>, shutdown: BoxFuture<'static, ()>) -> Result<(), server::Error> {
    let listener = Listener::bind(&options.endpoint, options.socket_mode).await?;
    let driver = Driver::new(&options, host);
    driver.recover().await;
    tracing::info!(driver = %options.driver_name, node = %options.node_id, endpoint = %options.endpoint, "serving");
    driver.serve(listener, shutdown).await
}
