//! Volumes in use on the real kernel, for everything a volume can be, each test in a mount namespace of its own. Needs
//! root; file systems whose tools are missing are left out with a word.
#![allow(clippy::unwrap_used, clippy::panic)]

mod expand;
mod growth;
mod inline;
mod interrupted;
mod killed;
mod returning;
mod secrets;
mod volumes;
#[allow(dead_code)]
#[path = "../kernel/world.rs"]
mod world;
