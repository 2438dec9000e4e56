//! What should be: the volumes that the pods of this node are to have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::names::UniqueVolumeName;
use stowage_plugins::{Traits, VolumeSpec};

/// One volume that a pod is to have.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeToMount {
    /// Shared with what is known of the mount.
    pub spec: Arc<VolumeSpec>,
    pub plugin: String,
    pub traits: Traits,
    /// The volume's names in the pod; several of them may stand for one volume.
    pub outer_names: BTreeSet<String>,
    /// What a volume that is set up again on change is made of, besides its spec.
    pub inputs: Inputs,
    /// The SELinux label it is mounted with.
    pub se_linux_label: Option<String>,
}

/// What a volume is made of besides its spec: a change sets it up again where its plugin wants that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Versions of the objects it is made of.
    pub objects: BTreeMap<String, u64>,
}

/// Why a pod's volume cannot be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The volume's name in the pod.
    pub volume: String,
    /// A sentence for people.
    pub message: String,
    /// Something else must happen first, and may be on its way already.
    pub is_waiting: bool,
    /// Its containers have different SELinux labels; the access mode of a volume that cannot be mounted because of that.
    pub labels_differ: Option<&'static str>,
}

/// What the volumes of one pod turned out to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodVolumes {
    pub volumes: BTreeMap<UniqueVolumeName, VolumeToMount>,
    pub problems: Vec<Problem>,
}

impl PodVolumes {
    /// Whether every volume is known.
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }
}

#[derive(Debug)]
struct Entry {
    volumes: PodVolumes,
    /// Since when the problems are these.
    since: Timestamp,
    /// Since when each volume is wanted.
    wanted: BTreeMap<UniqueVolumeName, Timestamp>,
}

/// The volumes that should be mounted, by pod and by volume.
#[derive(Debug, Default)]
pub struct DesiredStateOfWorld {
    pods: BTreeMap<String, Entry>,
    users: BTreeMap<UniqueVolumeName, BTreeSet<String>>,
}

impl DesiredStateOfWorld {
    /// Notes what a pod is to have; returns the volumes it has, had or both.
    pub fn set(&mut self, uid: &str, volumes: PodVolumes, now: Timestamp) -> BTreeSet<UniqueVolumeName> {
        let before = self.pods.remove(uid);
        let mut touched = self.unlink(uid, before.as_ref());
        for name in volumes.volumes.keys() {
            self.users.entry(name.clone()).or_default().insert(uid.to_owned());
            touched.insert(name.clone());
        }
        let since_of = |name: &UniqueVolumeName| before.as_ref().and_then(|before| before.wanted.get(name)).copied();
        let wanted = volumes.volumes.keys().map(|name| (name.clone(), since_of(name).unwrap_or(now))).collect();
        let since = match before {
            Some(before) if before.volumes.problems == volumes.problems => before.since,
            _ => now,
        };
        self.pods.insert(uid.to_owned(), Entry { volumes, since, wanted });
        touched
    }

    /// Forgets a pod; returns the volumes it had.
    pub fn remove(&mut self, uid: &str) -> BTreeSet<UniqueVolumeName> {
        let before = self.pods.remove(uid);
        self.unlink(uid, before.as_ref())
    }

    fn unlink(&mut self, uid: &str, entry: Option<&Entry>) -> BTreeSet<UniqueVolumeName> {
        let names: BTreeSet<UniqueVolumeName> =
            entry.into_iter().flat_map(|entry| entry.volumes.volumes.keys()).cloned().collect();
        for name in &names {
            if let Some(users) = self.users.get_mut(name) {
                users.remove(uid);
                if users.is_empty() {
                    self.users.remove(name);
                }
            }
        }
        names
    }

    /// What a pod is to have, once it is known.
    pub fn pod(&self, uid: &str) -> Option<&PodVolumes> {
        self.pods.get(uid).map(|entry| &entry.volumes)
    }

    /// Since when a pod's problems are what they are.
    pub fn problems_since(&self, uid: &str) -> Option<Timestamp> {
        self.pods.get(uid).map(|entry| entry.since)
    }

    /// Since when a pod is to have a volume.
    pub fn wanted_since(&self, uid: &str, volume: &UniqueVolumeName) -> Option<Timestamp> {
        self.pods.get(uid)?.wanted.get(volume).copied()
    }

    /// The pods that are to have a volume, by uid, with how they have it.
    pub fn users<'a>(&'a self, volume: &'a UniqueVolumeName) -> impl Iterator<Item = (&'a str, &'a VolumeToMount)> {
        let users = self.users.get(volume).into_iter().flatten();
        users.filter_map(move |uid| Some((uid.as_str(), self.pods.get(uid)?.volumes.volumes.get(volume)?)))
    }

    /// The uids of pods whose volumes are known.
    pub fn uids(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Every volume some pod is to have.
    pub fn volumes(&self) -> impl Iterator<Item = &UniqueVolumeName> {
        self.users.keys()
    }
}

#[cfg(test)]
mod tests {
    use stowage_model::volume_source::{EmptyDirSource, VolumeSource};

    use super::*;

    fn of(names: &[&str], problems: &[&str]) -> PodVolumes {
        let volume = VolumeToMount {
            spec: VolumeSpec::inline("v", VolumeSource::EmptyDir(EmptyDirSource::default())).into(),
            plugin: "kubernetes.io/empty-dir".into(),
            traits: Traits::PLAIN,
            outer_names: ["v".to_owned()].into(),
            inputs: Inputs::default(),
            se_linux_label: None,
        };
        let problem = |message: &&str| Problem {
            volume: "v".into(),
            message: (*message).into(),
            is_waiting: true,
            labels_differ: None,
        };
        PodVolumes {
            volumes: names.iter().map(|name| ((*name).into(), volume.clone())).collect(),
            problems: problems.iter().map(problem).collect(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_change_of_what_a_pod_has_tells_of_the_old_and_the_new_volumes() {
        let mut desired = DesiredStateOfWorld::default();
        assert_eq!(desired.set("p", of(&["a", "b"], &[]), at(0)).len(), 2);
        let touched = desired.set("p", of(&["b", "c"], &[]), at(1));
        assert_eq!(touched, ["a".into(), "b".into(), "c".into()].into());
        assert_eq!(desired.volumes().count(), 2);
        assert_eq!(desired.users(&"a".into()).count(), 0);
        assert_eq!(desired.remove("p").len(), 2);
        assert_eq!(desired.volumes().count(), 0);
    }

    #[test]
    fn s37_a_volume_of_two_pods_stays_when_one_of_them_goes() {
        let mut desired = DesiredStateOfWorld::default();
        desired.set("p", of(&["a"], &[]), at(0));
        desired.set("q", of(&["a"], &[]), at(0));
        desired.remove("p");
        assert_eq!(desired.users(&"a".into()).map(|(uid, _)| uid).collect::<Vec<_>>(), ["q"]);
        assert!(desired.remove("nobody").is_empty());
    }

    #[test]
    fn problems_are_as_old_as_they_have_been_the_same() {
        let mut desired = DesiredStateOfWorld::default();
        desired.set("p", of(&[], &["x"]), at(1));
        desired.set("p", of(&["a"], &["x"]), at(2));
        assert_eq!(desired.problems_since("p"), Some(at(1)));
        desired.set("p", of(&["a"], &["y"]), at(3));
        assert_eq!(desired.problems_since("p"), Some(at(3)));
        assert_eq!(desired.wanted_since("p", &"a".into()), Some(at(2)));
    }
}
