//! A binding from its reservation to its end.

use stowage_model::Volume;
use stowage_model::object::{Key, Projection};
use stowage_runtime::cache::View;
use stowage_runtime::engine::Error;

use crate::controller::Controller;
use crate::decide::ClaimAction;
use crate::decide::binder::bind::{Bind, bind};
use crate::snapshot::ClaimSnapshot;
use crate::write;

impl Controller {
    /// Makes the writes that follow a reservation without going back to the engine for each. Only choosing competes with
    /// other claims: the rest is decided on the pair alone, which stays reserved meanwhile. The volume's phase is written
    /// beside the claim's two writes.
    pub(super) async fn finish_binding(&self, key: &Key, reserved: &Volume) -> Result<(), Error> {
        let Some((s, bind)) = self.next_of_pair(key, reserved) else { return Ok(()) };
        let phase = async {
            let phase = Bind { complete: None, status: None, ..bind.clone() };
            if phase.phase { self.send_for_pair(&s, phase).await } else { Ok(()) }
        };
        let claim = async {
            if !bind.is_of_claim() {
                return Ok(());
            }
            self.send_for_pair(&s, Bind { phase: false, ..bind.clone() }).await?;
            // Whoever finds more to do after that decides in turn with all others.
            match self.next_of_pair(key, reserved) {
                Some((s, bind)) if bind.is_of_claim() => self.send_for_pair(&s, Bind { phase: false, ..bind }).await,
                _ => Ok(()),
            }
        };
        let (phase, claim) = tokio::join!(phase, claim);
        claim.and(phase)
    }

    fn next_of_pair(&self, key: &Key, reserved: &Volume) -> Option<(ClaimSnapshot, Bind)> {
        let s = self.caches.pair(key, reserved, self.rules)?;
        let View::Known(volume) = &s.named else { return None };
        match bind(&s, volume, self.context.clock.now()).actions.into_iter().next() {
            Some(ClaimAction::Bind(bind)) => Some((s, *bind)),
            _ => None,
        }
    }

    async fn send_for_pair(&self, s: &ClaimSnapshot, bind: Bind) -> Result<(), Error> {
        let View::Known(volume) = &s.named else { return Ok(()) };
        let (is_last, is_of_claim) = (bind.status.is_some(), bind.is_of_claim());
        let action = ClaimAction::Bind(Box::new(bind));
        match self.send(write::of_claim(&action, &s.claim, Some(volume))).await {
            Err(error) if error.is_uncertain() && self.is_done(&s.claim, &action) => {}
            Err(error) => {
                // Where only the volume's phase is missing the claim has what it wants.
                if let Some(answer) = error.answer().filter(|answer| is_of_claim && answer.must_be_told()) {
                    self.cannot_bind(&s.claim, &volume.meta.name, answer);
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        if is_last {
            self.begun.succeed(&s.claim.key().to_string(), self.context.clock.now());
        }
        Ok(())
    }
}
