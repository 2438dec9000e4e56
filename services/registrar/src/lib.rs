//! Registers a CSI driver with the kubelet, or with the volume manager in its place: csi-node-driver-registrar.
//!
//! Watches and writes nothing in the API. Asks the driver for its name once, then offers the kubelet's registration
//! service on `<plugin registration path>/<driver>-reg.sock` until shutdown, which takes the socket away and so
//! deregisters the driver. A kubelet that restarts finds the socket and asks again; a driver that restarts is reached
//! again by whoever calls it. A kubelet that refuses the driver ends `run`, so that the next start tries anew.
#![forbid(unsafe_code)]

pub mod args;
mod health;
mod registration;
pub mod serve;
mod service;

pub use health::Health;
pub use service::{Options, run};
