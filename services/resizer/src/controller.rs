//! The resizer as a controller: its state, its life, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, TryFutureExt};
use jiff::Timestamp;
use tonic::Code;

use stowage_csi::v1::NodeGetInfoRequest;
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::node_service_capability::rpc::Type as NodeCall;
use stowage_csi::v1::plugin_capability::service::Type as Service;
use stowage_csi::{Deadline, identity};
use stowage_model::object::Key;
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::told::Told;
use stowage_runtime::{Context, Stop};

use crate::calls::{Calls, Kind, Operation, Operations};
use crate::decide::{Action, Decision, Reason, Why, decide};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::snapshot::{Expansion, Facts, Snapshot, Topic};
use crate::users::Watching;
use crate::watches::{Caches, Place};

pub struct Controller {
    pub facts: Arc<Facts>,
    pub caches: Caches,
    pub calls: Calls,
    pub operations: Operations,
    pub recorder: Recorder,
    pub told: Told<Key, Topic>,
    pub watching: Watching,
}

/// Expands and modifies until asked to stop.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    Driver::serve(context, &options.driver.clone(), |context, driver| run_with(context, driver, options)).await
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(async move {
        // The engine announces it anew, once the driver has answered.
        context.readiness.handle(<Controller as engine::Controller>::NAME);
        let asked = context.unless_shutdown(nodes(&context, &driver, &options)).await;
        let Some(nodes) = asked.transpose()? else { return Ok(()) };
        let changed = changed(&context, &driver, &options, &nodes);
        // Driver calls have turns of their own; what is written beside them need not wait for those.
        let parallel = options.driver.workers.saturating_mul(4);
        let retry = options.driver.retry;
        let served = engine::serve_with(context, parallel, retry, async move |setup| {
            Controller::new(setup, &driver, nodes.expansion, nodes.place, options)
        });
        Driver::unless_changed(changed, served).await
    })
}

/// What the driver says of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Nodes {
    expansion: Expansion,
    /// Where this one is, in node deployment.
    place: Option<Place>,
}

async fn nodes(context: &Context, driver: &Driver, options: &Options) -> Result<Nodes, Stop> {
    if !driver.plugin.contains(&Service::ControllerService) {
        let reason = format!(
            "driver {:?} has no Controller service (it lacks the capability CONTROLLER_SERVICE); remove this sidecar, or \
             name the socket of the driver's controller with --csi-address",
            driver.name
        );
        return Err(Stop::Unable { reason });
    }
    ask(context, driver, options).await.map_err(|error| Stop::Unable {
        reason: format!(
            "driver {:?} does not say what its nodes can do, or where this one is: {error}; check that it serves the \
             Node service at --csi-address, and see its log",
            driver.name
        ),
    })
}

/// Resolves when the driver comes back and says something else of its nodes.
fn changed(context: &Context, driver: &Driver, options: &Options, nodes: &Nodes) -> BoxFuture<'static, Stop> {
    if nodes.expansion == Expansion::Controller && nodes.place.is_none() {
        return Box::pin(std::future::pending());
    }
    let known = (context.clone(), driver.clone(), options.clone(), nodes.clone());
    driver.changes("way to expand volumes or place of this node", move || {
        let (context, driver, options, nodes) = known.clone();
        Box::pin(async move { Ok(ask(&context, &driver, &options).await? == nodes) })
    })
}

async fn ask(context: &Context, driver: &Driver, options: &Options) -> Result<Nodes, identity::Error> {
    let expansion = expansion(context, driver, options).await?;
    let place = match &options.node {
        Some(node) => Some(place(context, driver, node, options).await?),
        None => None,
    };
    Ok(Nodes { expansion, place })
}

/// Who expands the driver's volumes. What nodes can do is asked on the same socket, as the original does.
async fn expansion(context: &Context, driver: &Driver, options: &Options) -> Result<Expansion, identity::Error> {
    if driver.controller.contains(&Call::ExpandVolume) {
        return Ok(Expansion::Controller);
    }
    let asked = identity::node_capabilities(&driver.channel, Deadline(options.driver.timeout));
    match context.ask(&driver.name, "/csi.v1.Node/NodeGetCapabilities", asked).await {
        Ok(calls) if calls.contains(&NodeCall::ExpandVolume) => Ok(Expansion::Node),
        Ok(_) => Ok(Expansion::Nobody),
        // A controller's socket need not serve the Node service.
        Err(error) if error.code() == Some(Code::Unimplemented) => Ok(Expansion::Nobody),
        Err(error) => Err(error),
    }
}

