//! What an empty directory is made of, and how large it may be.

use std::collections::BTreeMap;

use stowage_model::Quantity;
use stowage_model::node_view::NodePod;
use stowage_model::volume_source::EmptyDirSource;

pub const MEMORY: &str = "Memory";
const HUGE_PAGES: &str = "HugePages";
const HUGE_PAGES_OF: &str = "HugePages-";
const HUGE_PAGES_RESOURCE: &str = "hugepages-";

/// What an empty directory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// The node's disk.
    Disk,
    /// Memory, at most so many bytes.
    Memory { size: Option<u64> },
    /// Huge pages of one size.
    HugePages { page_size: Quantity },
}

pub fn is_memory(source: &EmptyDirSource) -> bool {
    source.medium == MEMORY
}

/// What memory is limited to by the node, the pod and the volume itself.
pub fn of_memory(node: &BTreeMap<String, Quantity>, pod: &NodePod, limit: Option<Quantity>) -> Medium {
    Medium::Memory { size: memory_size([node.get("memory").copied(), pod_memory(pod), limit]) }
}

/// A medium that is not memory.
pub fn of(source: &EmptyDirSource, pod: &NodePod) -> Result<Medium, String> {
    match source.medium.as_str() {
        "" => Ok(Medium::Disk),
        HUGE_PAGES => Ok(Medium::HugePages { page_size: page_size(None, pod)? }),
        other => match other.strip_prefix(HUGE_PAGES_OF).and_then(|size| size.parse().ok()) {
            Some(wanted) => Ok(Medium::HugePages { page_size: page_size(Some(wanted), pod)? }),
            None => {
                Err(format!("emptyDir.medium {other:?} is not known; use \"\", Memory, HugePages or HugePages-<size>"))
            }
        },
    }
}

/// The smallest of the node's, the pod's and the volume's own limit.
fn memory_size(limits: [Option<Quantity>; 3]) -> Option<u64> {
    let bytes = |limit: Quantity| u64::try_from(limit.bytes()).ok().filter(|bytes| *bytes > 0);
    limits.into_iter().flatten().filter_map(bytes).min()
}

/// What the pod's memory is limited to; none if one of its containers has no limit.
fn pod_memory(pod: &NodePod) -> Option<Quantity> {
    let limit = |limits: &BTreeMap<String, Quantity>| limits.get("memory").copied().filter(|limit| !limit.is_zero());
    if let Some(whole) = limit(&pod.resources.limits) {
        return Some(whole);
    }
    let of = |name: &str| pod.containers.iter().find(|container| container.name == name);
    let limits = |names: Vec<&str>| -> Option<Vec<i128>> {
        names.into_iter().map(|name| limit(&of(name)?.resources.limits).map(Quantity::bytes)).collect()
    };
    let running = limits(pod.spec.containers.iter().map(|container| container.name.as_str()).collect())?;
    let before = limits(pod.spec.init_containers.iter().map(|container| container.name.as_str()).collect())?;
    let most = running.iter().sum::<i128>().max(before.into_iter().max().unwrap_or_default());
    (most > 0).then(|| Quantity::from_bytes(i64::try_from(most).unwrap_or(i64::MAX)))
}

