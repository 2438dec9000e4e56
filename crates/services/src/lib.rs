//! The one table of services: what there is, where it runs and how it is shipped. Images, suites and manifests are held
//! against it, so that a new service is added here and not in ten places.
#![forbid(unsafe_code)]

/// Where a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The API server itself.
    Server,
    /// Once for the cluster; a client of the API that elects a leader.
    Cluster,
    /// Beside the controller of each driver; a client of the API that elects a leader per driver.
    Sidecar,
    /// Beside the driver on each node; speaks to the driver and the kubelet only.
    NodeSidecar,
    /// Beside every driver, its controller and those of nodes; asked by kubelets and container engines, so that stacks
    /// which have neither do without.
    Probe,
    /// The driver, its controller and on each node.
    Driver,
    /// In the kubelet's place on each node; a client of the API.
    Node,
    /// Typed by people.
    Command,
}

/// What a service's image stands on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Image {
    /// Nothing: a static binary, of at most so many megabytes.
    Scratch {
        /// 10^6 bytes; none for what has no limit.
        most: Option<f64>,
    },
    /// A slim Debian with the programs that make file systems.
    Debian,
}

/// One binary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    /// Of its folder below `services/`, its package, its binary and its image.
    pub name: &'static str,
    /// Where it runs.
    pub place: Place,
    /// How it is shipped.
    pub image: Image,
    /// Its Lease: the namespace where it is fixed, and the name, in which `{driver}` stands for the driver's.
    pub lease: Option<(&'static str, &'static str)>,
}

const SMALL: Image = Image::Scratch { most: Some(15.0) };
/// A Lease in the service's own namespace, as sidecars have it.
const OWN: &str = "";

/// All of them, in the order of their names.
pub const SERVICES: [Service; 14] = [
    Service { name: "apiserver", place: Place::Server, image: SMALL, lease: None },
    Service {
        name: "attach-detach-controller",
        place: Place::Cluster,
        image: SMALL,
        lease: Some(("kube-system", "attach-detach-controller")),
    },
    Service {
        name: "attacher",
        place: Place::Sidecar,
        image: SMALL,
        lease: Some((OWN, "external-attacher-leader-{driver}")),
    },
    Service { name: "livenessprobe", place: Place::Probe, image: SMALL, lease: None },
    Service { name: "node-plugin", place: Place::Driver, image: Image::Debian, lease: None },
    Service { name: "provisioner", place: Place::Sidecar, image: SMALL, lease: Some((OWN, "{driver}")) },
    Service {
        name: "pv-controller",
        place: Place::Cluster,
        image: SMALL,
        lease: Some(("kube-system", "pv-controller")),
    },
    Service { name: "registrar", place: Place::NodeSidecar, image: SMALL, lease: None },
    Service { name: "resizer", place: Place::Sidecar, image: SMALL, lease: Some((OWN, "external-resizer-{driver}")) },
    Service { name: "scheduler", place: Place::Cluster, image: SMALL, lease: Some(("kube-system", "kube-scheduler")) },
    Service {
        name: "snapshot-controller",
        place: Place::Cluster,
        image: SMALL,
        lease: Some((OWN, "snapshot-controller-leader")),
    },
    Service {
        name: "snapshotter",
        place: Place::Sidecar,
        image: SMALL,
        lease: Some((OWN, "external-snapshotter-leader-{driver}")),
    },
    Service { name: "stowage", place: Place::Command, image: Image::Scratch { most: None }, lease: None },
    Service { name: "volume-manager", place: Place::Node, image: Image::Debian, lease: None },
];

impl Service {
    /// Whether it speaks to the Kubernetes API.
    pub fn is_client(&self) -> bool {
        matches!(self.place, Place::Cluster | Place::Sidecar | Place::Node)
    }

    /// Whether it is a process of a stack, and not what people type.
    pub fn is_process(&self) -> bool {
        self.place != Place::Command
    }

    /// The name of its Lease for a driver, as the API takes it.
    pub fn lease_name(&self, driver: &str) -> Option<String> {
        self.lease.map(|(_, name)| name.replace("{driver}", &driver.replace('.', "-")))
    }
}

/// The names of those for which something holds.
pub fn names(holds: impl Fn(&Service) -> bool) -> Vec<&'static str> {
    SERVICES.iter().filter(|service| holds(service)).map(|service| service.name).collect()
}

/// The names of those that stacks start in these places, place by place.
pub fn assembled(places: &[Place]) -> Vec<&'static str> {
    places.iter().flat_map(|place| names(|service| service.place == *place)).collect()
}

/// The service of this name.
pub fn find(name: &str) -> Option<&'static Service> {
    SERVICES.iter().find(|service| service.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_folder_below_services_is_in_the_table_and_nothing_else() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut folders: Vec<String> = entries.collect();
        folders.sort();
        assert_eq!(folders, names(|_| true), "in the order of their names");
    }

    #[test]
    fn a_sidecars_lease_has_its_drivers_name() {
        let lease = find("attacher").unwrap().lease_name("shared.csi.stowage.dev");
        assert_eq!(lease.as_deref(), Some("external-attacher-leader-shared-csi-stowage-dev"));
        assert_eq!(find("registrar").unwrap().lease_name("d"), None);
    }
}
