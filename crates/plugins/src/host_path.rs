//! Files and directories of this machine.

mod on_node;

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use stowage_model::migration;

use crate::disk::Disk;
use crate::permit::Permit;
use crate::reclaim::{DeletableVolumePlugin, Error, RecyclableVolumePlugin, text};

pub use on_node::HostPathVolume;
pub(crate) use on_node::kind;

/// Files and directories of this machine.
pub struct HostPath {
    disk: Arc<dyn Disk>,
}

impl HostPath {
    /// As Kubernetes calls it.
    pub const NAME: &str = migration::HOST_PATH;

    /// On this disk.
    pub fn on(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }
}

impl RecyclableVolumePlugin for HostPath {
    fn recycle<'a>(&'a self, volume: &'a Value, permit: &'a Permit) -> BoxFuture<'a, Result<(), Error>> {
        async move { Ok(self.disk.erase(path(volume)?, permit).await?) }.boxed()
    }
}

impl DeletableVolumePlugin for HostPath {
    fn delete<'a>(&'a self, volume: &'a Value, permit: &'a Permit) -> BoxFuture<'a, Result<(), Error>> {
        async move { Ok(self.disk.remove(path(volume)?, permit).await?) }.boxed()
    }
}

fn path(volume: &Value) -> Result<&Path, Error> {
    text(volume, "hostPath.path").map(Path::new)
}
