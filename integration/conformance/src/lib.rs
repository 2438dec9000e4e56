//! What a Kubernetes API server must answer, asked through kubectl, kube-rs and plain HTTP.
//!
//! The suite speaks to the server of the kubeconfig in `STOWAGE_CONFORMANCE_KUBECONFIG`, or, without it, to the embedded one,
//! which it starts for each rule. So the very same rules can be held against a real kube-apiserver: one that it answers
//! otherwise is a fault of ours.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests")]

mod embedded;
mod kubectl;
mod lines;
mod world;

pub use lines::Lines;
pub use world::{Answer, World, rule};
