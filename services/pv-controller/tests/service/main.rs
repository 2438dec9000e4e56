//! The whole service over the embedded API server, in one process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod metrics;
mod recycler;
mod world;
