//! What every Stowage process has, whether it speaks to the Kubernetes API or not: flags, logs, metrics, admin HTTP,
//! shutdown, readiness, clock, randomness and its tasks, and how they are put together into a process.
#![forbid(unsafe_code)]

pub mod admin;
pub mod args;
pub mod backoff;
pub mod clock;
pub mod duration;
pub mod flags;
pub mod healthcheck;
pub mod launch;
pub mod log;
pub mod metrics;
pub mod process;
pub mod random;
pub mod readiness;
pub mod shutdown;
pub mod stop;
pub mod tasks;

pub use process::Process;
pub use stop::Stop;
