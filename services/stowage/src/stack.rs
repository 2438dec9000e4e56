//! The whole stack in one process: embedded API server, controllers, sidecars, driver and nodes.

mod introduced;
mod starts;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tokio_util::task::AbortOnDropHandle;

use stowage_csi::server::SocketMode;
use stowage_csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use stowage_csi::v1::group_controller_service_capability::rpc::Type as GroupRpc;
use stowage_csi::v1::node_service_capability::rpc::Type as NodeRpc;
use stowage_csi::{Connector, Deadline, Endpoint, UnixConnector, UnloggedConnector, identity};
use stowage_model::object::{Key, kinds};
use stowage_model::{Node, annotations};
use stowage_mount::LinuxMounter;
use stowage_plugins::{Image, in_tree_with};
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::shutdown::Shutdown;
use stowage_runtime::{Context, Stop};
use stowage_services::{Place, assembled};

use self::starts::OnNode;
use crate::calls::{Calls, Timing};
use crate::clean;
use crate::objects;
use crate::root::Root;
use crate::run;
use crate::supervisor::Supervisor;

/// The one pool of our driver in a stack.
pub const POOL: &str = "default";

/// The class every stack starts with.
pub const CLASS: &str = "stowage";

/// How long a driver may take to answer for the first time.
const DRIVER_START: Duration = Duration::from_secs(30);

/// How long the nodes may take to unmount everything at the end.
const DRAIN: Duration = Duration::from_secs(60);

/// What a stack is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the API server listens.
    pub listen: SocketAddr,
    /// Where the kubeconfig goes, if not into the root.
    pub kubeconfig_out: Option<PathBuf>,
    /// The nodes' names.
    pub nodes: Vec<String>,
    /// Another driver instead of ours.
    pub csi_endpoint: Option<Endpoint>,
    /// Whether objects outlive the stack.
    pub durable: bool,
    /// Whether every driver call is kept in memory, for a stack that lives for minutes.
    pub remembers_calls: bool,
}

/// Whether volumes of the driver grow, by its controller or on their nodes.
fn expands(controller: &identity::ControllerCapabilities, node: &identity::NodeCapabilities) -> bool {
    controller.contains(&ControllerRpc::ExpandVolume) || node.contains(&NodeRpc::ExpandVolume)
}

/// The way to the drivers. Our own one logs its calls itself.
fn connector(is_own: bool, calls: Option<&Calls>) -> Arc<dyn Connector> {
    let inner: Arc<dyn Connector> = if is_own { Arc::new(UnloggedConnector) } else { Arc::new(UnixConnector) };
    match calls {
        Some(calls) => Arc::new(Timing::new(inner, calls.clone())),
        None => inner,
    }
}

/// A running stack. Stop it with [`Stack::stop`]; dropping it is like killing it.
pub struct Stack {
    /// The API, in process.
    pub api: Api,
    /// Every driver call so far, where they are remembered.
    pub calls: Calls,
    /// Where the API server listens.
    pub address: SocketAddr,
    /// For kubectl.
    pub kubeconfig: PathBuf,
    /// The driver's name.
    pub driver: String,
    /// Whether it makes snapshots.
    snapshots: bool,
    /// Whether it expands or modifies volumes.
    changes: bool,
    root: Root,
    nodes: Vec<(String, volume_manager::Occupancy)>,
    context: Context,
    scheduling: Shutdown,
    working: Shutdown,
    driving: Shutdown,
    serving: Shutdown,
    scheduler: Supervisor,
    workers: Supervisor,
    drivers: Supervisor,
    server: AbortOnDropHandle<Result<(), apiserver::Error>>,
}

