//! What programs on this node may ask of its volume manager, in this process or over its socket: whether a pod has its
//! volumes, where they are, and why not.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::node_view::NodePod;
use stowage_model::object::Key as ObjectKey;
use stowage_mount::SubPath;
use stowage_plugins::{VolumeHost, VolumePluginManager};
use stowage_runtime::cache::Cache;
use stowage_runtime::operation::State as Record;
use stowage_runtime::queue::Queue;

use crate::actual_state::MountState;
use crate::decide::pod::is_live;
use crate::desired_state::PodVolumes;
use crate::executor::Executor;
use crate::state::{State, States};
use crate::watches::Key;

pub use server::{Line, serve};

/// How long the kubelet waits for a pod's volumes before it says so and looks again.
pub const PATIENCE: Duration = Duration::from_secs(123);

/// The way to a running volume manager, for the process around it; empty until it has looked at its node.
#[derive(Clone)]
pub struct Handle(Arc<watch::Sender<Option<Arc<VolumeManager>>>>);

impl Default for Handle {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Handle {
    /// The volume manager, once it runs.
    pub async fn get(&self) -> Arc<VolumeManager> {
        let mut changes = self.0.subscribe();
        loop {
            if let Some(manager) = changes.borrow_and_update().clone() {
                return manager;
            }
            // The sender lives in self, so the wait cannot fail.
            let _ = changes.changed().await;
        }
    }

    pub(crate) fn set(&self, manager: VolumeManager) {
        self.0.send_replace(Some(Arc::new(manager)));
    }
}

/// What a running volume manager answers from. It decides nothing.
pub struct VolumeManager {
    pub(crate) node_name: String,
    pub(crate) state: Arc<State>,
    pub(crate) pods: Cache<NodePod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) executor: Executor,
    pub(crate) host: VolumeHost,
    pub(crate) plugins: Arc<VolumePluginManager>,
    pub(crate) queue: Queue<Key>,
}

/// A volume that a pod does not have yet, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// The volume's name in the pod.
    pub volume: String,
    /// What it waits for, or what went wrong last.
    pub cause: String,
    /// Nothing will change without somebody's doing.
    pub is_final: bool,
}

/// A pod's volumes were not all there in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no pod with uid {uid} is on this node")]
    FindPod { uid: String },
    #[error("{}", .0.iter().map(|missing| missing.cause.as_str()).collect::<Vec<_>>().join("; "))]
    Missing(Vec<Missing>),
    #[error("volumes are still mounted: {}", .0.join(", "))]
    Mounted(Vec<String>),
    #[error("volume {volume:?} in container {container}: {message}")]
    Prepare { container: String, volume: String, message: String },
}

/// One mount or device of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMount {
    pub container: String,
    /// Where the container sees it.
    pub path: String,
    /// Where it is on the node.
    pub host_path: PathBuf,
    pub read_only: bool,
    pub is_device: bool,
}

impl VolumeManager {
    /// Resolves when every volume of the pod is mounted; at once with the cause if that cannot be.
    pub async fn wait_for_attach_and_mount(&self, uid: &str, patience: Duration) -> Result<(), Error> {
        self.reprocess(uid);
        let mut changes = self.state.changes();
        let waited = timeout(patience, async {
            loop {
                changes.borrow_and_update();
                match self.missing(uid) {
                    Ok(missing) if missing.is_empty() => return Ok(()),
                    Ok(missing) if missing.iter().any(|missing| missing.is_final) => {
                        return Err(Error::Missing(missing));
                    }
                    _ => {}
                }
                // The sender lives in the state, so the wait cannot fail.
                let _ = changes.changed().await;
            }
        });
        match waited.await {
            Ok(result) => result,
            Err(_) => match self.missing(uid)? {
                missing if missing.is_empty() => Ok(()),
                missing => Err(Error::Missing(missing)),
            },
        }
    }

    /// Resolves when nothing is mounted for the pod any more.
    pub async fn wait_for_unmount(&self, uid: &str, patience: Duration) -> Result<(), Error> {
        let mut changes = self.state.changes();
        let waited = timeout(patience, async {
            loop {
                changes.borrow_and_update();
                if self.possibly_mounted_volumes(uid).is_empty() {
                    return;
                }
                let _ = changes.changed().await;
            }
        });
        match waited.await {
            Ok(()) => Ok(()),
            Err(_) => {
                let left = self.possibly_mounted_volumes(uid).into_iter();
                Err(Error::Mounted(left.map(|volume| volume.to_string()).collect()))
            }
        }
    }

