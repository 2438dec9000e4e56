//! The Container Storage Interface as Stowage speaks it: the generated types and services of CSI 1.13 and of the
//! kubelet's plugin registration, a [`Channel`] to call them over a socket or in process, a [`server`] that
//! offers them on a private socket, and the one table ([`code`]) that says what a gRPC code means for the volume.
//!
//! A message that carries secrets can be printed: the fields the contract marks `csi_secret` are not shown.

#![forbid(unsafe_code)]

pub mod calls;
mod capability;
pub mod channel;
pub mod code;
pub mod connect;
pub mod deadline;
pub mod endpoint;
pub mod identity;
mod redact;
pub mod server;

pub use channel::Channel;
pub use code::{Family, Outcome};
pub use connect::{Connector, UnixConnector, UnloggedConnector};
pub use deadline::Deadline;
pub use endpoint::Endpoint;

/// Types, clients and servers of CSI v1 (`csi.v1`).
#[allow(clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.debug.rs"));
}

/// Types, client and server of the kubelet's plugin registration v1 (`pluginregistration`).
#[allow(clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}
