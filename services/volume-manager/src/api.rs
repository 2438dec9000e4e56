//! What programs on this node may ask of its volume manager, in this process or over its socket: whether a pod has its
//! volumes, where they are, and why not.

mod container_mounts;
mod holds;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::node_view::NodePod;
use stowage_model::object::Key as ObjectKey;
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

pub use container_mounts::ContainerMount;
pub(crate) use holds::is_abandoned;
pub use holds::{Hold, RUN_LABEL};
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
    #[error("volumes of pod {uid} are still mounted: {}", .volumes.join(", "))]
    Mounted { uid: String, volumes: Vec<String> },
    #[error("volume {volume:?} in container {container}: {message}")]
    Prepare { container: String, volume: String, message: String },
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
                let volumes = left.map(|volume| volume.to_string()).collect();
                Err(Error::Mounted { uid: uid.to_owned(), volumes })
            }
        }
    }

    /// Resolves when nothing is mounted for any of the pods any more; says of each that has something left what it is.
    pub async fn wait_for_all_pods_unmount(&self, uids: &[String], patience: Duration) -> Result<(), Vec<Error>> {
        let waits = uids.iter().map(|uid| self.wait_for_unmount(uid, patience));
        let failed: Vec<Error> = join_all(waits).await.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
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
    pub async fn wait_for_pod(&self, key: &ObjectKey) -> Arc<NodePod> {
        let mut changes = self.state.changes();
        loop {
            changes.borrow_and_update();
            if let Some(pod) = self.pods.get(key) {
                return pod;
            }
            // The sender lives in the state, so the wait cannot fail.
            let _ = changes.changed().await;
        }
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
