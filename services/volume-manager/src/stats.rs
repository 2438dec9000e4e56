//! How full the volumes of claims are and whether they are well: asked every now and then, beside everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use stowage_model::node_view::NodePod;
use stowage_model::object::{Key, Projection};
use stowage_mount::{Probed, Usage, UsageProbe};
use stowage_plugins::plugin::{Condition, VolumeStats};
use stowage_plugins::traits::Metrics as Source;
use stowage_plugins::{Certainty, VolumeHost, VolumePlugin, VolumePluginManager, VolumeSpec};
use stowage_runtime::cache::Cache;
use stowage_runtime::events::{Note, Recorder};

use crate::actual_state::MountState;
use crate::decide::pod::is_live;
use crate::metrics::Usages;
use crate::state::State;

/// How long a file system may take to answer; one that does not is asked again only once it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the volumes of one node.
pub struct Asker {
    pub host: VolumeHost,
    pub plugins: Arc<VolumePluginManager>,
    pub pods: Cache<NodePod>,
    pub state: Arc<State>,
    pub usages: Usages,
    pub recorder: Recorder,
    /// How often; zero and less than zero never, as the kubelet has it.
    pub period: Duration,
    probe: UsageProbe,
    /// What was said to be wrong with a claim's volume.
    told: BTreeMap<Key, String>,
}

/// A claim whose volume is mounted for a pod.
struct Question {
    claim: Key,
    spec: Arc<VolumeSpec>,
    plugin: Arc<dyn VolumePlugin>,
    path: PathBuf,
}

struct Answer {
    claim: Key,
    stats: VolumeStats,
}

impl Asker {
    pub fn new(
        host: VolumeHost,
        plugins: Arc<VolumePluginManager>,
        pods: Cache<NodePod>,
        state: Arc<State>,
        usages: Usages,
        period: Duration,
    ) -> Self {
        let (probe, recorder) = (UsageProbe::new(Arc::clone(&host.mounter)), host.recorder.clone());
        Self { host, plugins, pods, state, usages, recorder, period, probe, told: BTreeMap::new() }
    }

    /// Asks for ever.
    pub async fn run(mut self) {
        if self.period.is_zero() {
            return;
        }
        loop {
            // Not all nodes of a cluster at once.
            let pause = self.host.context.random.jitter(self.period, 1.0);
            tokio::time::sleep(pause).await;
            self.round().await;
        }
    }

    /// Asks each claim once. What does not answer is left out; the rest does not wait for it longer than a period.
    pub async fn round(&mut self) {
        let questions = self.questions();
        let asked: BTreeSet<Key> = questions.iter().map(|question| question.claim.clone()).collect();
        let mut answers = Vec::new();
        {
            let mut asking: FuturesUnordered<_> =
                questions.into_iter().map(|question| tokio::time::timeout(self.period, self.ask(question))).collect();
            while let Some(answer) = asking.next().await {
                answers.extend(answer.ok().flatten());
            }
        }
        // In the order of claims, whoever answered first.
        answers.sort_by(|a, b| a.claim.cmp(&b.claim));
        for Answer { claim, stats } in answers {
            self.tell(&claim, stats.condition.as_ref());
            self.usages.told(claim, stats);
        }
        self.told.retain(|claim, _| asked.contains(claim));
    }

    /// Every claim that is mounted for a live pod, once.
    fn questions(&self) -> Vec<Question> {
        let mounted: Vec<(Arc<VolumeSpec>, String)> = self.state.read(|states| {
            let volumes = states.actual.iter().flat_map(|(_, volume)| &volume.pods);
            let certain = volumes.filter(|(_, is)| is.state == MountState::Mounted && is.spec.persistent.is_some());
            certain.map(|(uid, is)| (is.spec.clone(), uid.clone())).collect()
        });
        let mut questions: BTreeMap<Key, Question> = BTreeMap::new();
        for (spec, uid) in mounted {
            let Some(claim) = spec.persistent.as_ref().map(|persistent| persistent.claim.clone()) else { continue };
            let is_live = self.pods.by_index("uid", &uid).first().is_some_and(|pod| is_live(pod));
            if questions.contains_key(&claim) || !is_live {
                continue;
            }
            let Ok(plugin) = self.plugins.by_spec(&spec) else { continue };
            let path = match plugin.mounter() {
                Some(mounter) if !spec.is_block() => mounter.path(&self.host, &spec, &uid),
                _ => self.host.layout.pod_device(&uid, plugin.name(), &spec.name),
            };
            questions.insert(claim.clone(), Question { claim, spec, plugin, path });
        }
        questions.into_values().collect()
    }

