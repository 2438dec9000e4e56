//! What is watched, and which change wakes which claim.

use std::collections::BTreeSet;

use stowage_model::object::{Key, Projection as _};
use stowage_model::topology::Segments;
use stowage_model::{Volume, annotations, migration, object};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;
use crate::projections::{Claim, Class};

/// A node, as its driver names its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub node: String,
    pub segments: Segments,
}

impl Place {
    /// Whether the volume is here, and not on any node: only this node's driver can then expand it.
    fn has(&self, volume: &Volume) -> bool {
        let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        // A malformed affinity names no node that could be asked.
        required.is_some_and(|required| required.matches(&self.node, &self.segments).unwrap_or(false))
    }
}

pub struct Caches {
    /// The driver whose volumes are ours.
    pub driver: String,
    /// In node deployment, where they have to be.
    place: Option<Place>,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<Class>,
}

impl Caches {
    pub fn new(driver: String, place: Option<Place>) -> Self {
        let claims = Cache::indexed(&[("class", Claim::classes)]);
        Self { driver, place, claims, volumes: Cache::new(), classes: Cache::new() }
    }

    pub fn declare(&self, with_classes: bool, watches: &mut Watches<'_, Controller>) {
        watches.cache(&self.volumes, Scope::all(), |controller, change| controller.caches.of_volume(change));
        watches.cache(&self.claims, Scope::all(), |controller, change| {
            if let (Some(gone), None) = (change.before, change.after) {
                controller.forget(&gone.meta);
            }
            change.both().find(|claim| controller.caches.may_be_ours(claim)).map(|claim| claim.key())
        });
        if with_classes {
            watches.optional(&self.classes, Scope::all(), |controller, change| {
                let waiting = controller.caches.claims.by_index("class", &change.key.name);
                waiting.iter().map(|claim| claim.key()).collect::<Vec<_>>()
            });
        }
    }

    fn of_volume(&self, change: &Change<'_, Volume>) -> BTreeSet<Key> {
        let ours = change.both().filter(|volume| self.is_of_driver(volume));
        ours.filter_map(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.key()).collect()
    }

    /// Whether the volume is the driver's, or was an in-tree plugin's that the driver stands in for, and in node
    /// deployment is here.
    fn is_of_driver(&self, volume: &Volume) -> bool {
        let is_drivers = match &volume.spec.csi {
            Some(csi) => csi.driver == self.driver,
            None => migration::driver_of_source(volume) == Some(self.driver.as_str()),
        };
        is_drivers && self.place.as_ref().is_none_or(|place| place.has(volume))
    }

    /// Whether the claim's volume is ours to expand. One of an in-tree plugin is handed over by the claim's annotation.
    pub fn is_ours(&self, claim: &Claim, volume: &Volume) -> bool {
        let is_handed_over = claim.meta.annotation(annotations::STORAGE_RESIZER) == Some(self.driver.as_str());
        self.is_of_driver(volume) && (volume.spec.csi.is_some() || is_handed_over)
    }

    fn may_be_ours(&self, claim: &Claim) -> bool {
        let volume = &claim.spec.volume_name;
        !volume.is_empty()
            && self.volumes.get(&object::Key::cluster(volume.as_str())).is_none_or(|volume| self.is_of_driver(&volume))
    }

    pub fn keys(&self) -> Vec<Key> {
        self.claims.list().iter().filter(|claim| self.may_be_ours(claim)).map(|claim| claim.key()).collect()
    }
}
