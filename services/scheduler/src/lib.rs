//! scheduler: places pods where their volumes can be, for stacks that have no kube-scheduler.
//!
//! Watches pods, nodes, claims, volumes, classes, CSINodes, VolumeAttachments and the nodes' Leases. Writes
//! `selected-node` on claims, `claimRef` on volumes, pod bindings and the PodScheduled condition. Does the small duties
//! of absent controllers too, unless told not to: marks silent nodes (Ready condition and taints) and deletes pods of
//! nodes that are gone.
//! Calls no driver. Pods in flight hold their node's volume slots and their ReadWriteOncePod claims in the [`assumed`].
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
pub mod controller;
pub mod decide;
pub mod error;
pub mod assumed;
pub mod heartbeats;
pub mod snapshot;
mod watches;

pub use controller::{Options, run};
