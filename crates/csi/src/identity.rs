//! What every caller asks a driver first: its name, whether it is ready, and what it can do.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use crate::{
    Channel, Deadline,
    channel::Unreachable,
    code,
    v1::{
        ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest,
        GroupControllerGetCapabilitiesRequest, NodeGetCapabilitiesRequest, ProbeRequest, controller_client,
        controller_service_capability, group_controller_client, group_controller_service_capability, identity_client,
        node_client, node_service_capability, plugin_capability,
    },
};

/// What the driver as a whole offers.
pub type PluginCapabilities = BTreeSet<plugin_capability::service::Type>;
/// Which Controller calls the driver answers.
pub type ControllerCapabilities = BTreeSet<controller_service_capability::rpc::Type>;
/// Which GroupController calls the driver answers.
pub type GroupControllerCapabilities = BTreeSet<group_controller_service_capability::rpc::Type>;
/// Which Node calls the driver answers.
pub type NodeCapabilities = BTreeSet<node_service_capability::rpc::Type>;

/// How long the originals wait for a driver's socket at start.
pub const CONNECT_BUDGET: Duration = Duration::from_secs(30);

/// Between two looks at a driver that says it is not ready yet.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts to reach a driver that is not there yet: doubled up to the originals' limit of a second.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const MAX_RETRY: Duration = Duration::from_secs(1);

/// The driver's name, which is never empty.
pub async fn plugin_name(channel: &Channel, deadline: Deadline) -> Result<String, Error> {
    let mut client = identity_client::IdentityClient::new(channel.clone());
    let info = deadline
        .call(GetPluginInfoRequest {}, |r| client.get_plugin_info(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "GetPluginInfo", source })?;
    if info.name.is_empty() { Err(Error::NamelessDriver) } else { Ok(info.name) }
}

/// Asks once whether the driver is ready; a driver that does not say is.
pub async fn probe(channel: &Channel, deadline: Deadline) -> Result<bool, Error> {
    let mut client = identity_client::IdentityClient::new(channel.clone());
    let answer = deadline
        .call(ProbeRequest {}, |r| client.probe(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "Probe", source })?;
    Ok(answer.ready.unwrap_or(true))
}

/// Waits until the driver is ready: for `budget` until it can be reached, then as long as it takes to say so. One that
/// says it is not healthy (CSI's FAILED_PRECONDITION) is there all the same and is not waited for: a driver whose disk is
/// full must be asked to delete. An answer other than these, "not yet" or silence is an error.
pub async fn wait_until_ready(channel: &Channel, deadline: Deadline, budget: Duration) -> Result<(), Error> {
    until_ready(|| probe(channel, deadline), budget).await
}

/// The same by another's way to [`probe`], such as one that counts.
pub async fn until_ready<F>(probe: impl Fn() -> F, budget: Duration) -> Result<(), Error>
where
    F: Future<Output = Result<bool, Error>>,
{
    let mut since = Instant::now();
    let mut retry = FIRST_RETRY;
    loop {
        match probe().await {
            Ok(true) => return Ok(()),
            Err(error) if error.is_unreachable() => {
                if since.elapsed() + retry > budget {
                    return Err(error);
                }
                // Said once, so that nobody wonders what is waited for.
                if retry == FIRST_RETRY {
                    tracing::warn!(%error, "waiting for the driver's socket");
                }
                sleep(retry).await;
                retry = (retry * 2).min(MAX_RETRY);
                continue;
            }
            Ok(false) => tracing::info!("the driver is not ready yet"),
            Err(error) if error.code() == Some(Code::DeadlineExceeded) => tracing::warn!(%error, "probing the driver"),
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                tracing::warn!(%error, "going on with a driver that is not healthy");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        sleep(PROBE_INTERVAL).await;
        // It was there a moment ago: should it go away now, it gets the whole budget to come back.
        (since, retry) = (Instant::now(), FIRST_RETRY);
    }
}

/// What the driver as a whole offers; how its volumes expand is not part of it.
pub async fn plugin_capabilities(channel: &Channel, deadline: Deadline) -> Result<PluginCapabilities, Error> {
    let mut client = identity_client::IdentityClient::new(channel.clone());
    let answer = deadline
        .call(GetPluginCapabilitiesRequest {}, |r| client.get_plugin_capabilities(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "GetPluginCapabilities", source })?;
    Ok(known(answer.capabilities, |capability| match capability.r#type? {
        plugin_capability::Type::Service(it) => Some(it.r#type()),
        plugin_capability::Type::VolumeExpansion(_) => None,
    }))
}

/// Which Controller calls the driver answers.
pub async fn controller_capabilities(channel: &Channel, deadline: Deadline) -> Result<ControllerCapabilities, Error> {
    let mut client = controller_client::ControllerClient::new(channel.clone());
    let answer = deadline
        .call(ControllerGetCapabilitiesRequest {}, |r| client.controller_get_capabilities(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "ControllerGetCapabilities", source })?;
    Ok(known(answer.capabilities, |capability| match capability.r#type? {
        controller_service_capability::Type::Rpc(it) => Some(it.r#type()),
    }))
}

/// Which GroupController calls the driver answers.
pub async fn group_controller_capabilities(
    channel: &Channel,
    deadline: Deadline,
) -> Result<GroupControllerCapabilities, Error> {
    let mut client = group_controller_client::GroupControllerClient::new(channel.clone());
    let answer = deadline
        .call(GroupControllerGetCapabilitiesRequest {}, |r| client.group_controller_get_capabilities(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "GroupControllerGetCapabilities", source })?;
    Ok(known(answer.capabilities, |capability| match capability.r#type? {
        group_controller_service_capability::Type::Rpc(it) => Some(it.r#type()),
    }))
}

/// Which Node calls the driver answers.
pub async fn node_capabilities(channel: &Channel, deadline: Deadline) -> Result<NodeCapabilities, Error> {
    let mut client = node_client::NodeClient::new(channel.clone());
    let answer = deadline
        .call(NodeGetCapabilitiesRequest {}, |r| client.node_get_capabilities(r))
        .await
        .map_err(|source| Error::CallDriver { rpc: "NodeGetCapabilities", source })?;
    Ok(known(answer.capabilities, |capability| match capability.r#type? {
        node_service_capability::Type::Rpc(it) => Some(it.r#type()),
    }))
}

/// Empty entries are skipped, and so are those of a contract newer than ours: prost reads them as the zero value.
fn known<C, T: Ord + Default>(entries: Vec<C>, kind: impl Fn(C) -> Option<T>) -> BTreeSet<T> {
    entries.into_iter().filter_map(kind).filter(|kind| *kind != T::default()).collect()
}

/// Why a driver could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call failed.
    #[error("{rpc}: {} ({})", source.message(), code::name(source.code()))]
    CallDriver {
        /// The call.
        rpc: &'static str,
        /// What came back.
        source: Status,
    },
    /// The driver says that its name is empty.
    #[error("GetPluginInfo: the driver's name is empty; a CSI driver must have one")]
    NamelessDriver,
}

impl Error {
    /// The code the call ended with, if a call failed.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::CallDriver { source, .. } => Some(source.code()),
            Self::NamelessDriver => None,
        }
    }

    /// Whether nobody was there to ask.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::CallDriver { source, .. } if Unreachable::in_status(source).is_some())
    }
}

#[cfg(test)]
mod tests;