impl Stack {
    /// Starts everything; returns once the driver has answered and its objects exist.
    pub async fn start(root: Root, options: Options) -> anyhow::Result<Self> {
        if options.csi_endpoint.is_some() && options.nodes.len() > 1 {
            bail!(
                "--csi-endpoint and --nodes {}: one driver socket speaks for one node; use --nodes 1",
                options.nodes.len()
            );
        }
        let (other_nodes, swept) = clean::sweep_other_nodes(&root, &options.nodes).await?;
        if !swept.mounts.is_empty() {
            let mounts = swept.mounts.len();
            tracing::warn!(nodes = ?other_nodes, mounts, "removed what nodes of an earlier run had mounted");
        }
        let kubeconfig = options.kubeconfig_out.clone().unwrap_or_else(|| root.kubeconfig());
        let served = apiserver::Options {
            listen: options.listen,
            data_dir: options.durable.then(|| root.api()),
            kubeconfig_out: Some(kubeconfig.clone()),
        };
        // As in a cluster: what runs in a pod can speak to the API.
        let access = apiserver::Access { mount_tokens: true, ..Default::default() };
        let mut bound = apiserver::bind_with(served, access).await?;
        bound.announce()?;
        let client = kube::Client::new(bound.server.service(), "default");
        let address = bound.address;
        let serving = Shutdown::new();
        let server = AbortOnDropHandle::new(tokio::spawn({
            let serving = serving.clone();
            bound.run(async move { serving.requested().await })
        }));

        let calls = Calls::default();
        let connector = connector(options.csi_endpoint.is_none(), options.remembers_calls.then_some(&calls));
        let context = Context::real(client, connector, "stowage");
        let mut stack = Self {
            api: context.api.clone(),
            calls,
            address,
            kubeconfig,
            driver: String::new(),
            snapshots: false,
            changes: false,
            root,
            nodes: Vec::new(),
            context,
            scheduling: Shutdown::new(),
            working: Shutdown::new(),
            driving: Shutdown::new(),
            serving,
            scheduler: Supervisor::default(),
            workers: Supervisor::default(),
            drivers: Supervisor::default(),
            server,
        };
        let endpoint = match &options.csi_endpoint {
            Some(endpoint) => endpoint.clone(),
            None => stack.start_driver()?,
        };
        stack.introduce(&endpoint, options.csi_endpoint.is_none()).await?;
        for node in &other_nodes {
            stack.remove_node(node).await?;
        }
        stack.start_controllers(&endpoint)?;
        for node in options.nodes {
            stack.start_node(&node, options.csi_endpoint.as_ref())?;
        }
        Ok(stack)
    }

    /// The directory the stack lives in.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Runs the controller part of our driver and says where it listens.
    fn start_driver(&mut self) -> anyhow::Result<Endpoint> {
        let pool = self.root.pool();
        let endpoint = Endpoint::at(self.root.controller_socket())?;
        if !pool.try_exists().with_context(|| format!("cannot look at {}", pool.display()))? {
            // Whoever removed it wants a new one; the drivers' notes of the old one would call that a loss.
            let _ = std::fs::remove_dir_all(self.root.driver_state());
        }
        std::fs::create_dir_all(&pool).with_context(|| format!("cannot create {}", pool.display()))?;
        self.keep_driver(endpoint.clone(), "controller".to_owned(), node_plugin::Mode::Controller);
        Ok(endpoint)
    }

    fn keep_driver(&mut self, endpoint: Endpoint, node: String, mode: node_plugin::Mode) {
        let options = node_plugin::Options {
            kind: node_plugin::Kind::Shared,
            driver_name: node_plugin::args::DRIVER_NAME.to_owned(),
            endpoint,
            socket_mode: SocketMode::default(),
            target_roots: vec![self.root.node(&node)],
            state_dir: self.root.driver_state().join(&node),
            node_id: node,
            pools: vec![node_plugin::args::PoolOption { name: POOL.to_owned(), path: self.root.pool() }],
            mode,
            prepare_pools: true,
            overcommit: 1.0,
            max_volumes: 0,
        };
        let shutdown = self.driving.clone();
        self.drivers.keep("node-plugin", self.driving.clone(), move || {
            let (options, shutdown) = (options.clone(), shutdown.clone());
            async move {
                let stopped = Box::pin(async move { shutdown.requested().await });
                let served = node_plugin::run(options, Arc::new(LinuxMounter), stopped).await;
                served.map_err(|error| Stop::Unable { reason: error.to_string() })
            }
        });
    }

