//! What is: the volumes that are, or may be, on this node, and for which pods they are mounted.
//!
//! Only the ends of operations, and the look at the disk at start, write it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::names::UniqueVolumeName;
use stowage_model::quantity::Quantity;
use stowage_plugins::VolumeSpec;

use crate::desired_state::Inputs;

/// Whether a mount is certainly there. One that certainly is not there has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountState {
    /// An operation is under way or ended without a word, or the process has restarted since.
    Uncertain,
    Mounted,
}

/// A volume on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachedVolume {
    /// After a restart only what the disk tells.
    pub spec: Arc<VolumeSpec>,
    /// Where its device is, if attaching, mapping or its mount told.
    pub device_path: String,
    /// This node itself has attached it, or may have, and must detach it.
    pub is_attached_here: bool,
    /// Mounted once for the node; none if it is not.
    pub device: Option<MountState>,
    /// Found at start: a final error of a repeated step does not prove that nothing is mounted.
    pub is_reconstructed: bool,
    /// The label it is mounted with.
    pub se_linux_label: Option<String>,
    /// The size it has on this node, where that is known to be more than its claim says.
    pub size: Option<Quantity>,
    /// The size to which it was to grow for a use that may only read; told once.
    pub told_read_only: Option<Quantity>,
    /// The size to which its driver last refused to let it grow, with a word that was final.
    pub refused_size: Option<Quantity>,
    /// The driver said that it cannot grow while it is in use here.
    pub cannot_grow: bool,
    /// The pods it is mounted for, by uid.
    pub pods: BTreeMap<String, MountedVolume>,
}

impl AttachedVolume {
    /// A volume of which nothing is on the node yet.
    pub fn new(spec: Arc<VolumeSpec>) -> Self {
        Self {
            spec,
            device_path: String::new(),
            is_attached_here: false,
            device: None,
            is_reconstructed: false,
            se_linux_label: None,
            size: None,
            told_read_only: None,
            refused_size: None,
            cannot_grow: false,
            pods: BTreeMap::new(),
        }
    }

    fn mounts(&self) -> usize {
        usize::from(self.device.is_some()) + self.pods.len()
    }

    /// Whether anything of it is left on the node.
    fn is_idle(&self) -> bool {
        self.device.is_none() && self.pods.is_empty() && !self.is_attached_here
    }
}

/// A volume mounted, or perhaps mounted, for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct MountedVolume {
    /// Names its directory.
    pub spec: Arc<VolumeSpec>,
    pub state: MountState,
    pub is_reconstructed: bool,
    /// What it was made of when it was set up.
    pub inputs: Inputs,
    /// When it must be set up again even if nothing changes.
    pub again_at: Option<Timestamp>,
}

/// The volumes that are or may be on this node.
#[derive(Debug, Default)]
pub struct ActualStateOfWorld {
    volumes: BTreeMap<UniqueVolumeName, AttachedVolume>,
    /// The volumes of each pod, so that a pod's are found beside however many others.
    by_pod: BTreeMap<String, BTreeSet<UniqueVolumeName>>,
    /// Staged and published mounts.
    mounts: usize,
}

impl ActualStateOfWorld {
    pub fn get(&self, volume: &UniqueVolumeName) -> Option<&AttachedVolume> {
        self.volumes.get(volume)
    }

