//! A CSI driver for directories of NFS servers, in place of csi-driver-nfs (`nfs.csi.k8s.io`): the same flags, parameters,
//! volume and snapshot ids, and the same files on the share, so that either understands what the other made.
//!
//! A volume is a directory of a share, a snapshot a directory with one tar archive in it. Nothing is recorded anywhere else:
//! an id says all. The controller mounts a share for the length of a call, at a place of its own; what it makes appears
//! under its name when it is whole. All changes go through one `Arc<dyn Shares>`, and nothing below a share is reached
//! through a link.

mod controller;
mod driver;
mod handle;
mod identity;
mod mounts;
mod node;
mod options;
mod parameters;

use std::sync::Arc;

use futures::future::BoxFuture;
use stowage_csi::server::{self, Listener};
use stowage_mount::Shares;

pub use self::driver::Driver;
pub use self::handle::OnDelete;
pub use self::options::{DRIVER_NAME, Flags, Options};

/// Serves until `shutdown`, then lets the calls in progress finish; volumes in use stay mounted.
pub fn run(
    options: Options,
    host: Arc<dyn Shares>,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), server::Error>> {
    Box::pin(serve(options, host, shutdown))
}

async fn serve(options: Options, host: Arc<dyn Shares>, shutdown: BoxFuture<'static, ()>) -> Result<(), server::Error> {
    let listener = Listener::bind(&options.endpoint, options.socket_mode).await?;
    let driver = Driver::new(&options, host);
    driver.recover().await;
    tracing::info!(driver = %options.driver_name, node = %options.node_id, endpoint = %options.endpoint, "serving");
    driver.serve(listener, shutdown).await
}
