//! The handshake with a plugin: who it is, which driver it speaks for, what that driver says about this node.

use std::collections::BTreeMap;
use std::time::Duration;

use stowage_csi::channel::Unreachable;
use stowage_csi::connect::Connector;
use stowage_csi::registration::registration_client::RegistrationClient;
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use stowage_csi::v1::NodeGetInfoRequest;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::{Channel, Deadline, connect, identity};

use crate::drivers::{Driver, DriverInfo};

/// The kubelet's limits for the three parts of the handshake.
const DIAL_BUDGET: Duration = Duration::from_secs(10);
const GET_INFO: Deadline = Deadline(Duration::from_secs(1));
const NOTIFY: Deadline = Deadline(Duration::from_secs(5));

/// A socket is announced when it is bound, a moment before it listens.
const DIAL_RETRY: Duration = Duration::from_millis(5);

const CSI_PLUGIN: &str = "CSIPlugin";

/// A version of the CSI contract, such as `1.0.0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl Version {
    /// The numbers at the beginning; none for a text that does not begin with `MAJOR.MINOR`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let numbers: Option<Vec<u64>> = text[..end].trim_end_matches('.').split('.').map(|n| n.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() >= 2).map(Self)
    }

    /// The highest version 1.x of a list; others are passed over.
    pub fn highest_supported(texts: &[String]) -> Option<Self> {
        texts.iter().filter_map(|text| Self::parse(text)).filter(|version| version.0[0] == 1).max()
    }
}

/// How a greeting ended.
#[derive(Debug)]
pub enum Greeting {
    Driver(Box<Driver>),
    /// The plugin must be told that it cannot be registered.
    Refused(String),
}

/// The plugin or its driver did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect to {endpoint}: {source}")]
    Connect { endpoint: String, source: connect::Error },
    #[error("{rpc} at {endpoint}: {source}")]
    Call { rpc: &'static str, endpoint: String, source: Box<tonic::Status> },
    #[error("NodeGetCapabilities at {endpoint}: {source}")]
    Capabilities { endpoint: String, source: identity::Error },
}

/// Asks the plugin behind a registration socket who it is, and its driver about this node.
pub async fn greet(csi: &dyn Connector, socket: &str, timeout: Duration) -> Result<Greeting, Error> {
    let plugin = get_info(&connect(csi, socket)?, socket).await?;
    if plugin.r#type != CSI_PLUGIN {
        return Ok(Greeting::Refused(format!("plugin type {:?} is not supported, only {CSI_PLUGIN}", plugin.r#type)));
    }
    if plugin.name.is_empty() {
        return Ok(Greeting::Refused("the plugin has no name".into()));
    }
    let Some(version) = Version::highest_supported(&plugin.supported_versions) else {
        let versions = plugin.supported_versions.join(", ");
        return Ok(Greeting::Refused(format!("none of the CSI versions [{versions}] is supported, only 1.x")));
    };
    // A plugin that names no endpoint answers CSI calls on the registration socket itself.
    let endpoint = if plugin.endpoint.is_empty() { socket.to_owned() } else { plugin.endpoint };
    let channel = connect(csi, &endpoint)?;
    let deadline = Deadline(timeout);
    let mut client = NodeClient::new(channel.clone());
    let info = deadline
        .call(NodeGetInfoRequest {}, |request| client.node_get_info(request))
        .await
        .map_err(|source| Error::Call { rpc: "NodeGetInfo", endpoint: endpoint.clone(), source: Box::new(source) })?;
    if info.node_id.is_empty() {
        return Ok(Greeting::Refused(format!("driver {} reports an empty node id", plugin.name)));
    }
    let capabilities = identity::node_capabilities(&channel, deadline)
        .await
        .map_err(|source| Error::Capabilities { endpoint, source })?;
    let topology: BTreeMap<String, String> =
        info.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
    let info = DriverInfo {
        name: plugin.name,
        version,
        node_id: info.node_id,
        topology,
        limit: limit(info.max_volumes_per_node),
        capabilities,
    };
    Ok(Greeting::Driver(Box::new(Driver { info, channel })))
}

/// Asks a registered driver about this node again: topology and how many volumes it can take may have changed.
pub async fn look_again(driver: &Driver, timeout: Duration) -> Result<DriverInfo, Error> {
    let mut client = NodeClient::new(driver.channel.clone());
    let call = Deadline(timeout).call(NodeGetInfoRequest {}, |request| client.node_get_info(request));
    let endpoint = || driver.info.name.clone();
    let info = call.await.map_err(|source| Error::Call {
        rpc: "NodeGetInfo",
        endpoint: endpoint(),
        source: Box::new(source),
    })?;
    let topology = info.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
    let node_id = if info.node_id.is_empty() { driver.info.node_id.clone() } else { info.node_id };
    Ok(DriverInfo { node_id, topology, limit: limit(info.max_volumes_per_node), ..driver.info.clone() })
}

/// Zero and less mean no limit; the API has room for 31 bits.
fn limit(reported: i64) -> Option<i32> {
    (reported > 0).then(|| i32::try_from(reported).unwrap_or(i32::MAX))
}

async fn get_info(channel: &Channel, socket: &str) -> Result<PluginInfo, Error> {
    let mut client = RegistrationClient::new(channel.clone());
    let mut waited = Duration::ZERO;
    let mut pause = DIAL_RETRY;
    loop {
        match GET_INFO.call(InfoRequest {}, |request| client.get_info(request)).await {
            Ok(info) => return Ok(info),
            Err(status) if Unreachable::in_status(&status).is_some() && waited < DIAL_BUDGET => {
                tokio::time::sleep(pause).await;
                waited += pause;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            Err(source) => {
                return Err(Error::Call { rpc: "GetInfo", endpoint: socket.to_owned(), source: Box::new(source) });
            }
        }
    }
}

/// Tells the plugin what became of its registration.
pub async fn notify(csi: &dyn Connector, socket: &str, refusal: Option<String>) -> Result<(), Error> {
    let mut client = RegistrationClient::new(connect(csi, socket)?);
    let status = RegistrationStatus { plugin_registered: refusal.is_none(), error: refusal.unwrap_or_default() };
    NOTIFY.call(status, |request| client.notify_registration_status(request)).await.map(|_| ()).map_err(|source| {
        Error::Call { rpc: "NotifyRegistrationStatus", endpoint: socket.to_owned(), source: Box::new(source) }
    })
}

fn connect(csi: &dyn Connector, endpoint: &str) -> Result<Channel, Error> {
    csi.connect(endpoint).map_err(|source| Error::Connect { endpoint: endpoint.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn highest(texts: &[&str]) -> Option<Version> {
        Version::highest_supported(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn s114_a_list_with_a_version_1_is_accepted() {
        assert_eq!(highest(&["v1.0.0"]), Some(Version(vec![1, 0, 0])));
        assert_eq!(highest(&["0.2.0", "v1.2.3"]), Some(Version(vec![1, 2, 3])));
        assert_eq!(highest(&["v1.2.3", "boo", "2.0.1"]), Some(Version(vec![1, 2, 3])));
    }

    #[test]
    fn s115_a_list_without_a_version_1_is_rejected() {
        for texts in [&["0.3.0"][..], &["4.9.12", "2.0.1"], &[], &["", "a", "1", "v"]] {
            assert_eq!(highest(texts), None, "{texts:?}");
        }
    }

    #[test]
    fn s120_a_limit_of_zero_or_less_is_none_and_a_large_one_is_capped() {
        assert_eq!([0, -1, 7, i64::MAX].map(limit), [None, None, Some(7), Some(i32::MAX)]);
    }
}
