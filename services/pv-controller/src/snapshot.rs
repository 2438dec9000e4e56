//! What one decision needs, gathered from the caches.

use std::sync::Arc;

use stowage_model::object::{Key, Projection};
use stowage_model::{Claim, Pod, StorageClass, Volume};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::Reserved;
use stowage_runtime::events::Note;

/// Index of volumes by class, for matching.
pub const BY_CLASS: &str = "class";
/// Index of volumes by the claim they refer to.
pub const BY_CLAIM: &str = "claim";
/// Index of claims by the volume they name.
pub const BY_VOLUME: &str = "volume";
/// Index of claims that wait for a volume, by class.
pub const WAITING: &str = "waiting";
/// Index of pods by the claims they use.
pub const BY_USED_CLAIM: &str = "used-claim";

/// The caches of this service.
#[derive(Clone)]
pub struct Caches {
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub classes: Cache<StorageClass>,
    pub pods: Cache<Pod>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            claims: Cache::indexed(&[
                (BY_VOLUME, |claim| some_text(&claim.spec.volume_name)),
                (WAITING, |claim| if claim.names_volume() { vec![] } else { vec![claim.class_name().to_owned()] }),
            ]),
            volumes: Cache::indexed(&[
                (BY_CLASS, |volume| vec![volume.class_name().to_owned()]),
                (BY_CLAIM, |volume| volume.spec.claim_ref.iter().map(|claim| claim.key().to_string()).collect()),
            ]),
            classes: Cache::new(),
            pods: Cache::indexed(&[(BY_USED_CLAIM, |pod| pod.claims().map(|claim| claim.to_string()).collect())]),
        }
    }
}

fn some_text(text: &str) -> Vec<String> {
    if text.is_empty() { vec![] } else { vec![text.to_owned()] }
}

/// Everything that decides what happens to one claim.
#[derive(Debug, Clone)]
pub struct ClaimSnapshot {
    pub claim: Arc<Claim>,
    pub class: Option<Arc<StorageClass>>,
    pub default_class: Option<String>,
    /// The volume the claim names.
    pub named: View<Volume>,
    /// Volumes the matcher may choose from: of the claim's class, or reserved for the claim, and not being written.
    pub candidates: Vec<Arc<Volume>>,
    /// Pods that use the claim.
    pub pods: Vec<Arc<Pod>>,
    /// What people were last told about the claim.
    pub told: Option<Note>,
    /// Whether claims may be provisioned for at all.
    pub provisioning: bool,
}

/// Everything that decides what happens to one volume.
#[derive(Debug, Clone)]
pub struct VolumeSnapshot {
    pub volume: Arc<Volume>,
    /// The claim the volume refers to, by name.
    pub claim: View<Claim>,
    /// What people were last told about the volume.
    pub told: Option<Note>,
}

impl Caches {
    pub fn claim(&self, key: &Key, reserved: &Reserved) -> Option<ClaimSnapshot> {
        let View::Known(claim) = self.claims.view(key) else { return None };
        let class_name = claim.class_name();
        let class = self.classes.get(&Key::cluster(class_name));
        let named = if claim.names_volume() {
            self.volumes.view(&Key::cluster(claim.spec.volume_name.clone()))
        } else {
            View::Absent
        };
        let candidates =
            if claim.names_volume() || claim.is_bind_completed() { vec![] } else { self.candidates(&claim, reserved) };
        let classes = self.classes.list();
        let default = stowage_model::class::default_class(classes.iter().map(Arc::as_ref));
        Some(ClaimSnapshot {
            default_class: default.map(|class| class.meta.name.clone()),
            class,
            named,
            candidates,
            pods: self.pods.by_index(BY_USED_CLAIM, &key.to_string()),
            told: None,
            provisioning: true,
            claim,
        })
    }

    fn candidates(&self, claim: &Claim, reserved: &Reserved) -> Vec<Arc<Volume>> {
        let mut candidates = self.volumes.by_index(BY_CLASS, claim.class_name());
        for volume in self.volumes.by_index(BY_CLAIM, &claim.key().to_string()) {
            if volume.class_name() != claim.class_name() {
                candidates.push(volume);
            }
        }
        candidates.retain(|volume| {
            !reserved.contains(&volume.id()) && matches!(self.volumes.view(&volume.key()), View::Known(_))
        });
        candidates
    }

    pub fn volume(&self, key: &Key) -> Option<VolumeSnapshot> {
        let View::Known(volume) = self.volumes.view(key) else { return None };
        let claim = match &volume.spec.claim_ref {
            Some(reference) => self.claims.view(&reference.key()),
            None => View::Absent,
        };
        Some(VolumeSnapshot { volume, claim, told: None })
    }
}
