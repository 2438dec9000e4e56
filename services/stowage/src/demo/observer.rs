//! Watches the API as one more client and notes when each step of a claim's life was first seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use stowage_model::object::{Key, Projection};
use stowage_model::phase::{ClaimPhase, PodPhase};
use stowage_model::{Claim, Node, Pod, Volume, VolumeAttachment, VolumeSnapshot, VolumeSnapshotContent};
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{Scope, feed};

/// Longer than any step takes on a machine that works; then the demo says what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A step of a claim's life, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    NodeChosen,
    ProvisionerAsked,
    VolumeMade,
    Bound,
    Placed,
    AttachmentWanted,
    Attached,
    AttachmentReported,
    Running,
}

/// Everything seen so far.
#[derive(Clone)]
pub struct Observer {
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub attachments: Cache<VolumeAttachment>,
    pub pods: Cache<Pod>,
    pub nodes: Cache<Node>,
    pub snapshots: Cache<VolumeSnapshot>,
    pub contents: Cache<VolumeSnapshotContent>,
    api: Api,
    seen: Arc<Mutex<BTreeMap<Step, Instant>>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Observer {
    /// Starts to watch; the watches live under `tasks`.
    pub fn start(api: &Api, tasks: &Tasks) -> Self {
        let observer = Self {
            claims: Cache::new(),
            volumes: Cache::new(),
            attachments: Cache::new(),
            pods: Cache::new(),
            nodes: Cache::new(),
            snapshots: Cache::new(),
            contents: Cache::new(),
            api: api.clone(),
            seen: Arc::default(),
            changes: Arc::new(watch::Sender::new(0)),
        };
        observer.follow(tasks, &observer.claims, |claim: &Claim| {
            let mut steps = Vec::new();
            if claim.selected_node().is_some() {
                steps.push(Step::NodeChosen);
            }
            if claim.storage_provisioner().is_some() {
                steps.push(Step::ProvisionerAsked);
            }
            if claim.status.phase == ClaimPhase::Bound {
                steps.push(Step::Bound);
            }
            steps
        });
        observer.follow(tasks, &observer.volumes, |_: &Volume| vec![Step::VolumeMade]);
        observer.follow(tasks, &observer.attachments, |attachment: &VolumeAttachment| {
            let mut steps = vec![Step::AttachmentWanted];
            if attachment.status.attached {
                steps.push(Step::Attached);
            }
            steps
        });
        observer.follow(tasks, &observer.pods, |pod: &Pod| {
            let mut steps = Vec::new();
            if pod.is_scheduled() {
                steps.push(Step::Placed);
            }
            if pod.status.phase == PodPhase::Running {
                steps.push(Step::Running);
            }
            steps
        });
        observer.follow(tasks, &observer.nodes, |node: &Node| {
            if node.status.volumes_attached.is_empty() { vec![] } else { vec![Step::AttachmentReported] }
        });
        observer.follow(tasks, &observer.snapshots, |_: &VolumeSnapshot| vec![]);
        observer.follow(tasks, &observer.contents, |_: &VolumeSnapshotContent| vec![]);
        observer
    }

    /// Whether nothing is left of what people made.
    pub fn is_empty(&self) -> bool {
        let volumes = self.claims.is_empty() && self.volumes.is_empty() && self.attachments.is_empty();
        volumes && self.pods.is_empty() && self.snapshots.is_empty() && self.contents.is_empty()
    }

    fn follow<T: Projection>(&self, tasks: &Tasks, cache: &Cache<T>, steps: fn(&T) -> Vec<Step>) {
        let (seen, changes) = (Arc::clone(&self.seen), Arc::clone(&self.changes));
        cache.on_change(move |change| {
            let now = Instant::now();
            for step in change.after.map(|object| steps(object)).unwrap_or_default() {
                lock(&seen).entry(step).or_insert(now);
            }
            changes.send_modify(|count| *count += 1);
        });
        tasks.spawner().spawn(feed(self.api.clone(), cache.clone(), Scope::all(), Random::from_os()));
    }

    /// Forgets the steps seen, before another life begins.
    pub fn begin(&self) {
        lock(&self.seen).clear();
    }

    /// When each step was first seen.
    pub fn steps(&self) -> BTreeMap<Step, Instant> {
        lock(&self.seen).clone()
    }

    /// Waits until something is so, event by event.
    pub async fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) -> anyhow::Result<()> {
        let mut changes = self.changes.subscribe();
        let waited = tokio::time::timeout(PATIENCE, async {
            while !so(self) {
                // The sender lives in self, so the wait cannot fail.
                let _ = changes.changed().await;
            }
        });
        if waited.await.is_ok() {
            return Ok(());
        }
        Err(anyhow!("waited {} s for {what}; {}", PATIENCE.as_secs(), self.latest_warnings().await))
    }

    /// What the services said went wrong, for the message of a step that hangs.
    async fn latest_warnings(&self) -> String {
        match self.warnings().await {
            Ok(warnings) if warnings.is_empty() => "no service reported a warning".to_owned(),
            Ok(warnings) => format!("the services' warnings: {}", warnings.join("; ")),
            Err(error) => format!("and the events cannot be read: {error:#}"),
        }
    }

    async fn warnings(&self) -> anyhow::Result<Vec<String>> {
        let request = http::Request::get("/api/v1/events").body(Vec::new()).context("build a request")?;
        let list: Value = self.api.client().request(request).await.context("list events")?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let warning = |event: &Value| {
            let text = |pointer| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (text("/type") == "Warning").then(|| {
                format!(
                    "{} {}: {}: {}",
                    text("/involvedObject/kind"),
                    text("/involvedObject/name"),
                    text("/reason"),
                    text("/message")
                )
            })
        };
        Ok(items.iter().filter_map(warning).collect())
    }

    /// The pod, once it runs.
    pub fn running(&self, name: &str) -> Option<Arc<Pod>> {
        let pod = self.pods.get(&Key::namespaced("default", name))?;
        (pod.status.phase == PodPhase::Running).then_some(pod)
    }
}

fn lock(seen: &Mutex<BTreeMap<Step, Instant>>) -> MutexGuard<'_, BTreeMap<Step, Instant>> {
    seen.lock().expect("no code panics while holding the steps")
}
