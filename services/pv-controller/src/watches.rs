//! What is cached, under which indexes, and which change wakes which keys.

mod changes;

use std::sync::Arc;

use stowage_model::object::{self, ObjectId, Projection, kinds};
use stowage_model::{AttributesClass, Claim, Pod, StorageClass, Volume};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::matchmaker::Matchmaker;
use crate::recycler;

use changes::concerns;

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Claim(object::Key),
    Volume(object::Key),
    Pod(object::Key),
    AttributesClass(object::Key),
}

impl Key {
    pub fn object(&self) -> &object::Key {
        match self {
            Self::Claim(key) | Self::Volume(key) | Self::Pod(key) | Self::AttributesClass(key) => key,
        }
    }

    pub fn id(&self) -> ObjectId {
        let kind = match self {
            Self::Claim(_) => kinds::CLAIM,
            Self::Volume(_) => kinds::VOLUME,
            Self::Pod(_) => kinds::POD,
            Self::AttributesClass(_) => kinds::ATTRIBUTES_CLASS,
        };
        ObjectId { kind, key: self.object().clone() }
    }
}

/// Index of claims by the volume they name.
pub const BY_VOLUME: &str = "volume";
/// Index of claims that wait for a volume, by class.
pub const WAITING: &str = "waiting";
/// Index of pods by the claims they use.
pub const BY_USED_CLAIM: &str = "used-claim";
/// Index of recycler pods by the volume they erase.
pub const BY_RECYCLED: &str = "recycled";
/// Index of the classes that are marked as the default, under one name.
pub const DEFAULT: &str = "default";
/// Index of claims and volumes by the VolumeAttributesClasses they name.
pub const BY_ATTRIBUTES_CLASS: &str = "attributes-class";

/// The caches of this service.
#[derive(Clone)]
pub struct Caches {
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    pub pods: Cache<Pod>,
    pub attributes_classes: Cache<AttributesClass>,
    /// Fed by changes of the volumes.
    pub matchmaker: Arc<Matchmaker>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            claims: Cache::indexed(&[
                (BY_VOLUME, |claim| some_text(&claim.spec.volume_name)),
                (WAITING, |claim| if claim.names_volume() { vec![] } else { vec![claim.class_name().to_owned()] }),
                (BY_ATTRIBUTES_CLASS, |claim| claim.attributes_classes().into_iter().map(str::to_owned).collect()),
            ]),
            volumes: Cache::indexed(&[(BY_ATTRIBUTES_CLASS, |volume| some_text(volume.attributes_class()))]),
            classes: Cache::indexed(&[(
                DEFAULT,
                |class| if class.is_default() { vec![String::new()] } else { vec![] },
            )]),
            pods: Cache::indexed(&[
                (BY_USED_CLAIM, |pod| pod.claims().map(|claim| claim.to_string()).collect()),
                (BY_RECYCLED, |pod| recycler::task(pod).map(|(volume, _)| volume.to_owned()).into_iter().collect()),
            ]),
            attributes_classes: Cache::new(),
            matchmaker: Arc::default(),
        }
    }
}

fn some_text(text: &str) -> Vec<String> {
    if text.is_empty() { vec![] } else { vec![text.to_owned()] }
}

impl Caches {
    /// Everything that there is to decide on.
    pub fn keys(&self) -> Vec<Key> {
        let claims = self.claims.keys().into_iter().map(Key::Claim);
        let volumes = self.volumes.keys().into_iter().map(Key::Volume);
        let pods = self.pods.list().into_iter().filter(|pod| concerns(pod)).map(|pod| Key::Pod(pod.key()));
        let classes = self.attributes_classes.keys().into_iter().map(Key::AttributesClass);
        claims.chain(volumes).chain(pods).chain(classes).collect()
    }
}

impl Controller {
    pub(crate) fn declare(&self, watches: &mut Watches<'_, Self>) {
        let caches = &self.caches;
        watches.cache(&caches.claims, Scope::all(), Self::claim_changed);
        watches.cache(&caches.volumes, Scope::all(), Self::volume_changed);
        watches.cache(&caches.classes, Scope::all(), Self::class_changed);
        watches.cache(&caches.pods, Scope::all(), Self::pod_changed);
        if self.rules.controllers.attributes_class_protection {
            // Servers of old do not serve the kind; then there is nothing to protect.
            watches.optional(&caches.attributes_classes, Scope::all(), |_, change: &Change<'_, AttributesClass>| {
                [Key::AttributesClass(change.key.clone())]
            });
        }
    }
}
