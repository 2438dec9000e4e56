//! Pods and PersistentVolumes as the node that uses them sees them: in full where volumes are concerned.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Map, Value};

use crate::access_mode::AccessMode;
use crate::annotations;
use crate::object::{Kind, Meta, Projection, kinds, or_default};
use crate::pod::Pod;
use crate::quantity::Quantity;
use crate::volume::Volume;
use crate::volume_source::{FieldRef, VolumeSource};

/// A pod with everything its volumes are made of. It is a [`Pod`] too.
///
/// A mirror pod is read as the static pod that it stands for: what a node has of it carries that pod's uid, which is not
/// the object's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodePod {
    pod: Pod,
    /// The object's uid, where it is not the pod's.
    mirror_uid: Option<String>,
    /// Its volumes' sources by the volumes' names; claims are not among them.
    pub sources: BTreeMap<String, VolumeSource>,
    /// What its containers are given and how they mount volumes, init containers first.
    pub containers: Vec<NodeContainer>,
    /// Whose files are whose.
    pub security: PodSecurity,
    /// Resources of the pod as a whole, where it says them.
    pub resources: Resources,
    /// Addresses its status has.
    pub addresses: Addresses,
    /// All its annotations, also the bulky one that [`Meta`] leaves out: a volume may show them to its containers.
    pub annotations: BTreeMap<String, String>,
}

