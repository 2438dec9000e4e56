//! A resource of a container as a number.

use std::collections::BTreeMap;

use stowage_model::Quantity;
use stowage_model::node_view::{NodeContainer, NodePod};
use stowage_model::volume_source::ResourceFieldRef;

const LIMITED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Whether what is asked for is a limit that neither the container nor its pod says.
pub fn is_unlimited(reference: &ResourceFieldRef, pod: &NodePod) -> bool {
    let Some(name) = reference.resource.strip_prefix("limits.") else { return false };
    let container = container(reference, pod);
    LIMITED.contains(&name) && container.is_ok_and(|container| own_limit(container, pod, name).is_none())
}

/// The amount in units of the divisor, rounded up.
pub fn value(
    reference: &ResourceFieldRef,
    pod: &NodePod,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, String> {
    let container = container(reference, pod)?;
    let (list, name) = reference.resource.split_once('.').unwrap_or_default();
    if !LIMITED.contains(&name) && !name.starts_with("hugepages-") {
        return Err(format!(
            "resource {:?} is not known; use limits. or requests. with cpu, memory, ephemeral-storage or hugepages-<size>",
            reference.resource
        ));
    }
    let amount = match list {
        "limits" => own_limit(container, pod, name).or_else(|| allocatable.get(name).copied()),
        "requests" => container.resources.requests.get(name).copied(),
        _ => return Err(format!("resource {:?} must begin with limits. or requests.", reference.resource)),
    };
    let divisor = reference.divisor.filter(|divisor| !divisor.is_zero());
    Ok(in_units(amount.unwrap_or_default(), divisor.unwrap_or(Quantity::from_bytes(1)), name).to_string())
}

fn own_limit(container: &NodeContainer, pod: &NodePod, name: &str) -> Option<Quantity> {
    let set = |limits: &BTreeMap<String, Quantity>| limits.get(name).copied().filter(|limit| !limit.is_zero());
    set(&container.resources.limits).or_else(|| set(&pod.resources.limits))
}

fn in_units(amount: Quantity, divisor: Quantity, name: &str) -> i128 {
    let (amount, divisor) = match name {
        "cpu" => (amount.millis(), divisor.millis()),
        _ => (amount.bytes(), divisor.bytes()),
    };
    if divisor == 0 {
        return amount;
    }
    let (whole, rest) = (amount / divisor, amount % divisor);
    if rest > 0 { whole + 1 } else { whole }
}

fn container<'a>(reference: &ResourceFieldRef, pod: &'a NodePod) -> Result<&'a NodeContainer, String> {
    let name = &reference.container_name;
    let found = pod.containers.iter().find(|container| container.name == *name);
    found.ok_or_else(|| format!("resourceFieldRef.containerName {name:?} is no container of the pod"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::object::Projection as _;

    use super::*;

    fn pod() -> NodePod {
        let limits = json!({ "cpu": "250m", "memory": "64Mi", "hugepages-2Mi": "4Mi" });
        let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [
            { "name": "a", "resources": { "limits": limits, "requests": { "cpu": "100m", "memory": "32Mi" } } },
            { "name": "b" },
        ]}});
        NodePod::read(pod.to_string().as_bytes()).unwrap()
    }

    fn told(container: &str, resource: &str, divisor: &str) -> Result<String, String> {
        let divisor = (!divisor.is_empty()).then(|| divisor.parse().unwrap());
        let reference = ResourceFieldRef { container_name: container.into(), resource: resource.into(), divisor };
        let allocatable =
            [("cpu", "4"), ("memory", "8Gi")].map(|(name, amount)| (name.into(), amount.parse().unwrap()));
        value(&reference, &pod(), &BTreeMap::from(allocatable))
    }

    #[test]
    fn amounts_are_in_units_of_the_divisor_and_rounded_up() {
        for (container, resource, divisor, expected) in [
            ("a", "limits.cpu", "", "1"),
            ("a", "limits.cpu", "1m", "250"),
            ("a", "limits.cpu", "0", "1"),
            ("a", "limits.memory", "", "67108864"),
            ("a", "limits.memory", "1Mi", "64"),
            ("a", "limits.memory", "1G", "1"),
            ("a", "requests.cpu", "1m", "100"),
            ("a", "requests.memory", "1Ki", "32768"),
            ("a", "limits.hugepages-2Mi", "1Mi", "4"),
            ("b", "requests.memory", "", "0"),
        ] {
            assert_eq!(told(container, resource, divisor).unwrap(), expected, "{container} {resource} {divisor}");
        }
    }

    #[test]
    fn without_a_limit_the_node_is_the_limit() {
        assert_eq!(told("b", "limits.cpu", "").unwrap(), "4");
        assert_eq!(told("b", "limits.memory", "1Gi").unwrap(), "8");
        assert_eq!(told("b", "limits.ephemeral-storage", "").unwrap(), "0", "the node does not say");
        let reference =
            |resource: &str| ResourceFieldRef { container_name: "b".into(), resource: resource.into(), divisor: None };
        assert!(is_unlimited(&reference("limits.cpu"), &pod()) && !is_unlimited(&reference("requests.cpu"), &pod()));
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (container, resource) in [("c", "limits.cpu"), ("a", "limits.gpu"), ("a", "cpu"), ("a", "sizes.cpu")] {
            assert!(told(container, resource, "").is_err(), "{container} {resource}");
        }
    }
}
