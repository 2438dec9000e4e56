//! The snapshotter as a controller: its state, its life, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tonic::Code;

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::group_controller_service_capability::rpc::Type as GroupCall;
use stowage_csi::v1::plugin_capability::service::Type as Service;
use stowage_csi::{Deadline, identity};
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::told::Told;
use stowage_runtime::{Context, Stop};

use crate::calls::{Calls, Operation, Operations};
use crate::decide::{Action, Decision, Why, decide};
use crate::options::Options;
use crate::snapshot::{Facts, Snapshot};
use crate::sort::Sort;
use crate::watches::{Caches, Key};

/// Who stops us does not wait for long, and the lease is still to be given back.
const LAST_WRITES: Duration = Duration::from_secs(5);

pub struct Controller {
    pub facts: Arc<Facts>,
    pub caches: Caches,
    pub calls: Calls,
    pub operations: Operations,
    pub recorder: Recorder,
    pub told: Told<Key>,
}

/// Makes and deletes snapshots until asked to stop.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    Driver::serve(context, &options.driver.clone(), |context, driver| run_with(context, driver, options)).await
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(engine::serve(context, options.driver.workers, async move |setup| {
        let groups = options.with_groups && has_groups(&setup.context, &driver, &options).await?;
        Controller::new(setup, &driver, groups, options)
    }))
}

async fn has_groups(context: &Context, driver: &Driver, options: &Options) -> Result<bool, Stop> {
    if !driver.plugin.contains(&Service::GroupControllerService) {
        return Ok(false);
    }
    let asked = identity::group_controller_capabilities(&driver.channel, Deadline(options.driver.timeout));
    match context.ask(&driver.name, "/csi.v1.GroupController/GroupControllerGetCapabilities", asked).await {
        Ok(capabilities) => Ok(capabilities.contains(&GroupCall::CreateDeleteGetVolumeGroupSnapshot)),
        Err(error) if error.code() == Some(Code::Unimplemented) => Ok(false),
        Err(error) => Err(Stop::Unable {
            reason: format!(
                "driver {:?} has the GroupController service but does not say what it can do: {error}; see the driver's log, or switch groups off with --feature-gates=CSIVolumeGroupSnapshot=false",
                driver.name
            ),
        }),
    }
}

impl Controller {
    pub fn new(setup: &Setup<Key>, driver: &Driver, groups: bool, options: Options) -> Result<Self, Stop> {
        if !driver.controller.contains(&Call::CreateDeleteSnapshot) {
            let reason = format!(
                "driver {:?} makes no snapshots (it lacks the capability CREATE_DELETE_SNAPSHOT); remove this sidecar, or use a driver that does",
                driver.name
            );
            return Err(Stop::Unable { reason });
        }
        let caches = Caches::new(&driver.name);
        let caller = driver.caller(setup.context.clone(), options.driver.timeout);
        let of_content = |operation: &Operation| [operation.subject.key.clone()];
        Ok(Self {
            calls: Calls::new(caller, caches.clone(), setup.queue.clone(), options.driver.workers),
            operations: setup.operations(options.driver.retry, of_content),
            recorder: setup.recorder(format!("csi-snapshotter {}", driver.name)),
            told: Told::default(),
            facts: Arc::new(Facts::of(driver, groups, options)),
            caches,
        })
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "snapshotter";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.caches.declare(&self.facts.options, watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        self.gather(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    /// What is recorded in the API is no doubt any more, and what was kept for a content goes with it.
    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, _now: Timestamp) {
        snapshot.abandoned.iter().for_each(|operation| self.operations.forget(operation));
        match &snapshot.case {
            Some(case) if decision.why == Why::Ready => self.forget(&case.subject()),
            Some(case) if case.content.handle().is_some() && !case.is_calling() => {
                self.calls.doubts.settle(&case.subject());
            }
            None => self.told.forget(key),
            Some(_) => {}
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(key, action).await
    }

    fn queue_name(key: &Key) -> &'static str {
        match key.sort {
            Sort::Snapshot => "csi-snapshotter-content",
            Sort::Group => "csi-snapshotter-groupsnapshotcontent",
        }
    }

    fn is_work(action: &Action) -> bool {
        !matches!(action, Action::Tell { .. })
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }

    async fn end(&self) {
        if tokio::time::timeout(LAST_WRITES, self.mark_doubts()).await.is_err() {
            tracing::warn!("creations in doubt are not marked as such: no answer within {} s", LAST_WRITES.as_secs());
        }
    }
}
