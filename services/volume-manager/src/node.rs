//! What this machine says about itself in its Node.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use stowage_model::{Quantity, labels};

use crate::conditions::Wanted;
use crate::machine::{Machine, Pressure};
use crate::options::Options;

/// Shown by `kubectl get nodes`.
const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), "+stowage");

/// Kept free by the kubelet's default thresholds of eviction.
const MEMORY_KEPT: u64 = 100 << 20;
const STORAGE_KEPT_PERCENT: u64 = 10;

/// The labels every node has, and those that were asked for.
pub fn labels(options: &Options) -> BTreeMap<String, String> {
    let mut labels = options.labels.clone();
    labels.insert(labels::HOSTNAME.into(), options.node_name.clone());
    labels.insert("kubernetes.io/os".into(), std::env::consts::OS.into());
    labels.insert("kubernetes.io/arch".into(), architecture().into());
    labels
}

/// The status besides conditions.
pub fn status(options: &Options, machine: &Machine) -> Value {
    let internal = machine.addresses.iter().map(|ip| json!({ "type": "InternalIP", "address": ip.to_string() }));
    let hostname = json!({ "type": "Hostname", "address": options.node_name });
    json!({
        "addresses": internal.chain([hostname]).collect::<Vec<Value>>(),
        "capacity": capacity(options, machine),
        "allocatable": allocatable(options, machine),
        "nodeInfo": {
            "machineID": machine.machine_id,
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel_version,
            "osImage": machine.os_image,
            // No container is run on such a node.
            "containerRuntimeVersion": "none://",
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": std::env::consts::OS,
            "architecture": architecture(),
        },
    })
}

fn capacity(options: &Options, machine: &Machine) -> Value {
    let memory = kibibytes(machine.memory_bytes);
    resources(options, machine, memory, kibibytes(machine.storage_bytes))
}

/// The same for those who count with it.
pub fn allocatable_of(options: &Options, machine: &Machine) -> BTreeMap<String, Quantity> {
    serde_json::from_value(allocatable(options, machine)).unwrap_or_default()
}

/// What pods may have: huge pages are no longer memory, and a rest is kept for the machine.
fn allocatable(options: &Options, machine: &Machine) -> Value {
    let huge: u64 = machine.huge_pages.values().sum();
    let memory = machine.memory_bytes.saturating_sub(huge).saturating_sub(MEMORY_KEPT);
    let storage = machine.storage_bytes - machine.storage_bytes / 100 * STORAGE_KEPT_PERCENT;
    resources(options, machine, kibibytes(memory), storage.to_string())
}

fn resources(options: &Options, machine: &Machine, memory: String, storage: String) -> Value {
    let mut resources = Map::new();
    resources.insert("cpu".into(), machine.cpus.to_string().into());
    resources.insert("memory".into(), memory.into());
    resources.insert("ephemeral-storage".into(), storage.into());
    resources.insert("pods".into(), options.max_pods.to_string().into());
    for (size, bytes) in &machine.huge_pages {
        resources.insert(format!("hugepages-{}", binary(*size)), binary(*bytes).into());
    }
    resources.into()
}

/// The conditions besides what the volumes say.
pub fn conditions(pressure: Pressure) -> [Wanted; 4] {
    let pressed = |kind, holds, pressed, free, message: &str| Wanted {
        kind,
        holds,
        reason: if holds { pressed } else { free },
        message: format!("the machine has {}{message}", if holds { "too little " } else { "enough " }),
    };
    [
        pressed(
            "MemoryPressure",
            pressure.memory,
            "KubeletHasInsufficientMemory",
            "KubeletHasSufficientMemory",
            "memory",
        ),
        pressed("DiskPressure", pressure.disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "disk space"),
        pressed("PIDPressure", pressure.pids, "KubeletHasInsufficientPID", "KubeletHasSufficientPID", "process ids"),
        Wanted { kind: "Ready", holds: true, reason: "KubeletReady", message: "the volume manager is ready".into() },
    ]
}

fn kibibytes(bytes: u64) -> String {
    format!("{}Ki", bytes / 1024)
}

/// Bytes with the largest binary suffix that loses nothing.
fn binary(bytes: u64) -> String {
    let suffixes = [(1_u64 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let fitting = suffixes.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    fitting.map_or_else(|| bytes.to_string(), |(unit, suffix)| format!("{}{suffix}", bytes / unit))
}

/// Go's name of the processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kubectl describe node` divides what pods ask for by these, and printed -9223372036854775808% without them.
    #[test]
    fn a_node_says_what_it_has_and_what_pods_may_have_of_it() {
        let machine = Machine {
            huge_pages: [(2 << 20, 6 << 20), (1 << 30, 0)].into(),
            addresses: vec!["10.0.0.7".parse().unwrap()],
            ..Machine::default()
        };
        let options = Options { node_name: "node".into(), ..Options::default() };
        let status = status(&options, &machine);
        let capacity = json!({
            "cpu": "4", "memory": "16777216Ki", "ephemeral-storage": "104857600Ki", "pods": "110",
            "hugepages-2Mi": "6Mi", "hugepages-1Gi": "0",
        });
        assert_eq!(status["capacity"], capacity);
        let allocatable = json!({
            "cpu": "4", "memory": "16668672Ki", "ephemeral-storage": "96636764160", "pods": "110",
            "hugepages-2Mi": "6Mi", "hugepages-1Gi": "0",
        });
        assert_eq!(status["allocatable"], allocatable);
        let addresses = json!([
            { "type": "InternalIP", "address": "10.0.0.7" }, { "type": "Hostname", "address": "node" },
        ]);
        assert_eq!(status["addresses"], addresses);
    }

    #[test]
    fn pressure_has_the_kubelets_reasons() {
        let of = |pressure| conditions(pressure).map(|wanted| (wanted.kind, wanted.holds, wanted.reason));
        let calm = of(Pressure::default());
        assert_eq!(calm[0], ("MemoryPressure", false, "KubeletHasSufficientMemory"));
        assert_eq!(calm[1], ("DiskPressure", false, "KubeletHasNoDiskPressure"));
        assert_eq!(calm[2], ("PIDPressure", false, "KubeletHasSufficientPID"));
        assert_eq!(calm[3], ("Ready", true, "KubeletReady"));
        assert_eq!(
            of(Pressure { disk: true, ..Pressure::default() })[1],
            ("DiskPressure", true, "KubeletHasDiskPressure")
        );
    }
}
