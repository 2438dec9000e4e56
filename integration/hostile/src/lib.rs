//! What a hostile client or a failing machine may do to our processes, one test per attack.
//!
//! Attacks run against the real binaries, each test with a process of its own, so that one that succeeds ends that process
//! and not the suite. Each is bounded: a count of requests, a deadline, and the memory the process may take.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests")]

mod raw;
mod server;

pub use raw::{Http2, PATIENCE, Sending, Sent, Windows, code, full, maps, named, unfinished};
pub use server::{Answer, Server};
