//! What the claims' side tells the lane: room was taken, or given back, or was not there.

use std::sync::{Arc, OnceLock, Weak};

use stowage_model::migration;
use stowage_model::topology::{self, Segments};
use stowage_model::volume::Volume;

use super::lane::Shared;
use crate::intent::{Intent, Made};

/// Cheap to clone, and silent where nothing is published or the lane has not begun: it asks about everything then.
#[derive(Clone, Default)]
pub struct Signals(Arc<OnceLock<Weak<Shared>>>);

impl Signals {
    pub(super) fn begin(&self, shared: &Arc<Shared>) {
        // Set once: a lane begins once.
        let _ = self.0.set(Arc::downgrade(shared));
    }

    /// A volume was made: where it is, or of its class where that is not known.
    pub fn made(&self, intent: &Intent, made: &Made) {
        self.happened(&made.topology, Some(&intent.class.name));
    }

    /// No volume was made: the first place it was asked for is where less is left than was thought.
    pub fn failed(&self, intent: &Intent) {
        let place = intent.request.places.as_ref().and_then(|places| places.preferred().next());
        self.happened(place.map_or(&[], std::slice::from_ref), Some(&intent.class.name));
    }

    pub fn deleted(&self, volume: &Volume) {
        // Where it is in the driver's words.
        let translated = migration::to_csi(volume).ok().flatten();
        let volume = translated.as_deref().unwrap_or(volume);
        let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        let places = required.map(topology::from_node_selector).unwrap_or_default();
        self.happened(&places, Some(volume.class_name()));
    }

    fn happened(&self, places: &[Segments], class: Option<&str>) {
        let Some(shared) = self.0.get().and_then(Weak::upgrade) else { return };
        let there: Vec<_> = places.iter().flat_map(|place| shared.book().stale_place(place)).collect();
        let concerned = match class {
            Some(class) if there.is_empty() => shared.book().stale_class(class),
            _ => there,
        };
        concerned.into_iter().for_each(|item| shared.wake(item));
    }
}
