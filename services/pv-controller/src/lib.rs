//! pv-controller: binds claims to volumes, asks for provisioning, releases volumes, guards what is in use.
//!
//! Watches claims, volumes, classes and pods. Writes claims (volume name, bind and provisioner annotations, class,
//! protection finalizer, status) and volumes (claim reference, phase, protection finalizer). Calls no driver.
//! One write per decision: the answer is observed and decided on again, so every write is guarded by exactly the
//! version it was decided on. A claim and a volume each write their own status, side by side.
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
pub mod controller;
pub mod decide;
pub mod error;
pub mod snapshot;
pub mod write;

pub use controller::{Options, run};
