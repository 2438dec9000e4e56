//! The driver on the real kernel, each test in a mount namespace of its own. Needs root.
#![allow(clippy::unwrap_used)]

mod attach;
mod controller;
mod crash;
mod identity;
mod node;
mod world;
