//! pv-controller: everything kube-controller-manager does for volumes, except attaching.
//!
//! Watches claims, volumes, classes, pods and VolumeAttributesClasses. Writes claims (volume name, bind and provisioner
//! annotations, class, protection finalizer, status), volumes (claim reference, phase, finalizers), claims for pods'
//! ephemeral volumes and recycler pods. Calls no driver. Every write is guarded by exactly the version it was decided
//! on; after its answer the key is decided on again.
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
mod begun;
pub mod controller;
pub mod controllers;
pub mod decide;
mod fresh;
pub mod matchmaker;
pub mod metrics;
mod note;
pub mod options;
mod pod_lookups;
pub mod recycler;
pub mod snapshot;
mod users;
pub mod watches;
pub mod write;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use controller::run_with;
pub use controllers::Controllers;
pub use options::{Eraser, Options, Recycling};

/// Binds claims until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
