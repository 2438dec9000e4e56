//! The whole pipeline in the in-memory world: lives of claims, crashes at every point, bad input.
//!
//! `life` is what all lives have in common, `sweep` plays one again and again, each time with another service stopped at
//! another point. `claim_life`, `growth_life`, `move_life`, `node_life`, `sidecar_life` and `snapshot_life` are the lives. A failing case prints the
//! command that replays it.
#![forbid(unsafe_code)]

pub mod claim_life;
pub mod growth_life;
pub mod life;
pub mod manifests;
pub mod move_life;
pub mod node_life;
pub mod pipeline;
mod plugins;
pub mod sidecar_life;
pub mod snapshot_life;
pub mod sweep;
mod witness;

use std::future::Future;

/// Runs a future on a runtime of its own: one thread, time paused.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime needs nothing but a few descriptors").block_on(future)
}
