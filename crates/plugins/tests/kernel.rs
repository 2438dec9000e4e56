//! The in-tree plugins on the real kernel, in a mount namespace of the test's own thread. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "kernel/crashes.rs"]
mod crashes;
#[path = "kernel/empty_dir.rs"]
mod empty_dir;
#[path = "kernel/files.rs"]
mod files;
#[path = "kernel/flex.rs"]
mod flex;
#[path = "kernel/host_path.rs"]
mod host_path;
#[path = "kernel/image.rs"]
mod image;
#[path = "kernel/local.rs"]
mod local;
#[path = "kernel/machine.rs"]
mod machine;
#[path = "kernel/objects.rs"]
mod objects;
#[path = "kernel/served.rs"]
mod served;
