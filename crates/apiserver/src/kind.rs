//! The kinds this server has, and in what they differ.

use bytes::Bytes;
use serde_json::Value;

use crate::object::Object;

/// One resource of the API.
#[derive(Debug)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Lower-case plural, as in paths.
    pub plural: &'static str,
    /// Lower-case singular, as on a command line.
    pub singular: &'static str,
    /// Kind as written in manifests.
    pub kind: &'static str,
    /// Abbreviations for command lines.
    pub short_names: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether there is a `status` subresource.
    pub status: bool,
    /// Whether a created object may bring its status along.
    pub status_on_create: bool,
    /// Whether a write to `status` leaves labels, annotations and finalizers alone.
    pub status_keeps_metadata: bool,
    /// Whether `metadata.generation` counts changes of `spec`.
    pub generation: bool,
    /// Whether deleting at once answers with the object rather than a `Status`.
    pub returns_deleted: bool,
    /// Whether an update may leave out `metadata.resourceVersion`.
    pub unconditional_update: bool,
    /// Whether an update of an object that is not there makes it.
    pub create_on_update: bool,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, with where they point in the object as it is kept.
    pub fields: &'static [(&'static str, &'static str)],
    /// Groups of kinds that a command line may name together, such as `all`.
    pub categories: &'static [&'static str],
    /// Group and version that objects are kept in, where it is not this one: the same objects are served under several.
    pub kept_in: Option<(&'static str, &'static str)>,
    /// Top-level members that have another name in the object as it is kept: the name here, the name there.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Whether a CustomResourceDefinition brought it.
    pub custom: bool,
}

const CORE: Kind = Kind {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    namespaced: false,
    status: false,
    status_on_create: false,
    status_keeps_metadata: false,
    generation: false,
    returns_deleted: false,
    unconditional_update: true,
    create_on_update: false,
    fields: &[],
    categories: &[],
    kept_in: None,
    renamed: &[],
    custom: false,
};

const APPS: Kind =
    Kind { group: "apps", namespaced: true, status: true, generation: true, categories: &["all"], ..CORE };

const STORAGE: Kind = Kind { group: "storage.k8s.io", returns_deleted: true, ..CORE };
const RBAC: Kind = Kind { group: "rbac.authorization.k8s.io", create_on_update: true, ..CORE };

/// What list options are called in messages about them.
pub(crate) const LIST_OPTIONS: Kind = Kind { group: "meta.k8s.io", kind: "ListOptions", ..CORE };

