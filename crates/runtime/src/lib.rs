//! What every Stowage service shares: flags, logs, metrics, admin HTTP, shutdown, readiness, leases,
//! caches of trimmed projections, the keyed queue, the decide-then-apply engine, driver operations and events.
//!
//! A service is `async fn run(Context, Options) -> Result<(), Stop>`; everything outside of it comes
//! through [`context::Context`].
#![forbid(unsafe_code)]

pub mod admin;
pub mod api;
pub mod args;
pub mod backoff;
pub mod cache;
pub mod clock;
pub mod context;
pub mod duration;
pub mod engine;
pub mod events;
pub mod flags;
pub mod healthcheck;
pub mod launch;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod operation;
pub mod queue;
pub mod random;
pub mod readiness;
pub mod shutdown;
pub mod tasks;
pub mod watch;

pub use context::{Context, Stop};
