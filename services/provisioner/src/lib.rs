//! The provisioner: stands in for external-provisioner, one per driver.
//!
//! Watches claims, PersistentVolumes, StorageClasses, VolumeAttachments where the driver attaches, Nodes and CSINodes
//! where its volumes have places, VolumeSnapshots where it restores them, and ReferenceGrants where sources may be in
//! other namespaces. Writes PersistentVolumes, their finalizer, the selected node of claims, the finalizers that hold
//! claims and snapshots while volumes are made from them, events, the Leases of its intent journal and, where that is switched on,
//! CSIStorageCapacity objects. Calls CreateVolume for claims that ask for this driver, DeleteVolume for released volumes, and
//! GetCapacity. No CreateVolume starts before its record is
//! durable, so that a crash at any point, the claim deleted meanwhile, leaks nothing and doubles nothing.
#![forbid(unsafe_code)]

mod apply;
mod args;
mod atlas;
mod calls;
mod capacity;
mod controller;
mod csi;
mod decide;
mod facts;
#[cfg(test)]
mod fixture;
mod holders;
mod intent;
mod journal;
pub mod library;
mod metrics;
mod migrated;
mod options;
mod ownership;
mod places;
mod request;
mod requirement;
mod secrets;
mod snapshot;
mod source;
mod volume;
mod watches;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use self::args::Args;
pub use self::options::{AttributesClasses, Capacity, NodeDeployment, Options, OwnerLevel};

/// Provisions until asked to stop.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
