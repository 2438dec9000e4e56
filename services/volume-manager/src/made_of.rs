//! The objects that volumes are made of: watched while a pod of this node names them, and counted when they change.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stowage_model::node_view::NodePod;
use stowage_plugins::VolumeSpec;
use stowage_plugins::objects::{Objects as _, SourceId, WatchedObjects, sources_of};
use stowage_plugins::traits::Remount;
use stowage_runtime::engine::Setup;

use crate::desired_state::PodVolumes;
use crate::watches::Key;

type Counts = Arc<Mutex<BTreeMap<SourceId, u64>>>;

/// What the pods of this node name, and how often each has changed.
pub struct MadeOf {
    pub objects: WatchedObjects,
    counts: Counts,
}

impl MadeOf {
    /// Nothing yet; the pods that name an object are decided on again when it changes.
    pub fn watch(setup: &Setup<Key>, node: &str) -> Self {
        let (counts, queue) = (Counts::default(), setup.queue.clone());
        let known: Arc<OnceLock<WatchedObjects>> = Arc::default();
        let on_change = {
            let (counts, known) = (Arc::clone(&counts), Arc::clone(&known));
            move |source: &SourceId| {
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                *counts.entry(source.clone()).or_default() += 1;
                drop(counts);
                let pods = known.get().map(|objects| objects.pods_of(source)).unwrap_or_default();
                pods.into_iter().for_each(|uid| queue.add(Key::Pod(uid)));
            }
        };
        let (objects, feeds) = WatchedObjects::new(setup.context.clone(), node, on_change);
        // Set once, here.
        let _ = known.set(objects.clone());
        setup.spawner.spawn(feeds.run());
        Self { objects, counts }
    }

    /// Watches exactly what the pod's volumes are made of.
    pub fn keep(&self, pod: &NodePod, volumes: &PodVolumes) {
        let changing = volumes.volumes.values().filter(|mount| mount.traits.remount == Remount::OnChange);
        let sources = changing.flat_map(|mount| sources_of(&mount.spec, pod));
        self.objects.keep(&pod.meta.uid, sources);
        self.forget_unnamed();
    }

    /// The pod is gone, and what only it named with it.
    pub fn release(&self, pod_uid: &str) {
        self.objects.release(pod_uid);
        self.forget_unnamed();
    }

    fn forget_unnamed(&self) {
        let named: BTreeMap<SourceId, usize> = self.objects.watched().into_iter().collect();
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).retain(|source, _| named.contains_key(source));
    }

    /// The objects that the volume was made of, so that a change can be told.
    pub fn objects(&self, pod: &NodePod, spec: &VolumeSpec) -> BTreeMap<String, u64> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = sources_of(spec, pod).into_iter();
        sources.map(|source| (source.to_string(), counts.get(&source).copied().unwrap_or_default())).collect()
    }

    /// Resolves when the Secrets among them have been read once: from then on only a change counts.
    pub async fn settled(&self, pod: &NodePod, spec: &VolumeSpec) {
        for source in sources_of(spec, pod) {
            if let SourceId::Secret(key) = source {
                // What goes wrong here goes wrong again where it is needed, and is told there.
                let _ = self.objects.secret(&key).await;
            }
        }
    }

    /// The same, with what files can tell of the pod itself. What the node can give is another such thing, and stays the same
    /// for as long as this process lives.
    pub fn versions(&self, pod: &NodePod, spec: &VolumeSpec) -> BTreeMap<String, u64> {
        let mut versions = self.objects(pod, spec);
        let mut hasher = DefaultHasher::new();
        pod.meta.labels.hash(&mut hasher);
        pod.annotations.hash(&mut hasher);
        // Containers are resized in place.
        let of_containers = pod.containers.iter().map(|container| (&container.name, &container.resources));
        format!("{:?} {:?}", pod.resources, of_containers.collect::<Vec<_>>()).hash(&mut hasher);
        versions.insert("Pod".to_owned(), hasher.finish());
        versions
    }
}
