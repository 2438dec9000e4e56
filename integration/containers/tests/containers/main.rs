//! The shipped images, run, broken and mended. Each test has a stack of its own; they take turns.
#![allow(clippy::unwrap_used, clippy::panic)]

mod checker;
mod compose;
mod driver_calls;
mod faults;
mod images;
mod life;
mod node_cut_off;
