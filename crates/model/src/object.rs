//! What every Kubernetes object has: its kind, its key, and the part of its metadata controllers decide on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::annotation_map::Annotations;
use crate::text::Text;

/// Where a kind lives in the Kubernetes API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// API version inside the group.
    pub version: &'static str,
    /// Kind as written in manifests.
    pub kind: &'static str,
    /// Lower-case plural used in paths.
    pub plural: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

impl Kind {
    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The collection's path: of one namespace, or of all when `namespace` is empty.
    pub fn collection_path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{}/{}", segment(namespace), self.plural)
        } else {
            format!("{root}/{}", self.plural)
        }
    }

    /// The path of one object.
    pub fn object_path(&self, key: &Key) -> String {
        format!("{}/{}", self.collection_path(&key.namespace), segment(&key.name))
    }
}

/// A name as one segment of a path: names of other objects come from fields that nobody may have checked, such as the node
/// of a pod, and must not lead to another object.
fn segment(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b':' | b'@');
    let only_dots = matches!(name, "." | "..");
    if !only_dots && name.bytes().all(|byte| plain(byte) || byte == b'.') {
        return Cow::Borrowed(name);
    }
    let mut encoded = String::with_capacity(3 * name.len());
    for byte in name.bytes() {
        if plain(byte) || (byte == b'.' && !only_dots) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    Cow::Owned(encoded)
}

macro_rules! kinds {
    ($($name:ident = $group:literal, $version:literal, $kind:literal, $plural:literal, $namespaced:literal;)*) => {
        /// The kinds this project reads or writes.
        pub mod kinds {
            use super::Kind;
            $(
                #[doc = $kind]
                pub const $name: Kind = Kind {
                    group: $group, version: $version, kind: $kind, plural: $plural, namespaced: $namespaced,
                };
            )*
        }
    };
}

kinds! {
    NAMESPACE = "", "v1", "Namespace", "namespaces", false;
    NODE = "", "v1", "Node", "nodes", false;
    POD = "", "v1", "Pod", "pods", true;
    VOLUME = "", "v1", "PersistentVolume", "persistentvolumes", false;
    CLAIM = "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true;
    EVENT = "", "v1", "Event", "events", true;
    SECRET = "", "v1", "Secret", "secrets", true;
    CONFIG_MAP = "", "v1", "ConfigMap", "configmaps", true;
    SERVICE_ACCOUNT = "", "v1", "ServiceAccount", "serviceaccounts", true;
    STORAGE_CLASS = "storage.k8s.io", "v1", "StorageClass", "storageclasses", false;
    ATTRIBUTES_CLASS = "storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", false;
    VOLUME_ATTACHMENT = "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false;
    CSI_DRIVER = "storage.k8s.io", "v1", "CSIDriver", "csidrivers", false;
    CSI_NODE = "storage.k8s.io", "v1", "CSINode", "csinodes", false;
    STORAGE_CAPACITY = "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", true;
    VOLUME_SNAPSHOT = "snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots", true;
    VOLUME_SNAPSHOT_CONTENT = "snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents", false;
    VOLUME_SNAPSHOT_CLASS = "snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", false;
    VOLUME_GROUP_SNAPSHOT = "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshot", "volumegroupsnapshots", true;
    VOLUME_GROUP_SNAPSHOT_CONTENT =
        "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshotContent", "volumegroupsnapshotcontents", false;
    VOLUME_GROUP_SNAPSHOT_CLASS =
        "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses", false;
    REFERENCE_GRANT = "gateway.networking.k8s.io", "v1beta1", "ReferenceGrant", "referencegrants", true;
    DEFINITION =
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false;
    CLUSTER_TRUST_BUNDLE =
        "certificates.k8s.io", "v1beta1", "ClusterTrustBundle", "clustertrustbundles", false;
    LEASE = "coordination.k8s.io", "v1", "Lease", "leases", true;
}

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// Key of an object in a namespace.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Key of a cluster-scoped object.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: String::new(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kind and key together: what an action touches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The object's kind.
    pub kind: Kind,
    /// The object's key.
    pub key: Key,
}

/// An object reference good enough for an event or an owner reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// The object's kind.
    pub kind: Kind,
    /// The object's key.
    pub key: Key,
    /// The object's uid.
    pub uid: String,
}

