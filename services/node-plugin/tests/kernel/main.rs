//! The driver on the real kernel, each test in a mount namespace of its own. Needs root.
#![allow(clippy::unwrap_used)]

mod attach;
mod changes;
mod controller;
mod copies;
mod crash;
mod crash_controller;
mod crash_copies;
mod flags;
mod groups;
mod identity;
mod leftovers;
mod local_driver;
mod metadata;
mod modes;
mod nfs;
mod nfs_world;
mod node;
mod pools;
mod space;
mod swapped;
mod targets;
mod world;
