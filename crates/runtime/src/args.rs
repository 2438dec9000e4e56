//! Flags of services that speak to the Kubernetes API, beside those of every process.

mod client;
mod connection;
mod controller;
mod election;
mod ignored;
mod limit;
mod proxy;
mod sidecar;
#[cfg(test)]
mod tests;

pub use self::client::ClientArgs;
pub use self::controller::ControllerArgs;
pub use self::election::{Label, LeaderElectArgs, LeaderElectionArgs, RELEASE_ON_EXIT};
pub use self::ignored::unknown_gates;
pub use self::sidecar::{SidecarArgs, workers};
pub use stowage_process::args::{AdminArgs, CsiArgs, FeatureArgs, LogArgs, LogFormat};
