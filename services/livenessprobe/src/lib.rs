//! Answers the kubelet's HTTP probes with the driver's own Probe: livenessprobe.
//!
//! Watches and writes nothing in the API. Asks the driver for its name once, however long that takes, and then, for every
//! request of `/healthz`, whether it is well: 200 if it is, 500 with the reason if it is not, does not answer in time or
//! cannot be reached. It never ends because a driver is sick; one that cannot say its name ends it.
#![forbid(unsafe_code)]

pub mod args;
mod probe;

pub use probe::{Options, Probe, run};