/// The part of ObjectMeta that decisions need. Deserialize only: a cached object cannot be written back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Empty for cluster-scoped kinds.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// The object's name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Set by the API server, unique for ever.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// Decimal revision of the last change.
    #[serde(rename = "resourceVersion", deserialize_with = "revision")]
    pub revision: u64,
    /// When the object was created.
    pub creation_timestamp: Option<Timestamp>,
    /// Set once deletion was asked for.
    pub deletion_timestamp: Option<Timestamp>,
    /// How long the deletion may take, in seconds; set together with the deletion timestamp.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Who must agree before the object goes.
    #[serde(deserialize_with = "exact")]
    pub finalizers: Vec<Text>,
    /// Annotations, except the bulky `last-applied-configuration`.
    #[serde(deserialize_with = "or_default")]
    pub annotations: Annotations,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Owners.
    #[serde(deserialize_with = "exact")]
    pub owner_references: Vec<OwnerReference>,
}

/// An owner of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// The owner's kind.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    /// The owner's name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The owner's uid.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// Whether this is the managing owner.
    #[serde(deserialize_with = "or_default")]
    pub controller: bool,
}

impl Meta {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(self.namespace.clone(), self.name.clone())
    }

    /// Whether deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether the finalizer is present.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|present| present == finalizer)
    }

    /// The managing owner, of which there is at most one.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// An annotation's value; absent and empty are different.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }
}

/// A trimmed, read-only view of a Kubernetes object, as kept in caches.
pub trait Projection: DeserializeOwned + Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// Where the kind lives.
    const KIND: Kind;

    /// The object's metadata.
    fn meta(&self) -> &Meta;

    /// The object as a server sends it. Kinds write these lines out, so that what reads them is compiled here, and not
    /// again in each service.
    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Namespace and name.
    fn key(&self) -> Key {
        self.meta().key()
    }

    /// Kind and key.
    fn id(&self) -> ObjectId {
        ObjectId { kind: Self::KIND, key: self.key() }
    }

    /// Kind, key and uid.
    fn reference(&self) -> ObjectRef {
        ObjectRef { kind: Self::KIND, key: self.key(), uid: self.meta().uid.clone() }
    }
}

fn revision<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| serde::de::Error::custom(format!("resourceVersion {text:?} is not a decimal number")))
}

/// A list without room for more: most objects have one entry, and a growing list has room for four.
pub fn exact<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    let mut list = or_default::<D, Vec<T>>(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

/// Reads `null` as the default value, as Go does.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_kinds_live_under_api_and_others_under_apis() {
        assert_eq!(kinds::VOLUME.api_version(), "v1");
        assert_eq!(kinds::VOLUME.object_path(&Key::cluster("pv1")), "/api/v1/persistentvolumes/pv1");
        assert_eq!(kinds::LEASE.api_version(), "coordination.k8s.io/v1");
        let lease = Key::namespaced("kube-system", "l");
        assert_eq!(kinds::LEASE.object_path(&lease), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l");
    }

    #[test]
    fn a_name_that_nobody_checked_stays_one_segment_of_the_path() {
        for (name, segment) in [
            ("../../etc", "..%2F..%2Fetc"),
            ("..", "%2E%2E"),
            ("a b?c#d", "a%20b%3Fc%23d"),
            ("n-1.example.com", "n-1.example.com"),
            ("system:node", "system:node"),
        ] {
            assert_eq!(kinds::NODE.object_path(&Key::cluster(name)), format!("/api/v1/nodes/{segment}"));
        }
    }

    #[test]
    fn an_empty_namespace_means_all_of_them() {
        assert_eq!(kinds::CLAIM.collection_path(""), "/api/v1/persistentvolumeclaims");
        assert_eq!(kinds::CLAIM.collection_path("shop"), "/api/v1/namespaces/shop/persistentvolumeclaims");
    }

    #[test]
    fn a_version_that_is_no_number_is_named() {
        let error = serde_json::from_str::<Meta>(r#"{"resourceVersion":"abc"}"#).unwrap_err().to_string();
        assert!(error.contains("resourceVersion \"abc\""), "{error}");
    }
}
