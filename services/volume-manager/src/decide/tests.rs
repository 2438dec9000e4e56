//! One good fixture per decision, spoiled one field per test; scenario numbers are the reference's.

mod csi_node;
mod node;
mod plugin;
mod pod;
mod property;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::pod::Pod;
use stowage_runtime::operation::{Failure, State};

use super::Record;
use crate::desired::{Use, VolumeId};
use crate::registration::Version;
use crate::world::DriverInfo;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

pub(crate) fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

pub(crate) fn volume() -> VolumeId {
    VolumeId::new("driver", "handle")
}

pub(crate) fn pod(uid: &str, rest: Value) -> Arc<Pod> {
    let mut object = json!({
        "metadata": { "name": uid, "namespace": "default", "uid": uid, "resourceVersion": "7" },
        "spec": { "nodeName": "node", "containers": [{ "name": "c", "volumeMounts": [{ "name": "data" }] }] },
        "status": { "phase": "Pending" },
    });
    json_patch_merge(&mut object, &rest);
    Arc::new(serde_json::from_value(object).unwrap())
}

fn json_patch_merge(into: &mut Value, from: &Value) {
    match from.as_object() {
        Some(fields) => fields.iter().for_each(|(key, value)| json_patch_merge(&mut into[key], value)),
        None => *into = from.clone(),
    }
}

pub(crate) fn usage() -> Use {
    Use {
        volume: volume(),
        spec_name: "pv".into(),
        pod_volume: "data".into(),
        fs_type: "ext4".into(),
        mount_options: Vec::new(),
        attributes: BTreeMap::new(),
        access_modes: [stowage_model::AccessMode::ReadWriteOnce].into(),
        read_only: false,
        fs_group: None,
        stage_secret: None,
        publish_secret: None,
    }
}

pub(crate) fn driver() -> DriverInfo {
    DriverInfo {
        name: "driver".into(),
        version: Version::parse("1.0.0").unwrap(),
        node_id: "node-1".into(),
        topology: BTreeMap::new(),
        limit: None,
        capabilities: [Capability::StageUnstageVolume].into(),
    }
}

pub(crate) fn running() -> Record {
    Record { state: State::Running, since: now(), failures: 0, retry_at: now() }
}

pub(crate) fn failed() -> Record {
    let failure = Failure { code: "Internal".into(), message: "no".into() };
    Record { state: State::Failed(failure), since: now(), failures: 1, retry_at: later(1) }
}
