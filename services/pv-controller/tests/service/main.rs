//! The whole service over the embedded API server, in one process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod looks;
mod metrics;
mod reclaim;
mod recycler;
mod refusals;
mod taken_back;
mod wire;
mod world;
