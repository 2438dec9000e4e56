//! The driver as it introduces itself at start.

use stowage_csi::v1::{
    controller_service_capability::rpc::Type as ControllerCapability,
    plugin_capability::service::Type as PluginCapability,
};
use stowage_csi::{Channel, Deadline, identity};
use stowage_runtime::Context;

use crate::error::Error;
use crate::options::Options;

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
    /// Volumes are not reachable from everywhere.
    pub topology: bool,
    pub options: Options,
}

/// Waits for the driver and asks who it is and what it can do.
pub async fn introduce(context: &Context, options: &Options) -> Result<(Channel, Facts), Error> {
    let deadline = Deadline(options.timeout);
    let ask = |source| Error::AskDriver { address: options.csi_address.clone(), source };
    let channel = context
        .csi
        .connect(&options.csi_address)
        .map_err(|source| Error::Connect { address: options.csi_address.clone(), source })?;
    identity::wait_until_ready(&channel, deadline, identity::CONNECT_BUDGET).await.map_err(ask)?;
    let driver = identity::plugin_name(&channel, deadline).await.map_err(ask)?;
    let plugin = identity::plugin_capabilities(&channel, deadline).await.map_err(ask)?;
    let has_controller = plugin.contains(&PluginCapability::ControllerService);
    let controller = match has_controller {
        true => identity::controller_capabilities(&channel, deadline).await.map_err(ask)?,
        false => identity::ControllerCapabilities::new(),
    };
    let stamp = context.clock.now().as_millisecond();
    let facts = Facts {
        identity: format!("{stamp}-{}-{driver}", context.random.number() % 10_000),
        creates: controller.contains(&ControllerCapability::CreateDeleteVolume),
        finer_modes: controller.contains(&ControllerCapability::SingleNodeMultiWriter),
        attaches: controller.contains(&ControllerCapability::PublishUnpublishVolume),
        topology: plugin.contains(&PluginCapability::VolumeAccessibilityConstraints),
        options: options.clone(),
        driver,
    };
    if facts.topology {
        tracing::warn!(
            driver = facts.driver,
            "the driver's volumes are not reachable from everywhere, and no node's place is sent to it yet: \
             it chooses the place itself"
        );
    }
    Ok((channel, facts))
}

impl Facts {
    /// Name of the volume made for the claim; deterministic, so that making it twice is noticed.
    pub fn volume_name(&self, claim_uid: &str) -> String {
        let uid = match self.options.volume_name_uuid_length {
            None => claim_uid.to_owned(),
            Some(length) => claim_uid.chars().filter(|c| *c != '-').take(length).collect(),
        };
        format!("{}-{uid}", self.options.volume_name_prefix)
    }
}
