//! A registration socket: greet the plugin, announce its driver on Node and CSINode, then tell it how that went.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_runtime::engine::Decision;

use super::Action;
use super::csi_node::is_current;
use super::node::node_ids;
use crate::drivers::DriverInfo;
use crate::executor::Record;
use crate::registration::Version;

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub socket: String,
    /// Gone once the socket is.
    pub plugin: Option<View>,
    /// Version of a driver of the same name that is registered through another socket.
    pub twin: Option<Version>,
    pub node: Option<Arc<Node>>,
    pub csi_node: Option<Arc<CsiNode>>,
    pub greeting: Option<Record>,
    pub notification: Option<Record>,
}

/// What is known about a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub instance: u64,
    pub greeted: Option<DriverInfo>,
    pub accepted: bool,
    pub refused: Option<String>,
    pub notified: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Gone,
    Busy,
    BackingOff,
    Appeared,
    Rejected,
    Accepted,
    WaitingForNode,
    WaitingForCsiNode,
    Announced,
    Registered,
    Refused,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let Some(plugin) = &s.plugin else {
        return Decision::rest(Why::Gone);
    };
    let refuse = |message: String| Decision::act([Action::Refuse { socket: s.socket.clone(), message }], Why::Rejected);
    if plugin.notified {
        return Decision::rest(if plugin.refused.is_some() { Why::Refused } else { Why::Registered });
    }
    if plugin.refused.is_none() {
        let Some(driver) = &plugin.greeted else {
            let greet = Action::Greet { socket: s.socket.clone(), instance: plugin.instance };
            return start(greet, s.greeting.as_ref(), now, Why::Appeared);
        };
        if s.twin.as_ref().is_some_and(|twin| *twin >= driver.version) {
            return refuse(format!("driver {} is registered already with the same or a higher version", driver.name));
        }
        let Some(node) = &s.node else {
            return Decision::rest(Why::WaitingForNode);
        };
        if let Some(message) = topology_conflict(node, driver) {
            return refuse(message);
        }
        if !plugin.accepted {
            return Decision::act([Action::Accept { socket: s.socket.clone() }], Why::Accepted);
        }
        let labelled = driver.topology.iter().all(|(key, value)| node.meta.labels.get(key) == Some(value));
        if !labelled || node_ids(node).get(&driver.name) != Some(&driver.node_id) {
            return Decision::rest(Why::WaitingForNode);
        }
        let entry = s.csi_node.as_ref().and_then(|csi_node| csi_node.driver(&driver.name));
        if !entry.is_some_and(|found| is_current(found, driver)) {
            return Decision::rest(Why::WaitingForCsiNode);
        }
    }
    let refusal = plugin.refused.clone();
    let notify = Action::Notify { socket: s.socket.clone(), instance: plugin.instance, refusal };
    start(notify, s.notification.as_ref(), now, Why::Announced)
}

/// A label that is there with another value is not overwritten: pods may rely on it.
fn topology_conflict(node: &Node, driver: &DriverInfo) -> Option<String> {
    driver.topology.iter().find_map(|(key, value)| {
        let found = node.meta.labels.get(key).filter(|found| *found != value)?;
        Some(format!(
            "driver {} reports topology {key}={value}, but the node has the label {key}={found}; remove the label",
            driver.name
        ))
    })
}

fn start(action: Action, record: Option<&Record>, now: Timestamp, why: Why) -> Decision<Action, Why> {
    match record {
        Some(record) if record.may_start(now) => Decision::act([action], why),
        None => Decision::act([action], why),
        Some(record) if matches!(record.state, stowage_runtime::operation::State::Running) => Decision::rest(Why::Busy),
        Some(record) => Decision::wait_until(record.retry_at, Why::BackingOff),
    }
}
