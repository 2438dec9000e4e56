//! What every Stowage service that speaks to the Kubernetes API shares: leases, caches of trimmed projections, the keyed
//! queue, the decide-then-apply engine, driver operations and events, on top of what every process has.
//!
//! A service is `async fn run(Context, Options) -> Result<(), Stop>`; everything outside of it comes
//! through [`context::Context`].
#![forbid(unsafe_code)]

pub mod api;
pub mod args;
pub mod cache;
pub mod caller;
pub mod context;
pub mod driver;
pub mod engine;
pub mod events;
pub mod launch;
pub mod lease;
pub mod operation;
pub mod queue;
pub mod told;
pub mod trouble;
pub mod watch;

pub use context::{Context, Process, Stop};
pub use stowage_process::{
    admin, backoff, clock, duration, flags, healthcheck, log, metrics, random, readiness, shutdown, tasks,
};