/// The size of the huge pages that the pod or its containers request: the one asked for, or the only one.
fn page_size(wanted: Option<Quantity>, pod: &NodePod) -> Result<Quantity, String> {
    let of_containers = pod.containers.iter().flat_map(|container| container.resources.requests.keys());
    let requested = of_containers.chain(pod.resources.requests.keys());
    let sizes = requested.filter_map(|name| name.strip_prefix(HUGE_PAGES_RESOURCE)?.parse::<Quantity>().ok());
    let sizes: std::collections::BTreeSet<Quantity> = sizes.collect();
    match (wanted, sizes.first()) {
        (Some(wanted), _) if sizes.contains(&wanted) => Ok(wanted),
        (Some(wanted), _) => Err(format!(
            "emptyDir.medium HugePages-{wanted}: neither the pod nor a container requests hugepages-{wanted}; add it to resources"
        )),
        (None, Some(only)) if sizes.len() == 1 => Ok(*only),
        (None, None) => {
            Err("emptyDir.medium HugePages: neither the pod nor a container requests huge pages; add them to resources"
                .into())
        }
        (None, Some(_)) => Err(format!(
            "emptyDir.medium HugePages: the pod requests several sizes ({}); name one, as in HugePages-2Mi",
            sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stowage_model::object::Projection as _;

    use super::*;

    fn pod(containers: Value) -> NodePod {
        let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": containers } });
        NodePod::read(pod.to_string().as_bytes()).unwrap()
    }

    fn limited(memory: &str) -> Value {
        json!({ "name": memory, "resources": { "limits": { "memory": memory } } })
    }

    fn medium(source: Value, containers: Value) -> Result<Medium, String> {
        let source: EmptyDirSource = serde_json::from_value(source).unwrap();
        let node = BTreeMap::from([("memory".to_owned(), "16Gi".parse().unwrap())]);
        match is_memory(&source) {
            true => Ok(of_memory(&node, &pod(containers), source.size_limit)),
            false => of(&source, &pod(containers)),
        }
    }

    #[test]
    fn row_130_the_smallest_of_node_pod_and_volume_is_the_size() {
        let size =
            |limit: Value, containers| match medium(json!({ "medium": "Memory", "sizeLimit": limit }), containers) {
                Ok(Medium::Memory { size }) => size.unwrap() >> 30,
                other => panic!("{other:?}"),
            };
        let pod = json!([limited("6Gi"), limited("4Gi")]);
        assert_eq!(size(json!("1Gi"), pod.clone()), 1);
        assert_eq!(size(json!("0"), pod.clone()), 10);
        assert_eq!(size(json!("64Gi"), pod), 10);
        assert_eq!(size(Value::Null, json!([{ "name": "a" }])), 16);
        assert_eq!(size(Value::Null, json!([limited("1Gi"), { "name": "a" }])), 16, "one container has no limit");
        assert_eq!(size(json!("2Gi"), json!([])), 2);
    }

    #[test]
    fn row_131_huge_pages_have_the_one_size_that_is_requested() {
        let asks = |sizes: &[&str]| {
            let requests: serde_json::Map<_, _> =
                sizes.iter().map(|size| (format!("hugepages-{size}"), json!("1Gi"))).collect();
            json!([{ "name": "a", "resources": { "requests": requests } }])
        };
        let of = |medium_name: &str, sizes: &[&str]| medium(json!({ "medium": medium_name }), asks(sizes));
        let pages = |text: &str| Ok(Medium::HugePages { page_size: text.parse().unwrap() });
        assert_eq!(of("HugePages", &["2Mi"]), pages("2Mi"));
        assert_eq!(of("HugePages-1Gi", &["2Mi", "1Gi"]), pages("1Gi"));
        for (name, sizes) in [("HugePages", &["2Mi", "1Gi"][..]), ("HugePages", &[]), ("HugePages-1Gi", &["2Mi"])] {
            assert!(of(name, sizes).is_err(), "{name} {sizes:?}");
        }
        assert!(of("HugePages-", &[]).is_err() && of("Disk", &[]).is_err());
    }

    #[test]
    fn row_131_what_the_pod_requests_as_a_whole_counts_beside_its_containers() {
        let of = |medium: &str, sizes: &[&str]| {
            let requests = |size: &str| json!({ "requests": { format!("hugepages-{size}"): "1Gi" } });
            let containers = json!([{ "name": "a", "resources": sizes.get(1).map(|size| requests(size)) }]);
            let spec = json!({ "containers": containers, "resources": requests(sizes[0]) });
            let pod = NodePod::read(json!({ "metadata": { "name": "p" }, "spec": spec }).to_string().as_bytes());
            super::of(&serde_json::from_value(json!({ "medium": medium })).unwrap(), &pod.unwrap())
        };
        let pages = |text: &str| Ok(Medium::HugePages { page_size: text.parse().unwrap() });
        assert_eq!(of("HugePages", &["2Mi"]), pages("2Mi"));
        assert_eq!(of("HugePages", &["2Mi", "2Mi"]), pages("2Mi"));
        assert_eq!(of("HugePages-1Gi", &["1Gi", "2Mi"]), pages("1Gi"));
        assert!(of("HugePages", &["1Gi", "2Mi"]).is_err() && of("HugePages-2Mi", &["1Gi"]).is_err());
    }
}
