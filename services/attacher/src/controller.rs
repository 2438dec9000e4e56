//! The attacher as a controller: its state, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use stowage_runtime::caller::Caller;
use stowage_runtime::driver::{self, Driver};
use stowage_runtime::engine::{self, Reserved, Setup, Watches};
use stowage_runtime::{Context, Stop};

use crate::calls::{Operation, Operations};
use crate::decide::{Action, Decision, Why, decide};
use crate::snapshot::{Facts, Snapshot};
use crate::watches::{Caches, Key};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub driver: driver::Options,
    /// File system type of volumes that name none.
    pub default_fs_type: String,
}

impl Default for Options {
    fn default() -> Self {
        let driver = driver::Options { timeout: Duration::from_secs(15), ..driver::Options::default() };
        Self { driver, default_fs_type: String::new() }
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
    Driver::serve(context, &options.driver.clone(), |context, driver| run_with(context, driver, options)).await
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub(crate) fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(engine::serve(context, options.driver.workers, async move |setup| {
        Ok(Controller::new(setup, &driver, &options))
    }))
}

impl Controller {
    pub(crate) fn new(setup: &Setup<Key>, driver: &Driver, options: &Options) -> Self {
        Self {
            facts: Arc::new(Facts::of(driver, options)),
            caches: Caches::new(driver.name.clone()),
            operations: setup.operations(options.driver.retry, |call: &Operation| [Key::Handle(call.handle.clone())]),
            caller: driver.caller(setup.context.clone(), options.driver.timeout),
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
        self.carry_out(key.handle(), action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}
