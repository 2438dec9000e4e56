//! Operations on volumes: what may run beside what, and what becomes of one that panics.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures::FutureExt;

use stowage_model::names::UniqueVolumeName;
use stowage_runtime::operation::{self, Ended, Failure, Operations};

/// The record of an operation; what it found or did is in the states.
pub type Record = operation::Record<()>;

/// What is done to a volume, named as in Kubernetes' metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationName {
    Attach,
    Detach,
    MountDevice,
    UnmountDevice,
    SetUp,
    TearDown,
    Expand,
    /// Show a part of a volume to a container (subPath).
    BindPart,
}

impl OperationName {
    pub fn as_str(self, is_block: bool) -> &'static str {
        match (self, is_block) {
            (Self::Attach, _) => "volume_attach",
            (Self::Detach, _) => "volume_detach",
            (Self::MountDevice, _) => "mount_device",
            (Self::UnmountDevice, false) => "unmount_device",
            (Self::UnmountDevice, true) => "unmap_device",
            (Self::SetUp, false) => "volume_mount",
            (Self::SetUp, true) => "map_volume",
            (Self::TearDown, false) => "volume_unmount",
            (Self::TearDown, true) => "unmap_volume",
            (Self::Expand, _) => "volume_fs_resize",
            (Self::BindPart, _) => "volume_bind_part",
        }
    }
}

/// One operation on a volume, for all of it or for one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeOperation {
    pub volume: UniqueVolumeName,
    /// None for what concerns the volume on the whole node, and for what must be alone on it.
    pub pod: Option<String>,
    pub name: OperationName,
}

impl VolumeOperation {
    /// On the whole volume.
    pub fn on(volume: &UniqueVolumeName, name: OperationName) -> Self {
        Self { volume: volume.clone(), pod: None, name }
    }

    /// For one pod.
    pub fn of(volume: &UniqueVolumeName, uid: &str, name: OperationName) -> Self {
        Self { volume: volume.clone(), pod: Some(uid.to_owned()), name }
    }

    /// Whether the two may not run at once: on one volume, unless each is for a pod of its own.
    pub fn excludes(&self, other: &Self) -> bool {
        let apart = self.pod.is_some() && other.pod.is_some() && self.pod != other.pod;
        // Pods get a shared volume one after the other, and give it back side by side.
        let both_leave = self.name == OperationName::TearDown && other.name == OperationName::TearDown;
        self.volume == other.volume && !(apart && both_leave)
    }
}

/// Everything that has a record of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Ask a plugin who it is.
    Greet(String),
    /// Tell a plugin what became of its registration.
    Notify(String),
    /// Ask a driver again how many volumes the node can take.
    Refresh(String),
    Volume(VolumeOperation),
}

/// Runs operations; those that exclude each other one at a time.
#[derive(Clone)]
pub struct Executor {
    operations: Operations<Operation, ()>,
    /// Held while it is looked what runs and the next is started: decisions are not the only ones who start something.
    starting: Arc<Mutex<()>>,
}

impl Executor {
    pub fn new(operations: Operations<Operation, ()>) -> Self {
        Self { operations, starting: Arc::default() }
    }

    /// Starts an operation on a volume, unless one that it excludes is under way. One that panics has ended badly, and
    /// nobody knows what it did; the others go on.
    pub fn start_on_volume(
        &self,
        operation: VolumeOperation,
        work: impl Future<Output = Ended<()>> + Send + 'static,
    ) -> bool {
        self.start_on_volume_if(operation, || true, work).unwrap_or_default()
    }

    /// The same, if it holds at that moment, when no operation that it excludes can change it; none if it does not.
    pub fn start_on_volume_if(
        &self,
        operation: VolumeOperation,
        holds: impl FnOnce() -> bool,
        work: impl Future<Output = Ended<()>> + Send + 'static,
    ) -> Option<bool> {
        let _starting = self.starting.lock().expect("no code panics while it starts an operation");
        let busy = self.of_volume(&operation.volume).into_iter();
        if busy.into_iter().any(|(other, record)| record.is_running() && other.excludes(&operation)) {
            return Some(false);
        }
        holds().then(|| self.start(Operation::Volume(operation), work))
    }

    /// Starts an operation; refuses while it runs already.
    pub fn start(&self, operation: Operation, work: impl Future<Output = Ended<()>> + Send + 'static) -> bool {
        let name = format!("{operation:?}");
        let work = AssertUnwindSafe(work).catch_unwind().map(move |ended| {
            ended.unwrap_or_else(|panic| {
                let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                tracing::error!(operation = name, panic = what, "an operation panicked; this is a bug");
                let message = format!("this program failed while it was at it: {what}");
                Ended::Uncertain(Failure { code: "Panic".into(), message })
            })
        });
        self.operations.start(operation, work)
    }

    pub fn record(&self, operation: &Operation) -> Option<Record> {
        self.operations.record(operation)
    }

    /// The records of a volume's operations.
    pub fn of_volume(&self, volume: &UniqueVolumeName) -> BTreeMap<VolumeOperation, Record> {
        let first = Operation::Volume(VolumeOperation::on(volume, OperationName::Attach));
        let belongs = |operation: &Operation| matches!(operation, Operation::Volume(of) if of.volume == *volume);
        let records = self.operations.records_from(&first, belongs).into_iter();
        let of_volume = records.filter_map(|(operation, record)| match operation {
            Operation::Volume(operation) => Some((operation, record)),
            Operation::Greet(_) | Operation::Notify(_) | Operation::Refresh(_) => None,
        });
        of_volume.collect()
    }

    /// Whether something is being done to the volume.
    pub fn is_pending(&self, volume: &UniqueVolumeName) -> bool {
        self.of_volume(volume).values().any(Record::is_running)
    }

    /// Drops the record of an operation that is over.
    pub fn forget(&self, operation: &Operation) {
        self.operations.forget(operation);
    }

    /// Drops what is over of a volume: whatever kept it from succeeding has changed.
    pub fn forget_volume(&self, volume: &UniqueVolumeName) {
        let operations = self.of_volume(volume).into_keys().map(Operation::Volume);
        operations.for_each(|operation| self.forget(&operation));
    }

    pub fn forget_where(&self, holds: impl Fn(&VolumeOperation) -> bool) {
        self.operations.forget_where(|operation| matches!(operation, Operation::Volume(operation) if holds(operation)));
    }

    /// Whether operations for a pod are over and still remembered.
    pub fn remembers_pod(&self, uid: &str) -> bool {
        let keys = self.operations.keys();
        let mut of_pod = keys.iter().filter(
            |operation| matches!(operation, Operation::Volume(operation) if operation.pod.as_deref() == Some(uid)),
        );
        of_pod.any(|operation| self.operations.record(operation).is_some_and(|record| !record.is_running()))
    }
}

#[cfg(test)]
mod tests;
