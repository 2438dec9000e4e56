//! Carries out one action.

use serde_json::{Map, Value, json};

use stowage_model::annotations::PRE_RESIZE_CAPACITY;
use stowage_model::object::{Key, Meta, Projection as _};
use stowage_runtime::Context;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use crate::calls::{Aim, Kind, Operation, Planned};
use crate::change::Change;
use crate::controller::Controller;
use crate::decide::{Action, VolumeChange};
use crate::projections::Claim;
use crate::snapshot::Topic;

impl Controller {
    pub async fn carry_out(&self, key: Key, action: Action) -> Result<(), Error> {
        let written_for = action.written_for();
        let done = self.act(key.clone(), action).await;
        if let (Some(kind), Err(error)) = (written_for, &done)
            && error.must_be_told()
        {
            self.tell_unwritten(key, kind, error);
        }
        done
    }

    /// The event about a write that the server refuses: without it the claim would hang without a word.
    fn tell_unwritten(&self, key: Key, kind: Kind, error: &Error) {
        let Some(claim) = self.caches.claims.get(&key) else { return };
        let (topic, note) = (Topic::Failed(kind), Note::warning(kind.failed(), error.to_string()));
        let now = self.context().clock.now();
        if self.told.known(&key).until(&topic, &note, now).is_none() {
            let taken = self.recorder.record(&claim.reference(), note.clone());
            self.told.note(key, topic, note, taken, now);
        }
    }

    async fn act(&self, key: Key, action: Action) -> Result<(), Error> {
        match action {
            Action::Save { claim, change } => self.save(&claim, &change).await,
            Action::Finish { claim, change, kind, note } => {
                self.save(&claim, &change).await?;
                // Only now: a write that is lost finds in the record what the driver did.
                self.forget_calls(&claim.meta, |aim| aim.kind() == kind);
                self.told.retain(&key, |topic| topic.kind() != kind);
                self.recorder.record(&claim.reference(), note);
                Ok(())
            }
            Action::SaveVolume { volume, change } => self.save_volume(&volume, change).await,
            Action::Call { claim, planned, in_doubt, is_written } => {
                if !is_written {
                    self.check(&claim).await?;
                }
                self.call(&claim, *planned, in_doubt)
            }
            Action::StepAside { claim, kind } => {
                self.step_aside(&claim, kind);
                Ok(())
            }
            Action::Tell { claim, topic, note } => {
                let taken = self.recorder.record(&claim.reference(), note.clone());
                self.told.note(key, topic, note, taken, self.context().clock.now());
                Ok(())
            }
            Action::Watch => {
                self.watching.begin(&key);
                Ok(())
            }
            Action::RefreshClaim => self.context().objects(&self.caches.claims).refresh(&key).await.map(drop),
            Action::RefreshVolume(name) => {
                self.context().objects(&self.caches.volumes).refresh(&Key::cluster(name)).await.map(drop)
            }
        }
    }

    async fn save(&self, claim: &Claim, change: &Change) -> Result<(), Error> {
        let Some(body) = change.body(claim, self.context().clock.now()) else { return Ok(()) };
        let claims = self.context().objects(&self.caches.claims);
        // The list of conditions is replaced as a whole, so the version must be the one that was read.
        claims.patch(&Target::exact(&claim.meta), Part::Status, Patch::Merge(body)).await.map(drop)
    }

    async fn save_volume(&self, volume: &Meta, change: VolumeChange) -> Result<(), Error> {
        let mut spec = Map::new();
        if let Some(capacity) = change.capacity {
            spec.insert("capacity".into(), json!({ "storage": capacity.to_string() }));
        }
        if let Some(class) = change.class {
            spec.insert("volumeAttributesClassName".into(), class.into());
        }
        let mut body = json!({});
        if !spec.is_empty() {
            body["spec"] = spec.into();
        }
        if let Some(before) = change.before {
            let value = before.map_or(Value::Null, |size| size.to_string().into());
            body["metadata"] = json!({ "annotations": { PRE_RESIZE_CAPACITY: value } });
        }
        let volumes = self.context().objects(&self.caches.volumes);
        volumes.patch(&Target::exact(volume), Part::Main, Patch::Merge(body)).await.map(drop)
    }

    /// A volume does not shrink: what was decided on must be the newest there is.
    async fn check(&self, claim: &Claim) -> Result<(), Error> {
        let fresh = self.context().objects(&self.caches.claims).fresh(&claim.meta).await?;
        match fresh.meta.revision == claim.meta.revision {
            true => Ok(()),
            false => Err(Error::Stale("the claim")),
        }
    }

    fn call(&self, claim: &Claim, planned: Planned, in_doubt: bool) -> Result<(), Error> {
        if !self.context().may_call_driver() {
            return Err(Error::Deposed);
        }
        let operation = Operation::new(&claim.meta, planned.aim());
        let kind = operation.aim.kind();
        // What came of another size or class is over, and so is its backoff.
        self.forget_calls(&claim.meta, |aim| aim.kind() == kind && *aim != operation.aim);
        tracing::debug!(claim = %operation.claim, ?kind, "calling the driver");
        let volume = self.caches.volumes.get(&Key::cluster(claim.spec.volume_name.as_str()));
        let is_migrated = volume.is_some_and(|volume| volume.spec.in_tree.is_some());
        let is_wanted = self.is_wanted(claim, kind);
        let call = self.calls.for_migrated(is_migrated).run(operation.clone(), planned, in_doubt, is_wanted);
        self.operations.start(operation, call);
        Ok(())
    }

    /// A call that waits for its turn goes out of the line; it ends unsent, and wakes its claim.
    fn step_aside(&self, claim: &Claim, kind: Kind) {
        let waiting = self.records(&claim.meta).into_iter().filter(|(operation, _)| operation.aim.kind() == kind);
        waiting.for_each(|(operation, _)| self.calls.turns(kind).send_away(&operation));
    }

    pub fn forget_calls(&self, claim: &Meta, which: impl Fn(&Aim) -> bool) {
        let records = self.records(claim).into_iter().filter(|(operation, _)| which(&operation.aim));
        records.for_each(|(operation, _)| self.operations.forget(&operation));
    }

    /// Whether the claim still asks for what it asked for when it was decided on.
    fn is_wanted(&self, claim: &Claim, kind: Kind) -> impl Fn() -> bool + Send + 'static {
        let (claims, key, uid) = (self.caches.claims.clone(), claim.key(), claim.meta.uid.clone());
        let (size, class) = (claim.requested(), claim.wanted_class().to_owned());
        move || {
            let claim = claims.get(&key).filter(|claim| claim.meta.uid == uid);
            claim.is_some_and(|claim| match kind {
                Kind::Expand => claim.requested() == size,
                Kind::Modify => claim.wanted_class() == class,
            })
        }
    }

    /// What was kept for a claim goes with it.
    pub fn forget(&self, claim: &Meta) {
        self.forget_calls(claim, |_| true);
        self.told.forget(&claim.key());
        self.watching.end(&claim.key());
    }

    fn context(&self) -> &Context {
        self.calls.caller.context()
    }
}
