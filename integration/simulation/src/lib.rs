//! The whole pipeline in the in-memory world: lives of claims, crashes at every point, bad input.
//!
//! `life` plays the life of a claim; `sweep` plays it again and again, each time with another service stopped at another
//! point. `snapshot_life` and `snapshot_sweep` do the same for snapshots,
//! `life_sweep` for the lives of `growth_life`, in which claims grow and change, and of `sidecar_life`. A failing case prints the command that replays it.
#![forbid(unsafe_code)]

pub mod growth_life;
pub mod life;
pub mod life_sweep;
pub mod manifests;
pub mod pipeline;
mod plugins;
pub mod sidecar_life;
pub mod snapshot_life;
pub mod snapshot_sweep;
pub mod sweep;

use std::future::Future;

/// Runs a future on a runtime of its own: one thread, time paused.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime needs nothing but a few descriptors").block_on(future)
}