projection! {
    /// A container, where it concerns volumes and what is told about it in files.
    pub struct NodeContainer {
        /// Its name.
        pub name: String,
        /// How it mounts volumes.
        pub volume_mounts: Vec<VolumeMount>,
        /// Which volumes it gets as devices, and where.
        pub volume_devices: Vec<VolumeDevice>,
        /// What it asks for and what it may use.
        pub resources: Resources,
        /// Whose files are whose.
        pub security_context: PodSecurity,
        /// Its variables, if a path inside a volume has variables.
        pub env: Vec<EnvVar>,
    }

    /// A variable of a container.
    pub struct EnvVar {
        /// Its name.
        pub name: String,
        /// Its value, in which variables before it may stand.
        pub value: String,
        /// Where its value comes from instead.
        pub value_from: Option<EnvVarSource>,
    }

    /// Where a variable's value comes from; other sources than fields of the pod are not read.
    pub struct EnvVarSource {
        /// A field of the pod.
        pub field_ref: Option<FieldRef>,
    }

    /// One mount of a volume in a container.
    pub struct VolumeMount {
        /// The volume's name in the pod.
        pub name: String,
        /// Where the container sees it.
        pub mount_path: String,
        /// A path inside the volume.
        pub sub_path: String,
        /// A path inside the volume with variables.
        pub sub_path_expr: String,
        /// Whether it may only be read there.
        pub read_only: bool,
        /// Whether mounts made later are seen on the other side.
        pub mount_propagation: String,
    }

    /// One device in a container.
    pub struct VolumeDevice {
        /// The volume's name in the pod.
        pub name: String,
        /// Where the container sees it.
        pub device_path: String,
    }

    /// What is asked for and what may be used, by the resource's name.
    pub struct Resources {
        /// Asked for.
        pub requests: BTreeMap<String, Quantity>,
        /// The most.
        pub limits: BTreeMap<String, Quantity>,
    }

    /// Whose files are whose, of a pod or of one container.
    pub struct PodSecurity {
        /// The user its processes run as.
        pub run_as_user: Option<i64>,
        /// Further groups of its processes.
        pub supplemental_groups: Vec<i64>,
        /// The label of its processes.
        pub se_linux_options: Option<SeLinuxOptions>,
        /// `MountOption` or `Recursive`.
        #[serde(rename = "seLinuxChangePolicy")]
        pub se_linux_change_policy: String,
    }

    /// An SELinux label in its parts.
    pub struct SeLinuxOptions {
        /// The user.
        pub user: String,
        /// The role.
        pub role: String,
        /// The type.
        #[serde(rename = "type")]
        pub kind: String,
        /// The level.
        pub level: String,
    }

    /// Where a pod and its node can be reached.
    pub struct Addresses {
        /// The node's.
        #[serde(rename = "hostIP")]
        pub host_ip: String,
        /// All of the node's.
        #[serde(rename = "hostIPs")]
        pub host_ips: Vec<Address>,
        /// The pod's.
        #[serde(rename = "podIP")]
        pub pod_ip: String,
        /// All of the pod's.
        #[serde(rename = "podIPs")]
        pub pod_ips: Vec<Address>,
    }

    /// The part of a Node that says what its pods can have; controllers that keep all Nodes do without it.
    pub struct NodeResources {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What it reports.
        pub status: NodeResourcesStatus,
    }

    /// What a node reports of its resources.
    pub struct NodeResourcesStatus {
        /// What pods can have, by the resource's name.
        pub allocatable: BTreeMap<String, Quantity>,
    }

    /// One address.
    pub struct Address {
        /// In text.
        pub ip: String,
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodWire {
    #[serde(deserialize_with = "or_default")]
    metadata: PodMetaWire,
    #[serde(deserialize_with = "or_default")]
    spec: PodSpecWire,
    #[serde(deserialize_with = "or_default")]
    status: Addresses,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetaWire {
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecWire {
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<Map<String, Value>>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<NodeContainer>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<NodeContainer>,
    #[serde(deserialize_with = "or_default")]
    ephemeral_containers: Vec<NodeContainer>,
    #[serde(deserialize_with = "or_default")]
    security_context: PodSecurity,
    #[serde(deserialize_with = "or_default")]
    resources: Resources,
}

impl Projection for NodeResources {
    const KIND: Kind = kinds::NODE;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl Projection for NodePod {
    const KIND: Kind = kinds::POD;

    fn meta(&self) -> &Meta {
        &self.pod.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl<'de> Deserialize<'de> for NodePod {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// As a kubelet makes them, of a manifest: never what an API server gives, so no pod can pass itself off as another's
/// object, nor as a path.
fn is_static_uid(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn set(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

impl Deref for NodePod {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}

impl NodeContainer {
    /// Without variables that nothing here asks for: they can be many and long.
    fn trimmed(mut self) -> Self {
        if self.volume_mounts.iter().all(|mount| mount.sub_path_expr.is_empty()) {
            self.env = Vec::new();
        }
        self
    }
}

impl NodePod {
    fn of(object: Value) -> Result<Self, serde_json::Error> {
        let mut pod = Pod::deserialize(&object)?;
        let PodWire { mut metadata, spec, status } = PodWire::deserialize(object)?;
        let static_uid = metadata.annotations.get(annotations::CONFIG_MIRROR).filter(|uid| is_static_uid(uid)).cloned();
        let mirror_uid = static_uid.map(|uid| std::mem::replace(&mut pod.meta.uid, uid));
        if mirror_uid.is_some() {
            // The static pod itself does not have it, and a volume may show its containers all it has.
            metadata.annotations.remove(annotations::CONFIG_MIRROR);
        }
        let mut sources = BTreeMap::new();
        for mut volume in spec.volumes {
            let name = volume.remove("name").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
            let claimed = ["persistentVolumeClaim", "ephemeral"].iter().any(|member| set(volume.get(*member)));
            let source = volume.into_iter().find(|(_, value)| set(Some(value)));
            if let Some((member, value)) = source.filter(|_| !claimed) {
                sources.insert(name, VolumeSource::of_pod(&member, value)?);
            }
        }
        let containers = spec.init_containers.into_iter().chain(spec.containers).chain(spec.ephemeral_containers);
        let containers = containers.map(NodeContainer::trimmed).collect();
        let (security, resources) = (spec.security_context, spec.resources);
        let annotations = metadata.annotations;
        Ok(Self { pod, mirror_uid, sources, containers, security, resources, addresses: status, annotations })
    }

    /// The uid by which the API server knows the object.
    pub fn object_uid(&self) -> &str {
        self.mirror_uid.as_deref().unwrap_or(&self.pod.meta.uid)
    }

    /// Whether a container mounts the volume of that name.
    pub fn mounts(&self, volume: &str) -> bool {
        self.containers.iter().any(|container| container.volume_mounts.iter().any(|mount| mount.name == volume))
    }

    /// Whether a container gets the volume of that name as a device.
    pub fn maps_device(&self, volume: &str) -> bool {
        self.containers.iter().any(|container| container.volume_devices.iter().any(|device| device.name == volume))
    }

    /// The user all its containers run as, if it is one and the same.
    pub fn common_user(&self) -> Option<i64> {
        let mut users = self.containers.iter().map(|container| {
            let own = container.security_context.run_as_user;
            own.or(self.security.run_as_user)
        });
        let first = users.next()??;
        users.all(|user| user == Some(first)).then_some(first)
    }
}

/// A PersistentVolume with its whole source. It is a [`Volume`] too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeVolume {
    volume: Volume,
    /// Where it comes from; none for an object without a source.
    pub source: Option<VolumeSource>,
    /// Whether the object itself says its volume mode; the API server always sets it.
    pub has_volume_mode: bool,
    /// The first of its access modes in the object's own order.
    pub first_access_mode: Option<AccessMode>,
}

/// Fields of a PersistentVolume's spec that are not its source.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

impl Projection for NodeVolume {
    const KIND: Kind = kinds::VOLUME;

    fn meta(&self) -> &Meta {
        &self.volume.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl<'de> Deserialize<'de> for NodeVolume {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl NodeVolume {
    fn of(mut object: Value) -> Result<Self, serde_json::Error> {
        let volume = Volume::deserialize(&object)?;
        let has_volume_mode = set(object["spec"].get("volumeMode"));
        let modes = Vec::<AccessMode>::deserialize(object["spec"]["accessModes"].take()).unwrap_or_default();
        let members = object["spec"].as_object_mut().map(std::mem::take).unwrap_or_default();
        let mut sources =
            members.into_iter().filter(|(member, value)| !NOT_SOURCES.contains(&member.as_str()) && value.is_object());
        let source = sources.next().map(|(member, value)| VolumeSource::of_volume(&member, value)).transpose()?;
        Ok(Self { volume, source, has_volume_mode, first_access_mode: modes.first().copied() })
    }
}

impl Deref for NodeVolume {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::volume_source::SourceKind;

    fn pod(spec: Value) -> NodePod {
        NodePod::read(json!({ "metadata": { "name": "p" }, "spec": spec }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_pods_sources_are_read_by_name_and_claims_are_left_to_their_volumes() {
        let pod = pod(json!({ "volumes": [
            { "name": "scratch", "emptyDir": {} },
            { "name": "data", "persistentVolumeClaim": { "claimName": "c" } },
            { "name": "own", "ephemeral": { "volumeClaimTemplate": {} } },
            { "name": "odd", "awsElasticBlockStore": { "volumeID": "v" }, "emptyDir": null },
        ]}));
        let kinds: Vec<(&str, SourceKind)> = pod.sources.iter().map(|(name, s)| (name.as_str(), s.kind())).collect();
        assert_eq!(kinds, [("odd", SourceKind::InTree), ("scratch", SourceKind::EmptyDir)]);
        assert_eq!(pod.meta.name, "p");
    }

    #[test]
    fn a_mirror_pod_is_the_static_pod_that_it_stands_for_and_only_that() {
        let read = |mirror: &str| {
            let annotations = json!({ "kubernetes.io/config.mirror": mirror, "a": "b" });
            let metadata =
                json!({ "name": "p", "uid": "11111111-2222-3333-4444-555555555555", "annotations": annotations });
            NodePod::read(json!({ "metadata": metadata }).to_string().as_bytes()).unwrap()
        };
        let hash = "0123456789abcdef0123456789abcdef";
        let pod = read(hash);
        assert_eq!((pod.meta.uid.as_str(), pod.object_uid()), (hash, "11111111-2222-3333-4444-555555555555"));
        assert_eq!(pod.annotations.keys().collect::<Vec<_>>(), ["a"]);
        for other in ["../../../etc", "99999999-2222-3333-4444-555555555555", "", "0123456789ABCDEF0123456789ABCDEF"] {
            let pod = read(other);
            assert_eq!((pod.meta.uid.as_str(), pod.annotations.len()), (pod.object_uid(), 2), "{other:?}");
        }
    }

    #[test]
    fn the_common_user_is_the_one_that_every_container_has() {
        let user = |a, b| {
            let spec = json!({ "securityContext": { "runAsUser": 5 }, "containers": [
                { "name": "a", "securityContext": { "runAsUser": a } },
                { "name": "b", "securityContext": { "runAsUser": b } },
            ]});
            pod(spec).common_user()
        };
        assert_eq!(user(json!(7), json!(7)), Some(7));
        assert_eq!(user(json!(7), Value::Null), None);
        assert_eq!(user(Value::Null, Value::Null), Some(5));
    }

    #[test]
    fn an_ephemeral_containers_mounts_count() {
        let mount = json!([{ "name": "v", "mountPath": "/v" }]);
        let pod = pod(json!({ "ephemeralContainers": [{ "name": "debug", "volumeMounts": mount }] }));
        assert!(pod.mounts("v") && !pod.maps_device("v"));
    }

    #[test]
    fn the_first_access_mode_is_the_first_of_the_list() {
        let spec = json!({ "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "volumeMode": "Filesystem" });
        let volume = NodeVolume::read(json!({ "spec": spec }).to_string().as_bytes()).unwrap();
        assert_eq!((volume.first_access_mode, volume.spec.access_modes.len()), (Some(AccessMode::ReadWriteMany), 2));
    }

    #[test]
    fn a_volumes_source_is_what_is_left_of_its_spec() {
        let read = |spec: Value| NodeVolume::read(json!({ "spec": spec }).to_string().as_bytes()).unwrap();
        let local = read(json!({ "accessModes": ["ReadWriteOnce"], "local": { "path": "/d" }, "volumeMode": "Block" }));
        assert_eq!(local.source.as_ref().map(VolumeSource::kind), Some(SourceKind::Local));
        assert!(local.has_volume_mode);
        assert_eq!(read(json!({ "capacity": { "storage": "1Gi" } })).source, None);
    }
}
