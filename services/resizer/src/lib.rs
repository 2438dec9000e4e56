//! resizer: makes the volumes of one driver grow when their claims ask for more, and changes their attributes when the
//! claims name another VolumeAttributesClass.
//!
//! Watches claims, volumes and VolumeAttributesClasses, and the pods of a namespace while a claim of it cannot grow in
//! use; reads secrets. Writes the status of claims, and size, class and one annotation of volumes. Calls
//! ControllerExpandVolume and ControllerModifyVolume, one at a time per claim, after the claim's status says so.
#![forbid(unsafe_code)]

pub mod args;

mod apply;
mod calls;
mod change;
mod controller;
mod decide;
mod metrics;
mod options;
mod projections;
mod request;
mod snapshot;
mod target;
mod turns;
mod users;
mod watches;

use futures::future::BoxFuture;

use stowage_runtime::{Context, Stop};

pub use options::{Gates, Options};

/// Runs the resizer until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(controller::run(context, options))
}
