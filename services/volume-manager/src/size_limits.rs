//! The size limits of empty directories: each is measured again and again, in a lane of its own, and a pod that holds more
//! than it may is to go, as the kubelet evicts.

mod turns;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use stowage_model::Quantity;
use stowage_model::node_view::NodePod;
use stowage_model::volume_source::VolumeSource;
use stowage_plugins::{VolumeHost, VolumePlugin, VolumePluginManager, VolumeSpec};
use stowage_runtime::cache::Cache;
use stowage_runtime::queue::Queue;

use crate::actual_state::MountState;
use crate::decide::pod::is_live;
use crate::metrics::Metrics;
use crate::state::State;
use crate::watches::Key;

use turns::Turns;

/// Directories that are measured at once: whoever counts must not take the disk from those who work.
const AT_ONCE: usize = 4;

/// Pods of this priority and above are never evicted (`system-cluster-critical`).
const CRITICAL: i64 = 2_000_000_000;

/// Watches the empty directories of one node.
pub struct Watcher {
    pub host: VolumeHost,
    pub plugins: Arc<VolumePluginManager>,
    pub pods: Cache<NodePod>,
    pub state: Arc<State>,
    pub queue: Queue<Key>,
    pub metrics: Metrics,
    /// Between two looks at one directory; zero for never.
    pub period: Duration,
}

/// A pod's directory that has a limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    uid: String,
    volume: String,
}

struct Limited {
    place: Place,
    limit: Quantity,
    spec: Arc<VolumeSpec>,
    plugin: Arc<dyn VolumePlugin>,
    path: PathBuf,
}

/// What was found, if anything was.
type Measured = (Limited, Option<u64>);

impl Watcher {
    /// Watches for ever.
    pub async fn run(self) {
        if self.period.is_zero() {
            return;
        }
        // One long walk keeps no other directory from its turn.
        let mut measuring: FuturesUnordered<BoxFuture<'_, Measured>> = FuturesUnordered::new();
        let mut turns: Turns<Place, Limited> = Turns::default();
        let mut under_way: Vec<Place> = Vec::new();
        let mut next_look = tokio::time::Instant::now() + self.period;
        loop {
            while under_way.len() < AT_ONCE {
                let Some((place, limited)) = turns.pop() else { break };
                under_way.push(place);
                measuring.push(Box::pin(self.measure(limited)));
            }
            tokio::select! {
                biased;
                Some((limited, used)) = measuring.next() => {
                    under_way.retain(|place| *place != limited.place);
                    self.judge(&limited, used);
                }
                () = tokio::time::sleep_until(next_look) => {
                    next_look = tokio::time::Instant::now() + self.period;
                    let limited = self.limited().into_iter().filter(|limited| !under_way.contains(&limited.place));
                    turns.look(limited.map(|limited| (limited.place.clone(), limited)).collect());
                }
            }
        }
    }

    /// Every directory with a limit that is mounted for a live pod.
    fn limited(&self) -> Vec<Limited> {
        let mounted: Vec<(Arc<VolumeSpec>, String, Quantity)> = self.state.read(|states| {
            let volumes = states.actual.iter().flat_map(|(_, volume)| &volume.pods);
            let mounted = volumes
                .filter(|(uid, is)| is.state == MountState::Mounted && !states.evicted.contains_key(uid.as_str()));
            mounted.filter_map(|(uid, is)| Some((is.spec.clone(), uid.clone(), limit_of(&is.spec)?))).collect()
        });
        let mut limited = Vec::new();
        for (spec, uid, limit) in mounted {
            let pod = self.pods.by_index("uid", &uid).into_iter().next();
            if !pod.is_some_and(|pod| is_live(&pod) && pod.spec.priority < CRITICAL) {
                continue;
            }
            let Ok(plugin) = self.plugins.by_spec(&spec) else { continue };
            let Some(path) = plugin.mounter().map(|mounter| mounter.path(&self.host, &spec, &uid)) else { continue };
            let place = Place { uid, volume: spec.name.clone() };
            limited.push(Limited { place, limit, spec, plugin, path });
        }
        limited
    }

    async fn measure(&self, limited: Limited) -> Measured {
        let Some(metrics) = limited.plugin.metrics() else { return (limited, None) };
        let used = match metrics.stats(&self.host, &limited.spec, &limited.path).await {
            Ok(stats) => stats.used_bytes,
            Err(error) => {
                tracing::debug!(volume = limited.place.volume, %error, "an empty directory was not measured");
                None
            }
        };
        (limited, used)
    }

    fn judge(&self, limited: &Limited, used: Option<u64>) {
        let Limited { place, limit, .. } = limited;
        if used.is_none_or(|used| i128::from(used) <= limit.bytes()) {
            return;
        }
        // The kubelet's words, to the last space: people and programs look for them.
        let message =
            format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", place.volume, limit.to_string());
        tracing::info!(pod = place.uid, volume = place.volume, used, %limit, "the pod is to be evicted");
        let is_new = self.state.with(|states| states.evicted.insert(place.uid.clone(), message).is_none());
        if is_new {
            self.metrics.evicted("emptydirfs.limit");
            self.queue.add(Key::Pod(place.uid.clone()));
        }
    }
}

/// The limit of an empty directory; a limit of nothing is none.
fn limit_of(spec: &VolumeSpec) -> Option<Quantity> {
    match &spec.source {
        VolumeSource::EmptyDir(source) => source.size_limit.filter(|limit| limit.bytes() > 0),
        _ => None,
    }
}
