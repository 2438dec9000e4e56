//! Flags of services that speak to the Kubernetes API, beside those of every process.

mod client;
mod election;
mod limit;
#[cfg(test)]
mod tests;

pub use self::client::ClientArgs;
pub use self::election::{Label, LeaderElectArgs, LeaderElectionArgs, RELEASE_ON_EXIT};
pub use stowage_process::args::{AdminArgs, CsiArgs, FeatureArgs, LogArgs, LogFormat};