    /// Learns who the driver is and makes the objects it needs.
    async fn introduce(&mut self, endpoint: &Endpoint, is_own: bool) -> anyhow::Result<()> {
        let channel = UnixConnector.connect(&endpoint.to_string())?;
        let deadline = Deadline(Duration::from_secs(5));
        let no_driver = || {
            format!("no CSI driver answers on {endpoint}; start it first, or check the path given with --csi-endpoint")
        };
        identity::wait_until_ready(&channel, deadline, DRIVER_START).await.with_context(no_driver)?;
        self.driver = identity::plugin_name(&channel, deadline).await.with_context(no_driver)?;
        let capabilities = identity::controller_capabilities(&channel, deadline).await.with_context(no_driver)?;
        let attach = capabilities.contains(&ControllerRpc::PublishUnpublishVolume);
        // The provisioner publishes what room there is, and pods are placed by it.
        let capacity = capabilities.contains(&ControllerRpc::GetCapacity);
        let object = if is_own { objects::own_csi_driver } else { objects::csi_driver };
        self.snapshots = capabilities.contains(&ControllerRpc::CreateDeleteSnapshot);
        let on_nodes = identity::node_capabilities(&channel, deadline).await.unwrap_or_default();
        let expands = expands(&capabilities, &on_nodes);
        self.changes = expands || capabilities.contains(&ControllerRpc::ModifyVolume);
        let class = objects::class(CLASS, &self.driver, true, "Immediate", expands);
        for (kind, object) in
            [(kinds::CSI_DRIVER, object(&self.driver, attach, capacity)), (kinds::STORAGE_CLASS, class)]
        {
            introduced::create(&self.api, kind, object).await?;
        }
        let groups = identity::group_controller_capabilities(&channel, deadline).await;
        let groups = groups.is_ok_and(|groups| groups.contains(&GroupRpc::CreateDeleteGetVolumeGroupSnapshot));
        self.introduce_snapshots(groups).await
    }

    /// The kinds of snapshots, which anyone may use with another driver too, and the classes of ours.
    async fn introduce_snapshots(&self, groups: bool) -> anyhow::Result<()> {
        for definition in stowage_crds::definitions() {
            introduced::create(&self.api, kinds::DEFINITION, definition.object()).await?;
        }
        if self.snapshots {
            let class = objects::snapshot_class(CLASS, &self.driver, annotations::DEFAULT_SNAPSHOT_CLASS);
            introduced::create(&self.api, kinds::VOLUME_SNAPSHOT_CLASS, class).await?;
        }
        if groups {
            let class = objects::snapshot_class(CLASS, &self.driver, annotations::DEFAULT_GROUP_SNAPSHOT_CLASS);
            introduced::create(&self.api, kinds::VOLUME_GROUP_SNAPSHOT_CLASS, class).await?;
        }
        Ok(())
    }

    /// Deletes a Node that nobody runs any more, so that its pods are collected and its volumes detached.
    async fn remove_node(&self, node: &str) -> anyhow::Result<()> {
        let nodes = Cache::<Node>::new();
        if let Some(found) = self.api.refresh(&nodes, &Key::cluster(node)).await? {
            self.api.delete(&nodes, &Target::any_version(&found.meta), Deletion::default()).await?;
            tracing::warn!(node, "deleted the Node of an earlier run");
        }
        Ok(())
    }

    /// A service's own view of the world, stopped by `shutdown`.
    fn service(&self, shutdown: &Shutdown) -> Context {
        let mut context = self.context.clone();
        context.shutdown = shutdown.clone();
        context
    }

    fn start_controllers(&mut self, endpoint: &Endpoint) -> anyhow::Result<()> {
        for service in assembled(&[Place::Cluster, Place::Sidecar]) {
            if service == "snapshotter" && !self.snapshots {
                tracing::info!(driver = %self.driver, "the driver makes no snapshots: {service} is not started");
                continue;
            }
            if service == "resizer" && !self.changes {
                tracing::info!(driver = %self.driver, "the driver neither expands nor modifies volumes: {service} is not started");
                continue;
            }
            // Stopped before all others: nothing may be placed on a node that is being emptied.
            let is_first = service == "scheduler";
            let shutdown = if is_first { self.scheduling.clone() } else { self.working.clone() };
            let start = starts::of_controller(service, self.service(&shutdown), endpoint.to_string());
            let start = start.with_context(|| format!("nothing in this stack starts {service}"))?;
            let supervisor = if is_first { &mut self.scheduler } else { &mut self.workers };
            supervisor.keep(service, shutdown, start);
        }
        Ok(())
    }

