//! The kinds this server has, and in what they differ.

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
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, with where they point.
    pub fields: &'static [(&'static str, &'static str)],
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
    fields: &[],
};

const STORAGE: Kind = Kind { group: "storage.k8s.io", returns_deleted: true, ..CORE };

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
        ..CORE
    },
    Kind {
        group: "coordination.k8s.io",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        namespaced: true,
        unconditional_update: false,
        ..CORE
    },
    Kind { plural: "storageclasses", singular: "storageclass", kind: "StorageClass", short_names: &["sc"], ..STORAGE },
    Kind {
        plural: "volumeattachments",
        singular: "volumeattachment",
        kind: "VolumeAttachment",
        status: true,
        status_keeps_metadata: true,
        unconditional_update: false,
        ..STORAGE
    },
    Kind { plural: "csidrivers", singular: "csidriver", kind: "CSIDriver", generation: true, ..STORAGE },
    Kind { plural: "csinodes", singular: "csinode", kind: "CSINode", unconditional_update: false, ..STORAGE },
    Kind {
        plural: "csistoragecapacities",
        singular: "csistoragecapacity",
        kind: "CSIStorageCapacity",
        namespaced: true,
        ..STORAGE
    },
    Kind {
        plural: "volumeattributesclasses",
        singular: "volumeattributesclass",
        kind: "VolumeAttributesClass",
        short_names: &["vac"],
        ..STORAGE
    },
];

impl Kind {
    /// The kind served at this group, version and plural.
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|k| k.plural == plural && k.group == group && k.version == version)
    }

    /// The kind of this name in the core or storage group; for the store's own use.
    pub(crate) fn named(kind: &str) -> &'static Kind {
        KINDS.iter().find(|k| k.kind == kind).expect("only asked for kinds of the table above")
    }

    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods` or `leases.coordination.k8s.io`, as error messages and the data file name it.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.plural == other.plural && self.group == other.group && self.version == other.version
    }
}