/// Every kind, in the order discovery shows them.
pub static KINDS: &[Kind] = &[
    Kind {
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short_names: &["ns"],
        status: true,
        fields: &[("status.phase", "/status/phase")],
        ..CORE
    },
    Kind {
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short_names: &["no"],
        status: true,
        status_on_create: true,
        fields: &[("spec.unschedulable", "/spec/unschedulable")],
        ..CORE
    },
    Kind {
        plural: "pods",
        singular: "pod",
        kind: "Pod",
        short_names: &["po"],
        namespaced: true,
        status: true,
        generation: true,
        returns_deleted: true,
        fields: &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.restartPolicy", "/spec/restartPolicy"),
            ("spec.schedulerName", "/spec/schedulerName"),
            ("spec.serviceAccountName", "/spec/serviceAccountName"),
            ("spec.hostNetwork", "/spec/hostNetwork"),
            ("status.phase", "/status/phase"),
            ("status.podIP", "/status/podIP"),
            ("status.nominatedNodeName", "/status/nominatedNodeName"),
        ],
        categories: &["all"],
        ..CORE
    },
    Kind {
        plural: "persistentvolumes",
        singular: "persistentvolume",
        kind: "PersistentVolume",
        short_names: &["pv"],
        status: true,
        returns_deleted: true,
        ..CORE
    },
    Kind {
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        kind: "PersistentVolumeClaim",
        short_names: &["pvc"],
        namespaced: true,
        status: true,
        returns_deleted: true,
        ..CORE
    },
    Kind {
        plural: "secrets",
        singular: "secret",
        kind: "Secret",
        namespaced: true,
        fields: &[("type", "/type")],
        ..CORE
    },
    Kind {
        plural: "configmaps",
        singular: "configmap",
        kind: "ConfigMap",
        short_names: &["cm"],
        namespaced: true,
        ..CORE
    },
    Kind {
        plural: "serviceaccounts",
        singular: "serviceaccount",
        kind: "ServiceAccount",
        short_names: &["sa"],
        namespaced: true,
        returns_deleted: true,
        ..CORE
    },
    Kind {
        plural: "services",
        singular: "service",
        kind: "Service",
        short_names: &["svc"],
        namespaced: true,
        status: true,
        categories: &["all"],
        fields: &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
        create_on_update: true,
        ..CORE
    },
    Kind {
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        namespaced: true,
        fields: &[
            ("involvedObject.kind", "/involvedObject/kind"),
            ("involvedObject.namespace", "/involvedObject/namespace"),
            ("involvedObject.name", "/involvedObject/name"),
            ("involvedObject.uid", "/involvedObject/uid"),
            ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
            ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
            ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingComponent", "/reportingComponent"),
            ("source", "/source/component"),
            ("type", "/type"),
        ],
        create_on_update: true,
        ..CORE
    },
    Kind {
        group: "events.k8s.io",
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        namespaced: true,
        fields: &[
            ("regarding.kind", "/involvedObject/kind"),
            ("regarding.namespace", "/involvedObject/namespace"),
            ("regarding.name", "/involvedObject/name"),
            ("regarding.uid", "/involvedObject/uid"),
            ("regarding.apiVersion", "/involvedObject/apiVersion"),
            ("regarding.resourceVersion", "/involvedObject/resourceVersion"),
            ("regarding.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingController", "/reportingComponent"),
            ("type", "/type"),
        ],
        create_on_update: true,
        kept_in: Some(("", "v1")),
        renamed: &[
            ("regarding", "involvedObject"),
            ("note", "message"),
            ("reportingController", "reportingComponent"),
            ("deprecatedSource", "source"),
            ("deprecatedFirstTimestamp", "firstTimestamp"),
            ("deprecatedLastTimestamp", "lastTimestamp"),
            ("deprecatedCount", "count"),
        ],
        ..CORE
    },
    Kind { plural: "deployments", singular: "deployment", kind: "Deployment", short_names: &["deploy"], ..APPS },
    Kind { plural: "statefulsets", singular: "statefulset", kind: "StatefulSet", short_names: &["sts"], ..APPS },
    Kind { plural: "daemonsets", singular: "daemonset", kind: "DaemonSet", short_names: &["ds"], ..APPS },
    Kind { plural: "replicasets", singular: "replicaset", kind: "ReplicaSet", short_names: &["rs"], ..APPS },
    Kind {
        group: "coordination.k8s.io",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        namespaced: true,
        unconditional_update: false,
        create_on_update: true,
        ..CORE
    },
    Kind {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        status: true,
        generation: true,
        unconditional_update: false,
        categories: &["api-extensions"],
        ..CORE
    },
    Kind { plural: "storageclasses", singular: "storageclass", kind: "StorageClass", short_names: &["sc"], ..STORAGE },
    Kind {
        plural: "volumeattachments",
        singular: "volumeattachment",
        kind: "VolumeAttachment",
        short_names: &["va"],
        status: true,
        status_keeps_metadata: true,
        unconditional_update: false,
        ..STORAGE
    },
    Kind {
        plural: "csidrivers",
        singular: "csidriver",
        kind: "CSIDriver",
        generation: true,
        unconditional_update: false,
        ..STORAGE
    },
    Kind { plural: "csinodes", singular: "csinode", kind: "CSINode", unconditional_update: false, ..STORAGE },
    Kind {
        plural: "csistoragecapacities",
        singular: "csistoragecapacity",
        kind: "CSIStorageCapacity",
        namespaced: true,
        unconditional_update: false,
        ..STORAGE
    },
    Kind {
        plural: "volumeattributesclasses",
        singular: "volumeattributesclass",
        kind: "VolumeAttributesClass",
        short_names: &["vac"],
        ..STORAGE
    },
    Kind { plural: "clusterroles", singular: "clusterrole", kind: "ClusterRole", ..RBAC },
    Kind { plural: "clusterrolebindings", singular: "clusterrolebinding", kind: "ClusterRoleBinding", ..RBAC },
    Kind { plural: "roles", singular: "role", kind: "Role", namespaced: true, ..RBAC },
    Kind { plural: "rolebindings", singular: "rolebinding", kind: "RoleBinding", namespaced: true, ..RBAC },
];