    async fn ask(&self, question: Question) -> Option<Answer> {
        let Question { claim, spec, plugin, path } = &question;
        let begin = self.host.context.clock.boottime();
        let source = plugin.traits(spec, &self.host).metrics;
        let said = match (source, plugin.metrics()) {
            (Source::Driver, Some(metrics)) => match metrics.stats(&self.host, spec, path).await {
                Ok(stats) => Some((driver_of(spec), stats)),
                // A driver without figures of its own leaves that to its file system.
                Err(fault) if fault.certainty == Certainty::Final && fault.outcome.is_none() => None,
                Err(fault) => {
                    tracing::debug!(%claim, error = %fault, "the driver does not say how full the volume is");
                    return None;
                }
            },
            _ => None,
        };
        let (source, stats) = match said {
            Some(said) => said,
            // A device tells nothing by itself.
            None if spec.is_block() || source == Source::None => return None,
            None => ("statfs".to_owned(), self.file_system(claim, path).await?),
        };
        let took = self.host.context.clock.boottime().saturating_sub(begin);
        self.usages.took(&source, took);
        Some(Answer { claim: question.claim, stats })
    }

    async fn file_system(&self, claim: &Key, path: &std::path::Path) -> Option<VolumeStats> {
        match self.probe.usage(path, PATIENCE).await {
            Ok(Probed::Usage(usage)) => Some(figures(&usage)),
            Ok(Probed::Hung(since)) => {
                tracing::warn!(%claim, path = %path.display(), seconds = since.as_secs(), "the mount does not answer");
                None
            }
            Ok(Probed::Crowded) => None,
            Err(error) => {
                tracing::debug!(%claim, %error, "the mount does not say how full it is");
                None
            }
        }
    }

    /// Tells the pods of a claim when its driver says that something is wrong, and when it says that no longer.
    fn tell(&mut self, claim: &Key, condition: Option<&Condition>) {
        let Some(note) = news(&mut self.told, claim, condition) else { return };
        for pod in self.pods.by_index("claim", &claim.to_string()).iter().filter(|pod| is_live(pod)) {
            self.recorder.record(&pod.reference(), note.clone());
        }
    }
}

/// What is new about a volume's condition.
fn news(told: &mut BTreeMap<Key, String>, claim: &Key, condition: Option<&Condition>) -> Option<Note> {
    let wrong = condition.filter(|condition| condition.abnormal).map(|condition| condition.message.clone());
    let before = match &wrong {
        Some(message) => told.insert(claim.clone(), message.clone()),
        None => told.remove(claim),
    };
    if before == wrong {
        return None;
    }
    let name = &claim.name;
    Some(match wrong {
        Some(message) => {
            Note::warning("VolumeConditionAbnormal", format!("the volume of claim {name} is not well: {message}"))
        }
        None => Note::normal("VolumeConditionNormal", format!("the volume of claim {name} is well again")),
    })
}

fn driver_of(spec: &VolumeSpec) -> String {
    use stowage_model::volume_source::VolumeSource;
    match &spec.source {
        VolumeSource::Csi(source) => source.driver.clone(),
        VolumeSource::CsiInline(source) => source.driver.clone(),
        source => source.member().to_owned(),
    }
}

fn figures(usage: &Usage) -> VolumeStats {
    // A file system that does not count inodes says that it has none.
    let inodes = |count| (usage.total_inodes > 0).then_some(count);
    VolumeStats {
        capacity_bytes: Some(usage.total_bytes),
        available_bytes: Some(usage.available_bytes),
        used_bytes: Some(usage.used_bytes),
        inodes: inodes(usage.total_inodes),
        inodes_free: inodes(usage.available_inodes),
        inodes_used: inodes(usage.used_inodes),
        condition: None,
    }
}

#[cfg(test)]
mod tests;
