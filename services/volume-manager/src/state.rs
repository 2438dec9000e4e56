//! Everything this process knows of its node besides what the API says, behind one lock that is never held over an await:
//! whether a volume may be mounted is asked of several parts at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use stowage_model::names::UniqueVolumeName;
use stowage_model::object::Key;
use stowage_plugins::Layout;
use stowage_runtime::told::Told;

use crate::actual_state::ActualStateOfWorld;
use crate::desired_state::DesiredStateOfWorld;
use crate::drivers::Drivers;
use crate::machine::Machine;
use crate::options::Occupancy;
use crate::reconstruct;

/// What is known at one moment.
#[derive(Debug, Default)]
pub struct States {
    pub desired: DesiredStateOfWorld,
    pub actual: ActualStateOfWorld,
    pub report: Report,
    /// Uids of pods that have a directory.
    pub pod_dirs: BTreeSet<String>,
    /// What pods hold too much of, by their uids: they are to be evicted.
    pub evicted: BTreeMap<String, String>,
    /// Pods that somebody holds, by name, and how many do.
    pub held: BTreeMap<Key, usize>,
    /// What was told about a pod in events, by its uid and the sentence.
    pub told: Told<String, String, ()>,
}

/// What the Node is told of volumes in use, and when it last showed that it lives.
#[derive(Debug, Default)]
pub struct Report {
    /// Directories with a mount, or a trace of one, nobody can tell the volume of.
    pub unexplained: Vec<PathBuf>,
    /// Volumes that were reported in use before the start and that such a mount may be of.
    pub kept_in_use: BTreeSet<UniqueVolumeName>,
    /// The in-use list that is being written right now.
    pub writing: Option<BTreeSet<UniqueVolumeName>>,
    /// When the node's lease was last renewed.
    pub heartbeat: Option<Timestamp>,
    /// What the machine was when it was last looked at.
    pub machine: Machine,
    /// What the Node was last told of it.
    pub reported: Option<Reported>,
}

impl Report {
    /// What is at this path, or below one, is known by now: a volume that was set up there has its metadata anew.
    pub fn explained(&mut self, path: &Path, layout: &Layout) {
        let before = self.unexplained.len();
        self.unexplained.retain(|unexplained| !path.starts_with(unexplained));
        if self.unexplained.len() < before {
            let unexplained = &self.unexplained;
            self.kept_in_use.retain(|volume| reconstruct::is_possible(volume, unexplained, layout));
        }
    }
}

/// What a Node was told of the machine, besides conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// The Node's uid.
    pub uid: String,
    pub status: Value,
}

impl States {
    /// Every volume that is wanted or held.
    pub fn volumes(&self) -> BTreeSet<UniqueVolumeName> {
        let held = self.actual.iter().map(|(name, _)| name);
        self.desired.volumes().chain(held).cloned().collect()
    }

    /// The volumes that a pod is to have or may have.
    pub fn volumes_of(&self, uid: &str) -> BTreeSet<UniqueVolumeName> {
        let wanted = self.desired.pod(uid).into_iter().flat_map(|pod| pod.volumes.keys());
        wanted.chain(self.actual.of_pod(uid).map(|(name, _)| name)).cloned().collect()
    }
}

/// The states behind their lock, and the drivers behind one of their own: plugins ask for these while a decision holds the
/// states.
#[derive(Debug)]
pub struct State {
    states: Mutex<States>,
    drivers: Mutex<Drivers>,
    occupancy: Occupancy,
    /// Tells those who wait for something to become so.
    changes: watch::Sender<()>,
}

impl State {
    pub fn new(states: States, occupancy: Occupancy) -> Self {
        occupancy.set(states.actual.mounts());
        Self { states: Mutex::new(states), drivers: Mutex::default(), occupancy, changes: watch::Sender::new(()) }
    }

    pub fn read<T>(&self, f: impl FnOnce(&States) -> T) -> T {
        f(&self.lock())
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut States) -> T) -> T {
        let mut states = self.lock();
        let result = f(&mut states);
        self.occupancy.set(states.actual.mounts());
        drop(states);
        self.changes.send_replace(());
        result
    }

    /// Something that is told together with the states has changed.
    pub fn touch(&self) {
        self.changes.send_replace(());
    }

    /// Changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub fn read_drivers<T>(&self, f: impl FnOnce(&Drivers) -> T) -> T {
        f(&self.lock_drivers())
    }

    pub fn with_drivers<T>(&self, f: impl FnOnce(&mut Drivers) -> T) -> T {
        f(&mut self.lock_drivers())
    }

    fn lock_drivers(&self) -> MutexGuard<'_, Drivers> {
        self.drivers.lock().expect("no code panics while holding the drivers")
    }

    fn lock(&self) -> MutexGuard<'_, States> {
        self.states.lock().expect("no code panics while holding the states")
    }
}