    /// The volumes that certainly are mounted for the pod.
    pub fn mounted_volumes(&self, uid: &str) -> BTreeSet<UniqueVolumeName> {
        self.volumes(uid, |state| state == MountState::Mounted)
    }

    /// The volumes that are or may be mounted for the pod.
    pub fn possibly_mounted_volumes(&self, uid: &str) -> BTreeSet<UniqueVolumeName> {
        self.volumes(uid, |_| true)
    }

    fn volumes(&self, uid: &str, holds: impl Fn(MountState) -> bool) -> BTreeSet<UniqueVolumeName> {
        self.state.read(|states| {
            let volumes = states.actual.of_pod(uid).filter(|(_, mounted)| holds(mounted.state));
            volumes.map(|(name, _)| name.clone()).collect()
        })
    }

    /// Groups that the pod's processes get because of its volumes, besides their own.
    pub fn extra_supplemental_groups(&self, uid: &str) -> Vec<i64> {
        let Some(pod) = self.pod(uid) else { return Vec::new() };
        let own = &pod.security.supplemental_groups;
        let groups: BTreeSet<i64> = self.state.read(|states| {
            let volumes = states.desired.pod(uid).into_iter().flat_map(|pod| pod.volumes.values());
            volumes.filter_map(|mount| mount.spec.persistent.as_ref()?.group).collect()
        });
        groups.into_iter().filter(|group| !own.contains(group)).collect()
    }

    /// What the Node says is in use; only the API server's answer makes it so.
    pub fn volumes_in_use(&self) -> Vec<String> {
        self.node().map(|node| node.status.volumes_in_use.clone()).unwrap_or_default()
    }

    /// Whether the Node says that the volume is attached.
    pub fn is_attached(&self, volume: &UniqueVolumeName) -> bool {
        self.node().is_some_and(|node| node.is_attached(volume.as_str()))
    }

    /// Whether every pod of this node and the Node itself are known, so that what is mounted can be told from what should be.
    pub fn states_synced(&self) -> bool {
        let known = |states: &States| {
            self.pods.list().iter().all(|pod| !is_live(pod) || states.desired.pod(&pod.meta.uid).is_some())
        };
        self.pods.is_synced() && self.nodes.is_synced() && self.state.read(known)
    }

    /// Looks at the pod again.
    pub fn reprocess(&self, uid: &str) {
        self.queue.add(Key::Pod(uid.to_owned()));
    }

    /// Whether something is being done to the volume.
    pub fn is_operation_pending(&self, volume: &UniqueVolumeName) -> bool {
        self.executor.is_pending(volume)
    }

    /// The mounts and devices of the pod's containers; parts of volumes are bound where containers can have them.
    pub async fn container_mounts(&self, uid: &str) -> Result<Vec<ContainerMount>, Error> {
        let pod = self.pod(uid).ok_or_else(|| Error::FindPod { uid: uid.to_owned() })?;
        // Nothing is made inside what is about to go, or is not there.
        if !is_live(&pod) {
            return Err(Error::FindPod { uid: uid.to_owned() });
        }
        match self.missing(uid)? {
            missing if missing.is_empty() => {}
            missing => return Err(Error::Missing(missing)),
        }
        let paths = self.paths(&pod);
        let mut mounts = Vec::new();
        for container in &pod.containers {
            for (index, mount) in container.volume_mounts.iter().enumerate() {
                let Some((root, name, read_only)) = paths.get(mount.name.as_str()) else { continue };
                let host_path = match mount.sub_path.as_str() {
                    "" => root.clone(),
                    path => {
                        let target = self.host.layout.volume_sub_paths(uid, name);
                        let target = target.join(&container.name).join(index.to_string());
                        let part = SubPath { volume: root.clone(), path: path.to_owned(), target: target.clone() };
                        let prepared = self.host.mounter.prepare_sub_path(&part).await;
                        prepared.map_err(|error| Error::Prepare {
                            container: container.name.clone(),
                            volume: mount.name.clone(),
                            message: error.to_string(),
                        })?;
                        target
                    }
                };
                let (container, path) = (container.name.clone(), mount.mount_path.clone());
                let read_only = *read_only || mount.read_only;
                mounts.push(ContainerMount { container, path, host_path, read_only, is_device: false });
            }
            for device in &container.volume_devices {
                let Some((host_path, _, read_only)) = paths.get(device.name.as_str()) else { continue };
                mounts.push(ContainerMount {
                    container: container.name.clone(),
                    path: device.device_path.clone(),
                    host_path: host_path.clone(),
                    read_only: *read_only,
                    is_device: true,
                });
            }
        }
        Ok(mounts)
    }

