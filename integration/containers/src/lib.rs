//! The shipped images on a container engine: the services of `compose.yaml`, one container each, two nodes with a shared
//! pool; stopped, paused, cut off and killed while claims live, with the design's invariants checked from the API
//! objects, the driver's list, the nodes' mount tables and the kernel's loop devices.
//!
//! Needs a local engine (`docker info`), root and the images of `cargo xtask images`; else it says so in one line.

#![forbid(unsafe_code)]

pub mod checker;
pub mod compose;
pub mod copies;
pub mod engine;
pub mod life;
pub mod machine;
pub mod moments;
pub mod node;
pub mod stack;
pub mod table;
