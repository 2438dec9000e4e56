//! One good fixture per decision, spoiled one field per test; scenario numbers are the reference's.

mod csi_node;
mod node;
mod plugin;
mod pod;
mod property;
mod volume;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::access_mode::AccessMode;
use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::{NodePod, NodeVolume};
use stowage_model::object::Key;
use stowage_plugins::traits::{Attributes, Metrics, Remount};
use stowage_plugins::{Traits, VolumeSpec};
use stowage_runtime::operation::{Failure, State};

use crate::actual_state::{AttachedVolume, MountState, MountedVolume};
use crate::desired_state::{Inputs, VolumeToMount};
use crate::drivers::DriverInfo;
use crate::executor::Record;
use crate::registration::Version;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

pub(crate) fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

pub(crate) fn volume() -> UniqueVolumeName {
    "kubernetes.io/csi/driver^handle".into()
}

pub(crate) fn pod(uid: &str, rest: Value) -> Arc<NodePod> {
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

pub(crate) fn spec() -> Arc<VolumeSpec> {
    persistent(json!({}))
}

pub(crate) fn persistent(rest: Value) -> Arc<VolumeSpec> {
    let mut object = json!({
        "metadata": { "name": "pv" },
        "spec": {
            "accessModes": [AccessMode::ReadWriteOnce.as_str()],
            "capacity": { "storage": "1Gi" },
            "volumeMode": "Filesystem",
            "csi": { "driver": "driver", "volumeHandle": "handle", "fsType": "ext4" },
        },
    });
    json_patch_merge(&mut object, &rest);
    let volume: NodeVolume = serde_json::from_value(object).unwrap();
    Arc::new(VolumeSpec::persistent(&volume, Key::namespaced("default", "claim"), false).unwrap())
}

/// What a CSI volume that is attached and staged can do.
pub(crate) fn traits() -> Traits {
    Traits {
        is_attachable: true,
        is_device_mountable: true,
        supports_block: true,
        is_expandable: true,
        remount: Remount::Never,
        supports_mount_options: true,
        supports_se_linux_mount: false,
        metrics: Metrics::Driver,
        attributes: Attributes { read_only: false, managed: true, se_linux_relabel: true },
    }
}

pub(crate) fn mount() -> VolumeToMount {
    VolumeToMount {
        spec: spec(),
        plugin: "kubernetes.io/csi".into(),
        traits: traits(),
        outer_names: ["data".to_owned()].into(),
        inputs: Inputs::default(),
        se_linux_label: None,
    }
}

pub(crate) fn mounted(state: MountState) -> MountedVolume {
    MountedVolume { spec: spec(), state, is_reconstructed: false, inputs: Inputs::default(), again_at: None }
}

/// A volume as it is on the node: its device, and the pods that have it.
pub(crate) fn attached(device: Option<MountState>, pods: &[(&str, MountState)]) -> AttachedVolume {
    let pods = pods.iter().map(|(uid, state)| ((*uid).to_owned(), mounted(*state))).collect();
    AttachedVolume { device, pods, ..AttachedVolume::new(spec()) }
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
