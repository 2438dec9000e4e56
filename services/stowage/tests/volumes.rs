//! Every kind of volume through a whole stack on the real kernel, in a mount namespace of the test's own thread. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "volumes/every_kind.rs"]
mod every_kind;
#[path = "volumes/examples.rs"]
mod examples;
#[path = "volumes/explain.rs"]
mod explain;
#[path = "volumes/run.rs"]
mod run;
#[path = "volumes/world.rs"]
mod world;
