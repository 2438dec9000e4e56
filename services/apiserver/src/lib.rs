//! The API server as a program: the Kubernetes API for one machine.
//!
//! Watches and writes nothing but its own data directory; speaks to no driver. `bind` and `run` are also what `stowage up`
//! embeds: the services beside it use `Bound::server` in process, people and kubectl the TLS listener.

#![forbid(unsafe_code)]

mod args;
mod descriptors;
mod health;
mod limits;
mod run;

pub use args::Args;
pub use health::Healthcheck;
pub use run::{Access, Authorization, Bound, Error, Options, bind, bind_with, run};
