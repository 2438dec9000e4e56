//! The loop: the driver first, then what is watched, then decisions.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::VolumeAttachment;
use stowage_model::object::Projection;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::{self, Reserved};
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::{Spawner, Tasks};
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

use crate::caches::{Caches, Key};
use crate::call::{Caller, Calls, Subject};
use crate::decide::{Action, Decision, Why, decide};
use crate::driver::{self, Driver, Facts};
use crate::error::Error;
use crate::snapshot::gather;
use crate::wake;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the driver listens.
    pub csi_address: String,
    /// How long one call may take.
    pub timeout: Duration,
    /// Between failed calls for one attachment.
    pub retry: Backoff,
    /// Volumes worked on at the same time.
    pub workers: usize,
    /// File system type of volumes that name none.
    pub default_fs_type: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            csi_address: "/run/csi/socket".to_owned(),
            timeout: Duration::from_secs(15),
            retry: Backoff::DRIVER,
            workers: 10,
            default_fs_type: String::new(),
        }
    }
}

pub(crate) struct Controller {
    pub(crate) caches: Arc<Caches>,
    pub(crate) calls: Calls,
    pub(crate) caller: Caller,
    pub(crate) facts: Facts,
}

impl Controller {
    pub(crate) fn context(&self) -> &Context {
        &self.caller.context
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Action = Action;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "attacher";

    fn decide(&self, key: &Key, now: Timestamp, _reserved: &Reserved) -> Decision {
        decide(&gather(&self.caches, &self.calls, key), &self.facts, now)
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        // Without a volume there is no handle, and no call is ever planned.
        let handle = match &key {
            Key::Handle(handle) => handle.as_str(),
            Key::Attachment(_) => "",
        };
        self.carry_out(handle, action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

/// Runs the attacher until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let spawner = tasks.spawner();
    let synced = context.readiness.handle("attacher caches");
    let work = async {
        let (controller, queue) = tokio::select! {
            biased;
            () = context.shutdown.requested() => return Ok(()),
            prepared = prepare(&context, &options, &spawner) => prepared?,
        };
        synced.ready();
        engine::run(&context, controller, queue, options.workers).await
    };
    context.supervise(tasks, work).await
}

async fn prepare(
    context: &Context,
    options: &Options,
    spawner: &Spawner,
) -> Result<(Arc<Controller>, Queue<Key>), Stop> {
    let Driver { channel, facts } = driver::connect(context, options).await?;
    tracing::info!(driver = facts.name, attaches = facts.attaches, "found the driver");
    let queue = Queue::new(Backoff::QUEUE);
    let caches = Arc::new(Caches::new(facts.name.clone()));
    wake::subscribe(&caches, &queue);
    let ended = queue.clone();
    let calls =
        Operations::new(spawner.clone(), Arc::clone(&context.clock), options.retry, move |subject: &Subject| {
            ended.add(Key::Handle(subject.handle.clone()));
        });
    forget_with(&caches.attachments, &calls);
    feed(context, &caches.csi_nodes, spawner);
    feed(context, &caches.volumes, spawner);
    feed(context, &caches.attachments, spawner);
    caches.csi_nodes.synced().await;
    caches.volumes.synced().await;
    caches.attachments.synced().await;
    let caller = Caller { context: context.clone(), channel, driver: facts.name.clone(), timeout: options.timeout };
    Ok((Arc::new(Controller { caches, calls, caller, facts }), queue))
}

/// Records of an attachment that is gone are of no use to anybody.
fn forget_with(attachments: &Cache<VolumeAttachment>, calls: &Calls) {
    let calls = calls.clone();
    attachments.on_change(move |change| {
        let Some(gone) = change.before.filter(|_| change.after.is_none()) else { return };
        for subject in calls.keys().iter().filter(|subject| subject.attachment_uid == gone.meta.uid) {
            calls.forget(subject);
        }
    });
}

fn feed<T: Projection>(context: &Context, cache: &Cache<T>, spawner: &Spawner) {
    spawner.spawn(watch::feed(context.api.clone(), cache.clone(), Scope::all(), context.random.clone()));
}