    fn start_node(&mut self, node: &str, foreign: Option<&Endpoint>) -> anyhow::Result<()> {
        let (root, registry) = (self.root.node(node), self.root.registry(node));
        std::fs::create_dir_all(&registry).with_context(|| format!("cannot create {}", registry.display()))?;
        let endpoint = match foreign {
            Some(endpoint) => endpoint.clone(),
            None => {
                let endpoint = Endpoint::at(self.root.node_socket(node))?;
                self.keep_driver(endpoint.clone(), node.to_owned(), node_plugin::Mode::Node);
                endpoint
            }
        };
        let machine = volume_manager::LinuxMachine::new(&root, Vec::new());
        let socket = Some(root.join(run::SOCKET));
        let options = volume_manager::Options {
            node_name: node.to_owned(),
            root,
            socket,
            machine,
            devices: Some(Arc::new(LinuxMounter)),
            plugins: in_tree_with(Image::from(Some(self.root.images()))),
            volume_plugin_dir: Some(self.root.volume_plugins()),
            ..Default::default()
        };
        self.nodes.push((node.to_owned(), options.occupancy.clone()));
        let on_node = OnNode { volume_manager: options, registry, endpoint };
        for service in assembled(&[Place::NodeSidecar, Place::Node]) {
            let start = starts::of_node(service, self.service(&self.working), on_node.clone());
            let start = start.with_context(|| format!("nothing in this stack starts {service} on a node"))?;
            self.workers.keep(service, self.working.clone(), start);
        }
        Ok(())
    }

    /// Waits for what must not happen while the stack runs: without its API server nothing goes on.
    pub async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.server).await {
            Ok(Ok(())) => anyhow!("the API server ended by itself"),
            Ok(Err(error)) => anyhow::Error::new(error).context("the API server ended"),
            Err(error) => anyhow::Error::new(error).context("the API server's task failed"),
        }
    }

    /// Drains the nodes and stops everything, the API server last.
    pub async fn stop(self) -> anyhow::Result<()> {
        // Nothing may be placed on a node that is being emptied.
        self.scheduling.trigger();
        self.scheduler.join().await;
        let drained = tokio::time::timeout(DRAIN, async {
            for (node, occupancy) in &self.nodes {
                volume_manager::drain(&self.context, node).await?;
                occupancy.empty().await;
            }
            Ok::<(), Stop>(())
        });
        let drained = drained.await;
        self.working.trigger();
        self.workers.join().await;
        self.driving.trigger();
        self.drivers.join().await;
        self.serving.trigger();
        self.server.await.context("the API server's task failed")??;
        match drained {
            Ok(result) => Ok(result?),
            Err(_) => bail!(
                "the nodes were not empty after {} s; `stowage clean --root {}` removes what is left",
                DRAIN.as_secs(),
                self.root.path().display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class said so whatever the driver could, and a claim that was to grow waited for ever.
    #[test]
    fn a_class_lets_claims_grow_only_where_the_driver_expands() {
        let controller = |rpcs: &[ControllerRpc]| rpcs.iter().copied().collect();
        let node = |rpcs: &[NodeRpc]| rpcs.iter().copied().collect();
        let class = |controller, node| objects::class(CLASS, "d", true, "Immediate", expands(&controller, &node));
        let modifies = [ControllerRpc::CreateDeleteVolume, ControllerRpc::ModifyVolume];
        assert_eq!(class(controller(&modifies), node(&[]))["allowVolumeExpansion"], false);
        assert_eq!(class(controller(&[ControllerRpc::ExpandVolume]), node(&[]))["allowVolumeExpansion"], true);
        assert_eq!(class(controller(&[]), node(&[NodeRpc::ExpandVolume]))["allowVolumeExpansion"], true);
    }
}
