//! What is known about the driver and about ourselves from the start.

use futures::future::BoxFuture;

use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::{
    NodeGetInfoRequest, controller_service_capability::rpc::Type as ControllerCapability,
    plugin_capability::service::Type as PluginCapability,
};
use stowage_csi::{Deadline, identity};
use stowage_model::access_mode::{AccessMode, AccessModes};
use stowage_model::topology::Segments;
use stowage_runtime::driver::Driver;
use stowage_runtime::{Context, Process, Stop};

use crate::library::Provisioner;
use crate::options::Options;
use crate::requirement;

/// What decisions need to know about the driver and about ourselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub driver: String,
    /// Written into every volume's attributes: which run of which provisioner made it.
    pub identity: String,
    /// The driver makes and deletes volumes at all.
    pub creates: bool,
    /// The driver tells one pod from one node (`SINGLE_NODE_MULTI_WRITER`).
    pub finer_modes: bool,
    /// Volumes are attached, so an attachment must be gone before its volume.
    pub attaches: bool,
    /// The driver makes volumes from snapshots.
    pub snapshots: bool,
    /// The driver makes volumes from volumes.
    pub clones: bool,
    /// The driver changes volumes, so a VolumeAttributesClass may say how they are made.
    pub modifies: bool,
    /// Volumes are not reachable from everywhere.
    pub topology: bool,
    /// The access modes that volumes can have.
    pub modes: AccessModes,
    /// Whether volumes can be devices.
    pub block: bool,
    /// Not a CSI driver, but what somebody built with the library.
    pub library: bool,
    /// This node, in node deployment.
    pub node: Option<NodeFacts>,
    pub options: Options,
}

/// Where a provisioner in node deployment runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// The node's place, as its driver names it.
    pub segments: Segments,
}

/// Where the driver says that this node is.
async fn place(process: &Process, driver: &Driver, deadline: Deadline) -> Result<Segments, identity::Error> {
    let mut client = NodeClient::new(driver.channel.clone());
    let asked = async {
        let info = deadline.call(NodeGetInfoRequest {}, |request| client.node_get_info(request)).await;
        info.map_err(|source| identity::Error::CallDriver { rpc: "NodeGetInfo", source })
    };
    let info = process.ask(&driver.name, "/csi.v1.Node/NodeGetInfo", asked).await?;
    Ok(info.accessible_topology.map(|place| place.segments).unwrap_or_default())
}

/// Labels, and names of which ours are the first part, are at most this long.
const MAX_JOURNAL_NAME: usize = 50;

impl Facts {
    /// What the driver said when it was met, and in node deployment says about its node now.
    pub async fn of(driver: &Driver, context: &Context, options: Options) -> Result<Self, Stop> {
        let node = match &options.node_deployment {
            Some(deployment) => {
                let asked = place(context, driver, Deadline(options.driver.timeout));
                let segments = asked.await.map_err(|error| {
                    let reason =
                        format!("the driver at {} does not say where it is: {error}", options.driver.csi_address);
                    Stop::Unable { reason: format!("{reason}; check that it serves the Node service") }
                })?;
                Some(NodeFacts { name: deployment.node.clone(), segments })
            }
            None => None,
        };
        let suffix = node.as_ref().map(|node| format!("-{}", node.name)).unwrap_or_default();
        let stamp = context.clock.now().as_millisecond();
        Ok(Self {
            identity: format!("{stamp}-{}-{}{suffix}", context.random.number() % 10_000, driver.name),
            creates: driver.controller.contains(&ControllerCapability::CreateDeleteVolume),
            finer_modes: driver.controller.contains(&ControllerCapability::SingleNodeMultiWriter),
            attaches: driver.controller.contains(&ControllerCapability::PublishUnpublishVolume),
            snapshots: driver.controller.contains(&ControllerCapability::CreateDeleteSnapshot),
            clones: driver.controller.contains(&ControllerCapability::CloneVolume),
            modifies: driver.controller.contains(&ControllerCapability::ModifyVolume),
            topology: options.topology && driver.plugin.contains(&PluginCapability::VolumeAccessibilityConstraints),
            modes: AccessMode::KNOWN.into_iter().collect(),
            block: true,
            library: false,
            node,
            options,
            driver: driver.name.clone(),
        })
    }

    /// Resolves when the driver comes back and says that this node is elsewhere.
    pub async fn moves(&self, process: &Process, driver: &Driver) -> Stop {
        let Some(NodeFacts { segments, .. }) = self.node.clone() else { return std::future::pending().await };
        let (process, asked, deadline) = (process.clone(), driver.clone(), Deadline(self.options.driver.timeout));
        let is_here = move || {
            let (process, driver, segments) = (process.clone(), asked.clone(), segments.clone());
            let asked: BoxFuture<'static, _> =
                Box::pin(async move { Ok(place(&process, &driver, deadline).await? == segments) });
            asked
        };
        driver.changes("place of this node", is_here).await
    }

    /// What a provisioner that is no CSI driver says of itself.
    pub fn of_library(name: &str, provisioner: &dyn Provisioner, context: &Context, options: Options) -> Self {
        let stamp = context.clock.now().as_millisecond();
        Self {
            identity: format!("{stamp}-{}-{name}", context.random.number() % 10_000),
            creates: true,
            // Only so are one node and one pod told apart.
            finer_modes: true,
            attaches: false,
            snapshots: false,
            clones: false,
            modifies: false,
            topology: false,
            modes: AccessMode::KNOWN.into_iter().filter(|mode| provisioner.supports_access_mode(*mode)).collect(),
            block: provisioner.supports_block(),
            library: true,
            node: None,
            options,
            driver: name.to_owned(),
        }
    }

    /// The name of the journal: one per driver, and in node deployment one per node.
    pub fn journal_name(&self) -> String {
        let Some(node) = &self.node else { return self.driver.clone() };
        let name = format!("{}-{}", self.driver, node.name);
        match name.len() <= MAX_JOURNAL_NAME {
            true => name,
            false => {
                let start: String = name.chars().take(MAX_JOURNAL_NAME - 9).collect();
                format!("{}-{:08x}", start.trim_end_matches(['-', '.']), requirement::hash(&name))
            }
        }
    }

    /// Name of the volume made for the claim; deterministic, so that making it twice is noticed.
    pub fn volume_name(&self, claim_uid: &str) -> String {
        let uid = match self.options.volume_name_uuid_length {
            None => claim_uid.to_owned(),
            Some(length) => claim_uid.chars().filter(|c| *c != '-').take(length).collect(),
        };
        format!("{}-{uid}", self.options.volume_name_prefix)
    }

    /// Whether the names of volumes hold the whole uid of their claim.
    pub fn tells_uid(&self) -> bool {
        self.options.volume_name_uuid_length.is_none()
    }

    /// The uid of the claim that a volume of this name is made for, where names tell it.
    pub fn uid_in<'a>(&self, volume: &'a str) -> Option<&'a str> {
        volume.strip_prefix(&*self.options.volume_name_prefix)?.strip_prefix('-')
    }
}