    /// Every volume, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&UniqueVolumeName, &AttachedVolume)> {
        self.volumes.iter()
    }

    /// The volumes that are or may be mounted for a pod.
    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = (&'a UniqueVolumeName, &'a MountedVolume)> {
        let names = self.by_pod.get(uid).into_iter().flatten();
        names.filter_map(move |name| Some((name, self.volumes.get(name)?.pods.get(uid)?)))
    }

    /// Changes what is known of a volume, which is forgotten when nothing of it is left.
    pub fn update(&mut self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>, f: impl FnOnce(&mut AttachedVolume)) {
        let entry = self.volumes.entry(volume.clone()).or_insert_with(|| AttachedVolume::new(Arc::clone(spec)));
        let (before, mounts) = (entry.pods.keys().cloned().collect::<Vec<String>>(), entry.mounts());
        f(entry);
        self.mounts = self.mounts - mounts + entry.mounts();
        for uid in before.iter().filter(|uid| !entry.pods.contains_key(*uid)) {
            if let Some(names) = self.by_pod.get_mut(uid) {
                names.remove(volume);
                if names.is_empty() {
                    self.by_pod.remove(uid);
                }
            }
        }
        for uid in entry.pods.keys().filter(|uid| !before.contains(uid)) {
            self.by_pod.entry(uid.clone()).or_default().insert(volume.clone());
        }
        if entry.is_idle() {
            self.volumes.remove(volume);
        }
    }

    pub fn set_device(&mut self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>, state: Option<MountState>) {
        self.update(volume, spec, |entry| entry.device = state);
    }

    pub fn set_pod(
        &mut self,
        volume: &UniqueVolumeName,
        spec: &Arc<VolumeSpec>,
        uid: &str,
        mounted: Option<MountedVolume>,
    ) {
        self.update(volume, spec, |entry| match mounted {
            Some(mounted) => drop(entry.pods.insert(uid.to_owned(), mounted)),
            None => drop(entry.pods.remove(uid)),
        });
    }

    /// How many mounts there are or may be, the node's and the pods'.
    pub fn mounts(&self) -> usize {
        self.mounts
    }
}

#[cfg(test)]
mod tests {
    use stowage_model::volume_source::{EmptyDirSource, VolumeSource};

    use super::*;

    fn spec() -> Arc<VolumeSpec> {
        VolumeSpec::inline("v", VolumeSource::EmptyDir(EmptyDirSource::default())).into()
    }

    fn mounted(state: MountState) -> Option<MountedVolume> {
        let (inputs, again_at) = (Inputs::default(), None);
        Some(MountedVolume { spec: spec(), state, is_reconstructed: false, inputs, again_at })
    }

    #[test]
    fn a_volume_is_forgotten_when_neither_the_node_nor_a_pod_has_it() {
        let (mut actual, name) = (ActualStateOfWorld::default(), UniqueVolumeName::from("a"));
        actual.set_device(&name, &spec(), Some(MountState::Mounted));
        actual.set_pod(&name, &spec(), "p", mounted(MountState::Uncertain));
        assert_eq!((actual.mounts(), actual.of_pod("p").count()), (2, 1));
        actual.set_device(&name, &spec(), None);
        assert!(actual.get(&name).is_some());
        actual.set_pod(&name, &spec(), "p", None);
        assert!(actual.get(&name).is_none());
        assert_eq!(actual.mounts(), 0);
    }

    #[test]
    fn a_pods_volumes_are_found_beside_those_of_others() {
        let mut actual = ActualStateOfWorld::default();
        let [a, b] = ["a", "b"].map(UniqueVolumeName::from);
        for (volume, uid) in [(&a, "p"), (&a, "q"), (&b, "p"), (&b, "p")] {
            actual.set_pod(volume, &spec(), uid, mounted(MountState::Mounted));
        }
        let of = |actual: &ActualStateOfWorld, uid: &str| -> Vec<String> {
            actual.of_pod(uid).map(|(name, _)| name.as_str().to_owned()).collect()
        };
        assert_eq!(
            (of(&actual, "p"), of(&actual, "q"), actual.mounts()),
            (vec!["a".into(), "b".into()], vec!["a".into()], 3)
        );
        // Whatever changes it.
        actual.update(&a, &spec(), |known| known.pods.clear());
        assert_eq!((of(&actual, "p"), of(&actual, "q"), actual.mounts()), (vec!["b".into()], vec![], 1));
        actual.set_pod(&b, &spec(), "p", None);
        assert!(actual.by_pod.is_empty() && actual.volumes.is_empty());
    }
}
