//! stowage: the command people type.
//!
//! `up` runs the whole stack in one process, `demo` shows the life of a claim on it, `check` says what this machine
//! lacks, `clean` removes what a killed run left, `run` runs a command with volumes mounted, `explain` says why a claim is stuck, `drain` empties nodes, `setup` prepares a stack of containers. The
//! services are the same code that runs as separate binaries.
#![forbid(unsafe_code)]

pub mod args;
pub mod calls;
pub mod certificates;
pub mod check;
pub mod clean;
pub mod demo;
pub mod drain;
pub mod explain;
pub mod manifest;
pub mod objects;
pub mod root;
pub mod run;
pub mod setup;
pub mod stack;
pub mod supervisor;
pub mod up;
