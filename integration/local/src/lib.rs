//! The real binaries as separate processes: an API server over HTTPS, sidecars and drivers over unix sockets, volumes on
//! this machine's kernel.
//!
//! A test runs below one short directory and, where it mounts, in a mount namespace of its own; all its processes share
//! that namespace and die with the test, however it ends. The binaries are those beside the running test: build them
//! first with `cargo build --workspace --bins`.
#![forbid(unsafe_code)]

pub mod api;
pub mod binaries;
pub mod devices;
pub mod disk;
pub mod driver;
pub mod leftovers;
pub mod life;
pub mod looks;
pub mod machine;
pub mod objects;
pub mod process;
pub mod records;
pub mod relay;
pub mod stack;