/// Where the driver says that this node is.
async fn place(context: &Context, driver: &Driver, node: &str, options: &Options) -> Result<Place, identity::Error> {
    let mut client = NodeClient::new(driver.channel.clone());
    let asked = Deadline(options.driver.timeout).call(NodeGetInfoRequest {}, |request| client.node_get_info(request));
    let asked = asked.map_err(|source| identity::Error::CallDriver { rpc: "NodeGetInfo", source });
    let info = context.ask(&driver.name, "/csi.v1.Node/NodeGetInfo", asked).await?;
    Ok(Place {
        node: node.to_owned(),
        segments: info.accessible_topology.map(|place| place.segments).unwrap_or_default(),
    })
}

impl Controller {
    pub fn new(
        setup: &Setup<Key>,
        driver: &Driver,
        expansion: Expansion,
        place: Option<Place>,
        options: Options,
    ) -> Result<Self, Stop> {
        let can_modify = driver.controller.contains(&Call::ModifyVolume);
        let modifies = can_modify && options.gates.volume_attributes_class;
        if expansion == Expansion::Nobody && !can_modify {
            let reason = format!(
                "driver {:?} neither expands nor modifies volumes (it lacks the capabilities EXPAND_VOLUME and MODIFY_VOLUME); \
                 remove this sidecar, or use a driver that does",
                driver.name
            );
            return Err(Stop::Unable { reason });
        }
        if expansion == Expansion::Nobody && !modifies {
            tracing::warn!(
                driver = driver.name,
                "the driver can only modify volumes, and the gate VolumeAttributesClass is off: there is nothing to do; \
                 remove VolumeAttributesClass=false from --feature-gates, or this sidecar"
            );
        }
        let caller = driver.caller(setup.context.clone(), options.driver.timeout);
        let calls = Calls::new(caller, options.driver.workers);
        let metrics = setup.context.metrics.own(Metrics::register);
        for (call, turns) in [("expand", &calls.expanding), ("modify", &calls.modifying)] {
            setup.context.metrics.before_encoding(metrics.watch(call, turns));
        }
        Ok(Self {
            caches: Caches::new(driver.name.clone(), place),
            calls,
            operations: setup.operations(options.driver.retry, |operation: &Operation| [operation.claim.clone()]),
            recorder: setup.recorder(format!("external-resizer {}", driver.name)),
            told: Told::default(),
            watching: Watching::new(setup),
            facts: Arc::new(Facts {
                name: driver.name.clone(),
                expansion,
                modifies,
                calls: driver.controller.clone(),
                options,
            }),
        })
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "resizer";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.caches.declare(self.facts.modifies, watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        self.gather(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    /// What nobody asks for any more is forgotten.
    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, _now: Timestamp) {
        snapshot.abandoned.iter().for_each(|operation| self.operations.forget(operation));
        let Some(case) = &snapshot.case else { return };
        let Why { resize, modify } = &decision.why;
        for (kind, reason) in [(Kind::Expand, resize), (Kind::Modify, modify)] {
            if matches!(reason, Reason::Settled | Reason::NodesTurn | Reason::Gone) {
                self.forget_calls(&case.claim.meta, |aim| aim.kind() == kind);
                self.told.retain(key, |topic| topic.kind() != kind);
            }
        }
        if !case.waits_for_users() || matches!(resize, Reason::Settled | Reason::NodesTurn | Reason::Gone) {
            self.watching.end(key);
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(key, action).await
    }

    fn queue_name(_key: &Key) -> &'static str {
        "-pvc"
    }

    fn queue_prefix(&self) -> String {
        self.facts.name.clone()
    }

    fn is_work(action: &Action) -> bool {
        !matches!(action, Action::Tell { .. })
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }

    fn resync(&self) -> Duration {
        self.facts.options.resync
    }
}
