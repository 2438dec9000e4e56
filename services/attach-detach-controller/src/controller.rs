//! The attach-detach controller as a controller: its state, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_runtime::engine::{self, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::{Context, Stop};

use crate::decide::{Action, Decision, Why, decide};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::report::Reports;
use crate::snapshot::{Policy, Snapshot, gather};
use crate::watches::{Caches, Key};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Take a volume from a node that was not ready for `max_unmount_wait` even if it says the volume is in use.
    pub force_detach_on_timeout: bool,
    pub max_unmount_wait: Duration,
    /// Look at every volume this often besides what events ask for.
    pub reconcile_sync_period: Option<Duration>,
    /// Volumes worked on at the same time.
    pub parallel: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            force_detach_on_timeout: true,
            max_unmount_wait: Duration::from_secs(360),
            reconcile_sync_period: None,
            parallel: 64,
        }
    }
}

pub(crate) struct Controller {
    pub(crate) context: Context,
    pub(crate) caches: Caches,
    pub(crate) memory: Memory,
    pub(crate) reports: Reports,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
    policy: Policy,
}

/// Runs the controller until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    engine::serve(context, options.parallel, async |setup| Ok(Controller::new(setup, &options))).await
}

impl Controller {
    fn new(setup: &Setup<Key>, options: &Options) -> Self {
        let context = setup.context.clone();
        let caches = Caches::new();
        if let Some(period) = options.reconcile_sync_period {
            setup.spawner.spawn(look_at_everything(caches.clone(), setup.queue.clone(), period));
        }
        Self {
            reports: Reports::new(context.api.clone(), caches.nodes.clone(), setup.spawner.clone()),
            recorder: setup.recorder("attachdetach-controller"),
            memory: Memory::default(),
            metrics: context.metrics.own(Metrics::register),
            policy: Policy {
                force_detach_on_timeout: options.force_detach_on_timeout,
                max_unmount_wait: options.max_unmount_wait,
            },
            caches,
            context,
        }
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "attach-detach-controller";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.caches.declare(watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, now: Timestamp) -> Snapshot {
        gather(&self.caches, &self.memory, self.policy, key, now)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    fn note(&self, _key: &Key, snapshot: &Snapshot, _decision: &Decision, _now: Timestamp) {
        self.memory.note(snapshot);
    }

    async fn apply(self: Arc<Self>, _key: Key, action: Action) -> Result<(), engine::Error> {
        self.carry_out(action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

async fn look_at_everything(caches: Caches, queue: Queue<Key>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        caches.keys().into_iter().for_each(|key| queue.add(key));
    }
}

#[cfg(test)]
mod tests;
