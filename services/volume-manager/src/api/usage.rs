//! How much the volumes of one pod hold, asked when somebody wants to know.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use stowage_plugins::plugin::VolumeStats;
use stowage_plugins::traits::Metrics;
use stowage_plugins::{VolumePlugin, VolumeSpec};

use super::{Error, VolumeManager};
use crate::actual_state::MountState;

/// What one volume of a pod holds, in the words of the kubelet's summary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeUsage {
    /// The volume's name in the pod.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

struct Directory {
    name: String,
    spec: Arc<VolumeSpec>,
    plugin: Arc<dyn VolumePlugin>,
    path: PathBuf,
}

impl VolumeManager {
    /// What the pod's plain directories hold (emptyDir and what is made of objects), in the order of their names. One is
    /// counted at a time, whoever asks, at the pace of the size limits. How full claims are is among the metrics.
    pub async fn usage(&self, uid: &str) -> Result<Vec<VolumeUsage>, Error> {
        if self.pod(uid).is_none() {
            return Err(Error::FindPod { uid: uid.to_owned() });
        }
        let mut told = Vec::new();
        for directory in self.directories(uid) {
            let _alone = self.counting.lock().await;
            let Some(metrics) = directory.plugin.metrics() else { continue };
            match metrics.stats(&self.host, &directory.spec, &directory.path).await {
                Ok(stats) => told.push(figures(directory.name, &stats)),
                // It may have been taken away meanwhile.
                Err(error) => tracing::debug!(volume = directory.name, %error, "what a volume holds was not counted"),
            }
        }
        told.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(told)
    }

    fn directories(&self, uid: &str) -> Vec<Directory> {
        let wanted: Vec<(String, Arc<VolumeSpec>)> = self.state.read(|states| {
            let volumes = states.desired.pod(uid).into_iter().flat_map(|pod| &pod.volumes);
            let counted = volumes.filter(|(name, mount)| {
                let is = states.actual.get(name).and_then(|known| known.pods.get(uid));
                mount.traits.metrics == Metrics::Usage && is.is_some_and(|is| is.state == MountState::Mounted)
            });
            let named = counted.flat_map(|(_, mount)| mount.outer_names.iter().map(|name| (name, &mount.spec)));
            named.map(|(name, spec)| (name.clone(), Arc::clone(spec))).collect()
        });
        let found = wanted.into_iter().filter_map(|(name, spec)| {
            let plugin = self.plugins.by_spec(&spec).ok()?;
            let path = plugin.mounter()?.path(&self.host, &spec, uid);
            Some(Directory { name, spec, plugin, path })
        });
        found.collect()
    }
}

fn figures(name: String, stats: &VolumeStats) -> VolumeUsage {
    VolumeUsage {
        name,
        capacity_bytes: stats.capacity_bytes,
        available_bytes: stats.available_bytes,
        used_bytes: stats.used_bytes,
        inodes: stats.inodes,
        inodes_free: stats.inodes_free,
        inodes_used: stats.inodes_used,
    }
}
