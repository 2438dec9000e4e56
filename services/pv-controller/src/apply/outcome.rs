//! What came of a write to a claim: whether it was done after all, what is counted, and what people hear of it.

use stowage_model::object::{self, Projection};
use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, annotations};
use stowage_runtime::api;
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use crate::controller::Controller;
use crate::decide::status::{Change, Status};
use crate::decide::{ClaimAction, Source};
use crate::watches::Key;

impl Controller {
    /// Whether the fresh read that followed a lost answer has shown what was written. True only if nobody would decide on
    /// the same again: what counts as done is not tried with backoff.
    pub(super) fn is_done(&self, claim: &Claim, action: &ClaimAction) -> bool {
        let is_bound = |volume: &str| {
            let volume = self.caches.volumes.get(&object::Key::cluster(volume));
            volume.is_some_and(|volume| volume.is_bound_to(claim))
        };
        let now = self.caches.claims.get(&claim.key()).filter(|now| now.meta.uid == claim.meta.uid);
        match action {
            ClaimAction::Make { .. } => is_bound(&claim.provisioned_volume_name()),
            ClaimAction::Reserve { volume, .. } => {
                let volume = self.caches.volumes.get(&object::Key::cluster(volume.clone()));
                let held = volume.and_then(|volume| volume.spec.claim_ref.clone());
                held.is_some_and(|held| held.uid == claim.meta.uid && held.is_of(claim))
            }
            ClaimAction::Bind(bind) if bind.is_of_claim() => now.is_some_and(|now| {
                let is_written =
                    |change: &Change| Status::of(&now) == change.to && now.meta.revision != claim.meta.revision;
                let completed = now.is_bind_completed() && now.spec.volume_name == bind.volume;
                completed && bind.status.as_ref().is_none_or(is_written)
            }),
            ClaimAction::AskProvisioner { provisioner, .. } => now
                .is_some_and(|now| now.meta.annotation(annotations::STORAGE_PROVISIONER) == Some(provisioner.as_str())),
            _ => false,
        }
    }

    pub(super) fn count_claim_write(&self, claim: &Claim, action: &ClaimAction, error: Option<&Error>) {
        let key = || claim.key().to_string();
        match (action, error) {
            (ClaimAction::AssignClass { .. }, error) => {
                self.metrics.retroactive_classes.inc();
                if error.is_some_and(Error::must_be_told) {
                    self.metrics.retroactive_class_errors.inc();
                }
            }
            (ClaimAction::NameResizer { .. }, Some(Error::Write { source, .. })) if source.must_be_told() => {
                let note = Note::warning("ExternalExpanding", format!("cannot name the resizer: {source}"));
                self.tell(Source::Expander, Key::Claim(claim.key()), &claim.reference(), &note);
            }
            (ClaimAction::Make { .. } | ClaimAction::AskProvisioner { .. }, Some(Error::Write { source, .. }))
                if source.must_be_told() =>
            {
                self.begun.fail(&key());
                let what =
                    if matches!(action, ClaimAction::Make { .. }) { "save the volume" } else { "ask the provisioner" };
                let note = Note::warning("ProvisioningFailed", format!("cannot {what}: {source}"));
                self.tell(Source::Binder, Key::Claim(claim.key()), &claim.reference(), &note);
            }
            (ClaimAction::Tidy(tidy), Some(Error::Write { source, .. }))
                if tidy.protect && claim.status.phase != ClaimPhase::Bound && source.must_be_told() =>
            {
                let note = Note::warning("FailedBinding", format!("cannot protect the claim by a finalizer: {source}"));
                self.tell(Source::Binder, Key::Claim(claim.key()), &claim.reference(), &note);
            }
            (ClaimAction::Reserve { volume, .. }, Some(Error::Write { source, .. })) if source.must_be_told() => {
                self.cannot_bind(claim, volume, source);
                // The volume need not wait with the claim.
                if let Some(other) = self.caches.matchmaker.refused(&claim.key(), volume) {
                    self.queue.add(Key::Claim(other));
                }
            }
            _ => {}
        }
    }

    pub(super) fn cannot_bind(&self, claim: &Claim, volume: &str, error: &api::Error) {
        self.begun.fail(&claim.key().to_string());
        // What is refused to a claim that has its volume concerns its status alone.
        if claim.status.phase == ClaimPhase::Bound {
            return;
        }
        let note = Note::warning("FailedBinding", format!("cannot bind to volume {volume:?}: {error}"));
        self.tell(Source::Binder, Key::Claim(claim.key()), &claim.reference(), &note);
    }
}