    /// Where the pod's volumes are on the node, by their names in the pod, with their own names.
    fn paths(&self, pod: &NodePod) -> BTreeMap<String, (PathBuf, String, bool)> {
        let uid = &pod.meta.uid;
        let volumes = self.state.read(|states| states.desired.pod(uid).cloned()).unwrap_or_default();
        let mut paths = BTreeMap::new();
        for mount in volumes.volumes.values() {
            let Ok(plugin) = self.plugins.by_spec(&mount.spec) else { continue };
            let path = match plugin.mounter() {
                Some(mounter) if !mount.spec.is_block() => mounter.path(&self.host, &mount.spec, uid),
                _ => self.host.layout.pod_device(uid, plugin.name(), &mount.spec.name),
            };
            for name in &mount.outer_names {
                let read_only = mount.spec.read_only || mount.traits.attributes.read_only;
                paths.insert(name.clone(), (path.clone(), mount.spec.name.clone(), read_only));
            }
        }
        paths
    }

    /// The volumes that the pod does not have, and why.
    pub fn missing(&self, uid: &str) -> Result<Vec<Missing>, Error> {
        if self.pod(uid).is_none() {
            return Err(Error::FindPod { uid: uid.to_owned() });
        }
        Ok(self.state.read(|states| match states.desired.pod(uid) {
            Some(volumes) => self.missing_of(uid, volumes, states),
            None => {
                let cause = "the pod's volumes have not been looked at yet".to_owned();
                vec![Missing { volume: String::new(), cause, is_final: false }]
            }
        }))
    }

    fn missing_of(&self, uid: &str, volumes: &PodVolumes, states: &States) -> Vec<Missing> {
        let problems = volumes.problems.iter().map(|problem| Missing {
            volume: problem.volume.clone(),
            cause: problem.message.clone(),
            is_final: !problem.is_waiting,
        });
        let mut missing: Vec<Missing> = problems.collect();
        for (name, mount) in &volumes.volumes {
            let known = states.actual.get(name);
            let pod = known.and_then(|known| known.pods.get(uid));
            if pod.is_some_and(|pod| pod.state == MountState::Mounted) {
                continue;
            }
            let cause = self.cause(name, mount.traits.is_attachable);
            let volume = mount.outer_names.iter().next().cloned().unwrap_or_default();
            missing.push(Missing { volume, cause: format!("volume {}: {cause}", mount.spec), is_final: false });
        }
        missing
    }

    fn cause(&self, volume: &UniqueVolumeName, is_attachable: bool) -> String {
        let failure = self.executor.of_volume(volume).into_values().find_map(|record| match record.state {
            Record::Failed(failure) | Record::Uncertain(failure) => Some(failure.message),
            Record::Running | Record::Done(()) => None,
        });
        match failure {
            Some(message) => message,
            None if is_attachable && !self.is_attached(volume) => "it is not attached to this node yet".to_owned(),
            None => "it is being mounted".to_owned(),
        }
    }

    /// The pod of that name, once it is on this node.
    pub async fn wait_for_pod(&self, key: &ObjectKey, patience: Duration) -> Option<Arc<NodePod>> {
        let mut changes = self.state.changes();
        let waited = timeout(patience, async {
            loop {
                changes.borrow_and_update();
                if let Some(pod) = self.pods.get(key) {
                    return pod;
                }
                let _ = changes.changed().await;
            }
        });
        waited.await.ok()
    }

    /// Whether the pod is there and is to have its volumes.
    pub fn is_live(&self, uid: &str) -> bool {
        self.pod(uid).is_some_and(|pod| is_live(&pod))
    }

    fn pod(&self, uid: &str) -> Option<Arc<NodePod>> {
        self.pods.by_index("uid", uid).into_iter().next()
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::cluster(&self.node_name))
    }
}
