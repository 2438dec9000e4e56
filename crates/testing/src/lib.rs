//! The in-memory world: a real Kubernetes client over the in-process store, a scripted CSI driver, a mount table, virtual
//! time and a seed, all on one thread.
//!
//! Services run in it unchanged, through their [`Context`](stowage_runtime::Context). Every write to the API, every driver
//! call and every change on the node is a *point* of the [`Trace`]; a [`Fault`] stops a service at one of them. The same
//! seed gives the same trace, byte for byte.
#![forbid(unsafe_code)]

mod admin;
pub mod bench;
mod changes;
mod client;
mod clock;
pub mod crds;
pub mod driver;
mod fault;
mod gate;
pub mod invariants;
pub mod mounter;
mod numbers;
mod rights;
mod sockets;
mod tell;
mod trace;
pub mod world;

pub use admin::Admin;
pub use changes::Changes;
pub use clock::VirtualClock;
pub use driver::{Abilities, Driver, Step};
pub use fault::{Fault, Mode};
pub use gate::Gate;
pub use invariants::{Observed, Violation};
pub use mounter::MemoryMounter;
pub use numbers::Numbers;
pub use rights::Right;
pub use sockets::{Listening, Sockets};
pub use tell::tell;
pub use trace::{Point, Port, Trace};
pub use world::{Hang, Life, World};
