//! Counts labels that do not go together, when a pod's volumes are noted: once for each pod and volume.

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;

use crate::controller::Controller;
use crate::desired_state::{PodVolumes, VolumeToMount};
use crate::metrics::Severity;
use crate::state::States;

use super::{Conflict, SeLinux};

impl Controller {
    /// What is new among the pod's volumes, before it is noted.
    pub(crate) fn count_labels(&self, pod: &NodePod, volumes: &PodVolumes, states: &States) {
        let Some(machine) = &self.options.se_linux else { return };
        let (labels, before) = (&self.metrics.labels, states.desired.pod(&pod.meta.uid));
        for problem in &volumes.problems {
            let is_known = before.is_some_and(|before| before.problems.contains(problem));
            if let (Some(access_mode), false) = (problem.labels_differ, is_known) {
                labels.containers_differ(access_mode, Severity::Error);
            }
        }
        for (name, mount) in &volumes.volumes {
            if before.is_some_and(|before| before.volumes.contains_key(name)) {
                continue;
            }
            let severity = if machine.labels(&mount.spec) { Severity::Error } else { Severity::Warning };
            let Ok(label) = original(machine, pod, mount) else {
                labels.containers_differ(super::access_mode(&mount.spec), severity);
                continue;
            };
            match self.label_of_others(machine, pod, name, states) {
                None if label.is_some() => labels.admitted(&mount.spec),
                Some(other) if other != label && mount.traits.supports_se_linux_mount => {
                    labels.pods_differ(&mount.spec, severity);
                }
                _ => {}
            }
        }
    }

    /// The label with which other pods have the volume; none if none has.
    fn label_of_others(
        &self,
        machine: &SeLinux,
        pod: &NodePod,
        volume: &UniqueVolumeName,
        states: &States,
    ) -> Option<Option<String>> {
        let others = states.desired.users(volume).filter(|(uid, _)| *uid != pod.meta.uid);
        let mut labels = others.filter_map(|(uid, mount)| original(machine, &*self.pod(uid)?, mount).ok());
        labels.next()
    }
}

/// The label of a volume if volumes of every mode were mounted with one.
fn original(machine: &SeLinux, pod: &NodePod, mount: &VolumeToMount) -> Result<Option<String>, Conflict> {
    let mut labels = mount.outer_names.iter().map(|name| machine.original(pod, name, &mount.spec, &mount.traits));
    labels.next().unwrap_or(Ok(None))
}