impl Kind {
    /// The built-in kind served at this group, version and plural.
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|k| k.plural == plural && k.group == group && k.version == version)
    }

    /// The kind of this name in the core or storage group; for the store's own use.
    pub(crate) fn named(kind: &str) -> &'static Kind {
        KINDS.iter().find(|k| k.kind == kind).expect("only asked for kinds of the table above")
    }

    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        api_version(self.group, self.version)
    }

    /// Group and plural under which objects are kept: the same for all versions of a resource.
    pub(crate) fn resource(&self) -> (&'static str, &'static str) {
        (self.kept_in.map_or(self.group, |(group, _)| group), self.plural)
    }

    /// An object of this kind in the form in which it is kept.
    pub(crate) fn kept(&self, mut tree: Value) -> Value {
        let Some((group, version)) = self.kept_in else { return tree };
        self.rename(&mut tree, group, version, |(here, there)| (here, there));
        tree
    }

    /// A kept object in the form of this kind.
    pub(crate) fn shown(&self, mut tree: Value) -> Value {
        // A definition may have changed the version it keeps since the object was written.
        if self.kept_in.is_some() || self.custom {
            self.rename(&mut tree, self.group, self.version, |(here, there)| (there, here));
        }
        tree
    }

    /// The JSON of a kept object in the form of this kind.
    pub(crate) fn present(&self, object: &Object) -> Bytes {
        let begins =
            |api_version: &str| object.json.starts_with(format!(r#"{{"apiVersion":"{api_version}","#).as_bytes());
        if self.kept_in.is_none() && (!self.custom || begins(&self.api_version())) {
            return object.json.clone();
        }
        self.shown(object.tree()).to_string().into()
    }

    fn rename(
        &self,
        tree: &mut Value,
        group: &str,
        version: &str,
        direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
    ) {
        let Some(members) = tree.as_object_mut() else { return };
        members.insert("apiVersion".to_owned(), api_version(group, version).into());
        for (from, to) in self.renamed.iter().copied().map(direction) {
            if let Some(value) = members.remove(from) {
                members.insert(to.to_owned(), value);
            }
        }
    }

    /// `pods` or `leases.coordination.k8s.io`, as error messages and the data file name it.
    pub fn group_resource(&self) -> String {
        group_resource(self.group, self.plural)
    }

    /// The same of the kind in whose form objects are kept.
    pub(crate) fn kept_resource(&self) -> String {
        let (group, plural) = self.resource();
        group_resource(group, plural)
    }
}

fn group_resource(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Kubernetes' order of versions: released before beta before alpha, higher numbers first, other words last.
pub(crate) fn version_priority(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let word = || std::cmp::Reverse(version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0, word()) };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, stage) = rest.split_at(digits);
    let Ok(major) = major.parse() else { return (0, 0, 0, word()) };
    let (rank, minor) = match (stage, stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
        ("", _, _) => (3, "0"),
        (_, Some(minor), _) => (2, minor),
        (_, _, Some(minor)) => (1, minor),
        _ => return (0, 0, 0, word()),
    };
    (rank, major, minor.parse().unwrap_or(0), std::cmp::Reverse(String::new()))
}

/// The kinds a server has at one moment: the built-in ones and those that CustomResourceDefinitions brought.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    custom: Vec<&'static Kind>,
    unserved: Vec<&'static Kind>,
}

impl Kinds {
    /// The built-in kinds, these, and those in whose form objects are kept but not served.
    pub(crate) fn with(custom: Vec<&'static Kind>, unserved: Vec<&'static Kind>) -> Self {
        Self { custom, unserved }
    }

    /// Every kind, in the order discovery shows them.
    pub fn iter(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        KINDS.iter().chain(self.custom.iter().copied())
    }

    /// The kind served at this group, version and plural.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        self.iter().find(|k| k.plural == plural && k.group == group && k.version == version)
    }

    /// Kinds under which objects are kept, each resource once.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        self.iter().chain(self.unserved.iter().copied()).filter(|k| k.kept_in.is_none())
    }

    /// The kind in whose form objects of `kind` are kept.
    pub(crate) fn kept_as(&self, kind: &'static Kind) -> &'static Kind {
        match kind.kept_in {
            None => kind,
            Some((group, version)) => self
                .kept()
                .find(|k| k.group == group && k.version == version && k.plural == kind.plural)
                .unwrap_or(kind),
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.plural == other.plural && self.group == other.group && self.version == other.version
    }
}
