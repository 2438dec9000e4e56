//! The attacher as a controller: its state, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use stowage_runtime::backoff::Backoff;
use stowage_runtime::caller::Caller;
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Reserved, Setup, Watches};
use stowage_runtime::{Context, Stop};

use crate::calls::{Operation, Operations};
use crate::decide::{Action, Decision, Why, decide};
use crate::snapshot::{Facts, Snapshot};
use crate::watches::{Caches, Key};

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
    pub(crate) facts: Arc<Facts>,
    pub(crate) caches: Caches,
    pub(crate) operations: Operations,
    pub(crate) caller: Caller,
}

/// Attaches and detaches until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    let met = Driver::meet(&context, &options.csi_address, options.timeout);
    match context.unless_shutdown(met).await {
        Some(driver) => run_with(context, driver?, options).await,
        None => Ok(()),
    }
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub(crate) fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(engine::serve(context, options.workers, async move |setup| Ok(Controller::new(setup, &driver, &options))))
}

impl Controller {
    pub(crate) fn new(setup: &Setup<Key>, driver: &Driver, options: &Options) -> Self {
        Self {
            facts: Arc::new(Facts::of(driver, options)),
            caches: Caches::new(driver.name.clone()),
            operations: setup
                .operations(options.retry, |operation: &Operation| [Key::Handle(operation.handle.clone())]),
            caller: driver.caller(setup.context.clone(), options.timeout),
        }
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "attacher";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.caches.declare(watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        self.gather(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    fn note(&self, _key: &Key, snapshot: &Snapshot, _decision: &Decision, _now: Timestamp) {
        // Their attachments went while the calls were under way, and nobody asks for them any more.
        snapshot.abandoned.iter().for_each(|operation| self.operations.forget(operation));
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), engine::Error> {
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
