//! What this machine says about itself when its Node is registered.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use stowage_model::labels;

use crate::options::Options;

/// Shown by `kubectl get nodes`.
const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), "+stowage");

/// Pods a node takes, as the kubelet has it.
const PODS: &str = "110";

/// The labels every node has, and those that were asked for.
pub fn labels(options: &Options) -> BTreeMap<String, String> {
    let mut labels = options.labels.clone();
    labels.insert(labels::HOSTNAME.into(), options.node_name.clone());
    labels.insert("kubernetes.io/os".into(), std::env::consts::OS.into());
    labels.insert("kubernetes.io/arch".into(), architecture().into());
    labels
}

/// The status besides conditions.
pub fn status(options: &Options) -> Value {
    json!({
        "addresses": [{ "type": "Hostname", "address": options.node_name }],
        "capacity": { "pods": PODS },
        "allocatable": { "pods": PODS },
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            // No container is run on such a node.
            "containerRuntimeVersion": "none://",
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": std::env::consts::OS,
            "architecture": architecture(),
        },
    })
}

/// Go's name of the processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
