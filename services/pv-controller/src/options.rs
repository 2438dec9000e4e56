//! How the controller behaves.

use std::time::Duration;

use serde_json::Value;

use crate::controllers::Controllers;

/// Everything a user may choose.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether claims of a class may get new volumes.
    pub provisioning: bool,
    /// Decisions applied side by side.
    pub parallel: usize,
    /// Which of upstream's controllers run.
    pub controllers: Controllers,
    /// Whether hostPath volumes are made, for tests on one machine.
    pub host_path_provisioner: bool,
    /// Whether bound claims say when no pod uses them.
    pub unused_condition: bool,
    /// Whether claims say why they cannot be bound.
    pub unbound_condition: bool,
    /// Whether claims made for pods that are gone are deleted, where nothing else collects garbage.
    pub collect: bool,
    /// How many claims for pods are made at once; no limit of its own if absent.
    pub ephemeral_parallel: Option<usize>,
    /// Decides on everything again this often; never if absent.
    pub sync_period: Option<Duration>,
    pub recycling: Recycling,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provisioning: true,
            parallel: 64,
            controllers: Controllers::ALL,
            host_path_provisioner: false,
            unused_condition: true,
            unbound_condition: true,
            collect: true,
            ephemeral_parallel: None,
            sync_period: None,
            recycling: Recycling::default(),
        }
    }
}

impl Options {
    /// The part that decisions depend on.
    pub fn rules(&self) -> Rules {
        Rules {
            controllers: self.controllers,
            provisioning: self.provisioning,
            host_path_provisioner: self.host_path_provisioner,
            unused_condition: self.unused_condition,
            unbound_condition: self.unbound_condition,
            collect: self.collect,
        }
    }
}

/// The part of the options that decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub controllers: Controllers,
    pub provisioning: bool,
    pub host_path_provisioner: bool,
    pub unused_condition: bool,
    pub unbound_condition: bool,
    pub collect: bool,
}

/// Who erases volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Eraser {
    /// A pod, on any node: as upstream does it.
    #[default]
    Pod,
    /// This process: hostPath volumes of this machine, NFS exports that it can mount.
    Plugin,
}

/// How volumes are erased.
#[derive(Debug, Clone, PartialEq)]
pub struct Recycling {
    pub eraser: Eraser,
    pub nfs: Recipe,
    pub host_path: Recipe,
}

impl Default for Recycling {
    fn default() -> Self {
        Self {
            eraser: Eraser::Pod,
            nfs: Recipe { minimum_seconds: 300, seconds_per_gi: 30, template: None },
            host_path: Recipe { minimum_seconds: 60, seconds_per_gi: 30, template: None },
        }
    }
}

/// The recycler pod of one kind of volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    pub minimum_seconds: u64,
    pub seconds_per_gi: u64,
    /// A pod to use in place of the built-in one.
    pub template: Option<Value>,
}
