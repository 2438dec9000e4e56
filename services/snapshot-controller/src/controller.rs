//! The snapshot controller as a controller: its state, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::object::ObjectId;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::View;
use stowage_runtime::engine::{self, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::{Context, Stop};

use crate::decide::{self, Action, Decision, Why, decide};
use crate::definitions;
use crate::memory::Memory;
use crate::metrics::{Finished, Metrics, Subject};
use crate::snapshot::{Group, Policy, Single, Snapshot, gather};
use crate::watches::{Caches, Extent, Key};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whether contents tell the mode of the volume they were made of.
    pub prevent_volume_mode_conversion: bool,
    /// Whether contents tell the node that their volume is bound to.
    pub distributed_snapshotting: bool,
    pub group_snapshots: bool,
    /// Objects worked on at the same time.
    pub parallel: usize,
    /// Between failed writes of one object.
    pub retry: Backoff,
    /// How long the definitions of the snapshot kinds are waited for; without it until they come.
    pub definitions_within: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prevent_volume_mode_conversion: true,
            distributed_snapshotting: false,
            group_snapshots: true,
            parallel: 40,
            retry: Backoff::DRIVER,
            definitions_within: None,
        }
    }
}

pub(crate) struct Controller {
    pub(crate) context: Context,
    pub(crate) queue: Queue<Key>,
    pub(crate) caches: Caches,
    pub(crate) memory: Memory,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
    policy: Policy,
    extent: Extent,
}

/// Runs the controller until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    definitions::wait(&context, options.definitions_within).await?;
    let make = async |setup: &Setup<Key>| Ok(Controller::new(setup, &options));
    engine::serve_with(context, options.parallel, options.retry, make).await
}

impl Controller {
    pub(crate) fn new(setup: &Setup<Key>, options: &Options) -> Self {
        let context = setup.context.clone();
        Self {
            queue: setup.queue.clone(),
            caches: Caches::new(),
            memory: Memory::default(),
            recorder: setup.recorder("snapshot-controller"),
            metrics: context.metrics.own(Metrics::register),
            policy: Policy {
                keep_volume_mode: options.prevent_volume_mode_conversion,
                distributed: options.distributed_snapshotting,
                groups: options.group_snapshots,
            },
            extent: Extent { nodes: options.distributed_snapshotting, groups: options.group_snapshots },
            context,
        }
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "snapshot-controller";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.caches.declare(watches, self.extent);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, now: Timestamp) -> Snapshot {
        gather(&self.caches, &self.memory, self.policy, key, now)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, now: Timestamp) {
        match snapshot {
            Snapshot::Nothing => {
                self.memory.told.forget(key);
                self.metrics.gone(key, now);
            }
            Snapshot::Single(single) => {
                if matches!(decision.why, Why::Ready) {
                    self.memory.told.forget(key);
                }
                let (subject, operations) = operations(single);
                self.metrics.begin(key, subject, &operations, now);
            }
            Snapshot::Group(group) => {
                if matches!(decision.why, Why::Ready) {
                    self.memory.told.forget(key);
                }
                let (subject, operations) = group_operations(group);
                self.metrics.begin(key, subject, &operations, now);
            }
            Snapshot::Unknown | Snapshot::Content(_) | Snapshot::Claim(_) | Snapshot::GroupContent(_) => {}
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), engine::Error> {
        self.carry_out(key, action).await
    }

    fn failed(&self, key: &Key, errors: &[engine::Error]) {
        errors.iter().for_each(|error| self.tell_failure(key, error));
    }

    fn touches(&self, _key: &Key, actions: &[Action]) -> Vec<ObjectId> {
        decide::touches(actions)
    }

    fn queue_name(key: &Key) -> &'static str {
        match key {
            Key::Snapshot(_) => "snapshot-controller-snapshot",
            Key::Content(_) => "snapshot-controller-content",
            Key::Claim(_) => "snapshot-controller-claim",
            Key::Group(_) => "snapshot-controller-group-snapshot",
            Key::GroupContent(_) => "snapshot-controller-group-content",
        }
    }

    fn is_work(action: &Action) -> bool {
        !matches!(action, Action::Tell { .. })
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

/// What is being done for a VolumeSnapshot, as far as it is timed.
fn operations(single: &Single) -> (Subject, Vec<Finished>) {
    let snapshot = &single.snapshot;
    let driver = match &single.content {
        View::Known(content) => Some(content.spec.driver.clone()),
        View::Absent | View::Unknown => single.class.as_ref().map(|class| class.driver.clone()),
    };
    let subject = Subject {
        uid: snapshot.meta.uid.clone(),
        driver: driver.unwrap_or_default(),
        is_pre_provisioned: snapshot.spec.source.volume_snapshot_content_name.is_some(),
    };
    let is_made = snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    (subject, under_way(snapshot.meta.is_deleting(), snapshot.is_ready(), is_made))
}

/// The same for a group.
fn group_operations(group: &Group) -> (Subject, Vec<Finished>) {
    let object = &group.group;
    let driver = match &group.content {
        View::Known(content) => Some(content.spec.driver.clone()),
        View::Absent | View::Unknown => group.class.as_ref().map(|class| class.driver.clone()),
    };
    let subject = Subject {
        uid: object.meta.uid.clone(),
        driver: driver.unwrap_or_default(),
        is_pre_provisioned: object.spec.source.volume_group_snapshot_content_name.is_some(),
    };
    let is_made = object.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    (subject, under_way(object.meta.is_deleting(), object.is_ready(), is_made))
}

fn under_way(is_deleting: bool, is_ready: bool, is_made: bool) -> Vec<Finished> {
    match (is_deleting, is_ready, is_made) {
        (true, _, _) => vec![Finished::Deleted],
        (false, true, _) => Vec::new(),
        (false, false, true) => vec![Finished::Ready],
        (false, false, false) => vec![Finished::Created, Finished::Ready],
    }
}

#[cfg(test)]
mod tests;
