//! The provisioner: stands in for external-provisioner, one per driver.
//!
//! Watches claims, PersistentVolumes, StorageClasses, VolumeAttachments where the driver attaches, Nodes and CSINodes
//! where its volumes have places, VolumeSnapshots where it restores them, and ReferenceGrants where sources may be in
//! other namespaces. Writes PersistentVolumes, their finalizer, the selected node of claims, the finalizers that hold
//! claims and snapshots while volumes are made from them, events, and the Leases of its intent journal. Calls CreateVolume for claims
//! that ask for this driver and DeleteVolume for released volumes. No CreateVolume starts before its record is
//! durable, so that a crash at any point, the claim deleted meanwhile, leaks nothing and doubles nothing.
#![forbid(unsafe_code)]

mod apply;
mod args;
mod calls;
mod controller;
mod decide;
mod facts;
#[cfg(test)]
mod fixture;
mod intent;
mod journal;
mod metrics;
mod options;
mod ownership;
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
pub use self::options::{NodeDeployment, Options};

/// Provisions until asked to stop.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
