//! What programs on this node may ask of its volume manager, in this process or over its socket: whether a pod has its
//! volumes, where they are, and why not.

mod container_mounts;
mod holds;
mod server;
mod usage;
mod variables;

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
use crate::decide::pod::{PATIENCE as SETTLED_AFTER, is_live};
use crate::decide::waiting::{Cause, cause};
use crate::desired_state::PodVolumes;
use crate::executor::{Executor, Operation, OperationName, VolumeOperation};
use crate::outlook::Outlook;
use crate::state::{State, States};
use crate::watches::Key;

pub use container_mounts::ContainerMount;
pub(crate) use holds::is_abandoned;
pub use holds::{Hold, RUN_LABEL};
pub use server::{Line, serve};
pub use usage::VolumeUsage;

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
    /// Held by who counts the files of a volume for somebody who asked.
    pub(crate) counting: tokio::sync::Mutex<()>,
    /// Whether somebody else attaches for this node.
    pub(crate) controller_attach: bool,
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
    #[error("pod {uid} is to have no volumes any more: {why}")]
    Over { uid: String, why: String },
    #[error("{}", causes(.0))]
    Missing(Vec<Missing>),
    #[error("volumes of pod {uid} are still mounted: {}", .volumes.join(", "))]
    Mounted { uid: String, volumes: Vec<String> },
    #[error("volume {volume:?} in container {container}: {message}")]
    Prepare { container: String, volume: String, message: String },
}

/// What is missing, in one sentence.
fn causes(missing: &[Missing]) -> String {
    missing.iter().map(|missing| missing.cause.as_str()).collect::<Vec<_>>().join("; ")
}

impl VolumeManager {
    /// Resolves when every volume of the pod is mounted; with the causes as soon as one can never be, or as what it is
    /// made of is missing for longer than it takes to hear of it.
    pub async fn wait_for_attach_and_mount(&self, uid: &str, patience: Duration) -> Result<(), Error> {
        self.reprocess(uid);
        let mut changes = self.state.changes();
        let waited = timeout(patience, async {
            loop {
                changes.borrow_and_update();
                let settled_in = self.problems_settle_in(uid);
                match self.missing(uid) {
                    Ok(missing) if missing.is_empty() => return Ok(()),
                    Ok(missing)
                        if settled_in == Some(Duration::ZERO) || missing.iter().any(|missing| missing.is_final) =>
                    {
                        return Err(Error::Missing(missing));
                    }
                    Err(error @ Error::Over { .. }) => return Err(error),
                    _ => {}
                }
                // Who wakes it for another reason looks again; the sender lives in the state, so the wait cannot fail.
                let _ = timeout(settled_in.unwrap_or(patience), changes.changed()).await;
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

    /// How long until the pod's problems are no longer put down to news that are late; none if it has no problems.
    fn problems_settle_in(&self, uid: &str) -> Option<Duration> {
        let since = self.state.read(|states| {
            let is_troubled = states.desired.pod(uid).is_some_and(|volumes| !volumes.is_complete());
            states.desired.problems_since(uid).filter(|_| is_troubled)
        })?;
        let settled_at = since.checked_add(SETTLED_AFTER).unwrap_or(since);
        Some(settled_at.duration_since(self.host.context.clock.now()).try_into().unwrap_or_default())
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
                let left = self.possibly_mounted_volumes(uid);
                let volumes = left.iter().map(|volume| self.still_mounted(uid, volume)).collect();
                Err(Error::Mounted { uid: uid.to_owned(), volumes })
            }
        }
    }

    /// A volume that is still mounted for the pod, and what went wrong last.
    fn still_mounted(&self, uid: &str, volume: &UniqueVolumeName) -> String {
        let operation = VolumeOperation::of(volume, uid, OperationName::TearDown);
        match self.executor.record(&Operation::Volume(operation)).map(|record| record.state) {
            Some(Record::Failed(failure) | Record::Uncertain(failure)) => format!("{volume} ({})", failure.message),
            _ => volume.to_string(),
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
        let pod = self.pod(uid).ok_or_else(|| Error::FindPod { uid: uid.to_owned() })?;
        if !is_live(&pod) {
            let why = match (pod.meta.is_deleting(), pod.status.reason.as_str()) {
                (true, _) => "it is being deleted".to_owned(),
                (false, "") => format!("it is {}", pod.status.phase.as_str()),
                (false, reason) => format!("it is {} ({reason})", pod.status.phase.as_str()),
            };
            return Err(Error::Over { uid: uid.to_owned(), why });
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
        let outlook = Outlook {
            host: &self.host,
            plugins: &self.plugins,
            executor: &self.executor,
            nodes: &self.nodes,
            controller_attach: self.controller_attach,
        };
        for (name, mount) in &volumes.volumes {
            let pod = states.actual.get(name).and_then(|known| known.pods.get(uid));
            if pod.is_some_and(|pod| pod.state == MountState::Mounted) {
                continue;
            }
            let on_its_way = || Cause { text: "it is being mounted".to_owned(), is_final: false };
            let cause = cause(uid, &outlook.unmounted(uid, name, mount, states)).unwrap_or_else(on_its_way);
            let volume = mount.outer_names.iter().next().cloned().unwrap_or_default();
            let text = format!("volume {volume:?}: {}", cause.text);
            missing.push(Missing { volume, cause: text, is_final: cause.is_final });
        }
        missing
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
