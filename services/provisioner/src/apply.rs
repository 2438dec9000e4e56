//! Carries out one action. Whatever cannot be undone is preceded by one fresh read of what justifies it.

mod sources;

use std::sync::Arc;

use serde_json::Value;

use stowage_model::annotations::SELECTED_NODE;
use stowage_model::claim::Claim;
use stowage_model::finalizers::PROVISIONER;
use stowage_model::names::VolumeHandle;
use stowage_model::object::{Key as ObjectKey, ObjectRef, Projection};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::topology;
use stowage_model::volume::Volume;
use stowage_runtime::api::{self, Api, Deletion, Part, Patch, Target};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::engine::Error;
use stowage_runtime::events::{Note, Severity};
use stowage_runtime::operation::Ended;

use crate::controller::{Controller, Key};
use crate::decide::{Action, DeletionSecret, has_handle, is_wanted};
use crate::intent::{Intent, Location, Made, SecretRef, SourceKind};
use crate::library::{DeleteOptions, IGNORED};
use crate::{holders, migrated, ownership, secrets, volume};

impl Controller {
    pub async fn carry_out(&self, key: Key, action: Action) -> Result<(), Error> {
        let turns = match &action {
            // What waits for the journal asks the server for nothing, and those that look at all volumes share a look:
            // neither must keep others from it.
            Action::Record(_)
            | Action::Release { .. }
            | Action::FlushJournal
            | Action::CleanUp { .. }
            | Action::Keep { .. } => None,
            // A volume that is made does not queue behind those that are yet to be asked for.
            Action::MakeVolume { .. } => Some(&self.last_turns),
            _ => Some(&self.turns),
        };
        let _turn = match turns {
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        match action {
            Action::Tell(note) => self.tell(key, note),
            Action::Record(intent) => self.record(key, intent).await,
            Action::Create { intent, wanted } => self.create(intent, wanted).await,
            Action::MakeVolume { intent, made } => self.make_volume(&intent, &made).await,
            Action::CleanUp { intent, handle } => self.clean_up(&intent, handle).await,
            Action::Keep { intent, made } => self.keep(key, &intent, &made).await,
            Action::Protect(source) => self.protect(&source).await,
            Action::Release { intent, note } => self.release(key, intent, note).await,
            Action::Unprotect { origin, uid } => self.unprotect(&origin, &uid).await,
            Action::Look(origin) => self.look(&origin),
            Action::LookUp(name) => self.look_up(&key, name),
            Action::Forget => self.forget(key),
            Action::ReadVolume(name) => self.read_volume(&name).await.map(drop),
            Action::Delete { volume, handle, secret } => self.delete(&volume, handle, secret).await,
            Action::RemoveVolume(volume) => {
                let target = Target::any_version(&volume.meta);
                let deleted = self.api().delete(&self.caches.volumes, &target, Deletion::default()).await;
                deleted.map_err(Error::write("delete the volume's object"))
            }
            Action::AddFinalizer(volume) => self.patch(&volume, Patch::add_finalizer(&volume.meta, PROVISIONER)).await,
            Action::RemoveFinalizer(volume) => {
                self.patch(&volume, Patch::remove_finalizer(&volume.meta, PROVISIONER)).await
            }
            Action::LetGo(volume) => self.let_go(&volume).await,
            Action::Bid => self.postpone_bid(&key),
            Action::AskForRoom(intent) => self.ask_for_room(&intent),
            Action::Take(claim) => self.take(&key, &claim).await,
            Action::Reschedule(claim) => self.reschedule(key, &claim).await,
            Action::FlushJournal => Ok(self.journal().flush().await?),
        }
    }

    fn api(&self) -> &Api {
        &self.context().api
    }

    /// A failure that people are told of counts as one: the original counts each time it tries in vain.
    fn tell(&self, key: Key, note: Note) -> Result<(), Error> {
        let (metrics, is_failure) = (&self.calls.metrics, note.severity == Severity::Warning);
        let about: Option<ObjectRef> = match &key {
            Key::Claim(uid) => match self.caches.claims.by_index("uid", uid).first() {
                Some(claim) => {
                    if is_failure {
                        metrics.refused_to_make(claim);
                    }
                    Some(claim.reference())
                }
                None => self.journal().get(uid).map(|recorded| recorded.intent.claim.reference()),
            },
            Key::Volume(name) => self.caches.volumes.get(&ObjectKey::cluster(name)).map(|volume| {
                if is_failure {
                    metrics.refused_to_delete(volume.class_name());
                }
                volume.reference()
            }),
            Key::Source(origin) => match origin.kind {
                SourceKind::Claim => self.caches.claims.get(&origin.key).map(|claim| claim.reference()),
                SourceKind::Snapshot => self.caches.snapshots.get(&origin.key).map(|snapshot| snapshot.reference()),
            },
        };
        // All others are of the library in the original, and this one of the provisioner around it.
        let is_of_populator = note.severity == Severity::Normal;
        let recorder = if is_of_populator { &self.populator_recorder } else { &self.calls.recorder };
        let taken = about.is_some_and(|about| recorder.record(&about, note.clone()));
        self.told.note(key, (), note, taken, self.context().clock.now());
        Ok(())
    }

    /// What is asked on for a claim that is gone keeps nobody's source from being deleted.
    async fn release(&self, key: Key, intent: Arc<Intent>, note: Note) -> Result<(), Error> {
        let Some(source) = &intent.request.source else { return Ok(()) };
        self.journal().release(Arc::clone(&intent)).await?;
        tracing::warn!(claim = %intent.claim.key(), volume = intent.volume, "{}", note.message);
        let origin = source.origin();
        let about = ObjectRef { kind: origin.object_kind(), key: *origin.key, uid: source.uid.clone() };
        self.calls.recorder.record(&about, note);
        self.told.forget(&key);
        Ok(())
    }

    async fn record(&self, key: Key, intent: Arc<Intent>) -> Result<(), Error> {
        let uid = intent.claim.uid.clone();
        let before = self.journal().get(&uid);
        if let Err(error) = self.journal().record(Arc::clone(&intent)).await {
            let note = Note::warning("ProvisioningFailed", format!("cannot provision yet: {error}"));
            self.calls.recorder.record(&intent.claim.reference(), note);
            return Err(error.into());
        }
        let is_known = before.as_ref().is_some_and(|before| before.intent == intent);
        if before.is_some_and(|before| !before.intent.asks_the_same_besides_places(&intent)) {
            // The backoff belongs to the request that failed.
            self.creations.forget(&uid);
        }
        if !is_known {
            // The record has it from here on.
            self.attributes.forget(&uid);
        }
        self.told.forget(&key);
        Ok(())
    }

    fn forget(&self, key: Key) -> Result<(), Error> {
        if let Key::Claim(uid) = &key {
            self.creations.forget(uid);
            self.cleanups.forget(uid);
            self.attributes.forget(uid);
            self.journal().forget(uid);
        }
        self.told.forget(&key);
        Ok(())
    }

    fn postpone_bid(&self, key: &Key) -> Result<(), Error> {
        if let (Key::Claim(uid), Some(deployment)) = (key, &self.facts.options.node_deployment) {
            let backoff = Backoff { base: deployment.base_delay, max: deployment.max_delay };
            let context = self.context();
            self.bids.postpone(uid, backoff, context.clock.now(), &context.random);
            // Room is asked for again when the next attempt is due.
            self.rooms.forget(uid);
        }
        Ok(())
    }

    fn ask_for_room(&self, intent: &Arc<Intent>) -> Result<(), Error> {
        self.check_lease()?;
        let Some(node) = &self.facts.node else { return Ok(()) };
        let call = self.calls.clone().has_room(Arc::clone(intent), node.segments.clone());
        self.rooms.start(intent.claim.uid.clone(), call);
        Ok(())
    }

    /// Writes this node's name into the claim; of several nodes that do, the API server lets one win.
    async fn take(&self, key: &Key, claim: &Claim) -> Result<(), Error> {
        let Some(node) = &self.facts.node else { return Ok(()) };
        match self.select_node(claim, Some(&node.name)).await {
            Err(error) if error.answer().is_some_and(api::Error::is_stale) => self.postpone_bid(key),
            other => other,
        }
    }

    /// Whoever chooses nodes chooses again. What may have been made here keeps its record, and is found and deleted.
    async fn reschedule(&self, key: Key, claim: &Claim) -> Result<(), Error> {
        self.select_node(claim, None).await?;
        if !self.journal().get(&claim.meta.uid).is_some_and(|recorded| recorded.maybe_made) {
            self.forget(key.clone())?;
        }
        self.postpone_bid(&key)
    }

    /// By update and not by patch: the original's role allows no more.
    async fn select_node(&self, claim: &Claim, node: Option<&str>) -> Result<(), Error> {
        let edit = move |object: &mut Value| {
            let annotations = &mut object["metadata"]["annotations"];
            match node {
                Some(node) => annotations[SELECTED_NODE] = node.into(),
                None => drop(annotations.as_object_mut().and_then(|annotations| annotations.remove(SELECTED_NODE))),
            }
        };
        let replaced = self.api().replace(&self.caches.claims, &Target::exact(&claim.meta), Part::Main, edit).await;
        replaced.map(drop).map_err(Error::write("choose the claim's node"))
    }

    async fn create(&self, intent: Arc<Intent>, wanted: bool) -> Result<(), Error> {
        self.check_lease()?;
        // Without a claim the record alone justifies the call, and it is durable.
        if wanted && self.wanted_claim(&intent).await?.is_none() {
            return Err(Error::Stale("the claim"));
        }
        let calls = self.calls.clone();
        self.creations.start(intent.claim.uid.clone(), calls.create(intent, wanted));
        Ok(())
    }

    async fn make_volume(&self, intent: &Intent, made: &Made) -> Result<(), Error> {
        self.check_lease()?;
        // No fresh read: there was one before the call, and the object of a claim that went since is released as any other.
        let claim = self.caches.claims.get(&intent.claim.key()).filter(|claim| self.is_wanted(claim, intent));
        let Some(claim) = claim else { return Err(Error::Stale("the claim")) };
        let mut body = volume::body(&claim, intent, made, &self.facts);
        if intent.class.plugin.is_some() {
            // It was looked at when the volume was made: one that has no such form was deleted again.
            migrated::translate(&mut body).map_err(Error::other)?;
        }
        let about = intent.claim.reference();
        match self.api().create(&self.caches.volumes, body).await {
            Ok(volume) => {
                let message = format!("volume {} is made, handle {:?}", volume.meta.name, made.handle.as_str());
                self.calls.recorder.record(&about, Note::normal("ProvisioningSucceeded", message));
                Ok(())
            }
            Err(source) => {
                if source.must_be_told() {
                    let message = format!("the volume is made, but its object cannot be saved yet: {source}");
                    self.calls.recorder.record(&about, Note::warning("ProvisioningFailed", message));
                }
                Err(Error::write("create the volume's object")(source))
            }
        }
    }

    async fn clean_up(&self, intent: &Intent, handle: VolumeHandle) -> Result<(), Error> {
        self.check_lease()?;
        self.check_unwanted(intent, &handle).await?;
        let made = self.creations.record(&intent.claim.uid);
        let options = DeleteOptions {
            volume: intent.volume.clone(),
            handle: handle.clone(),
            location: made.as_ref().and_then(|record| record.done()?.location.clone()),
            places: made.and_then(|record| Some(record.done()?.topology.clone())).filter(|places| !places.is_empty()),
            annotations: Default::default(),
            secret: intent.secrets.provisioner.clone(),
        };
        let call = self.calls.clone().delete(options, None, handle);
        self.cleanups.start(intent.claim.uid.clone(), call);
        Ok(())
    }

    /// The volume stays, and gets an object: of a claim that is gone it is as released as any other that is retained.
    async fn keep(&self, key: Key, intent: &Intent, made: &Made) -> Result<(), Error> {
        self.check_lease()?;
        self.check_unwanted(intent, &made.handle).await?;
        let mut body = volume::unclaimed(intent, made, &self.facts).map_err(Error::other)?;
        if intent.class.plugin.is_some() {
            migrated::translate(&mut body).map_err(Error::other)?;
        }
        let (driver, handle) = (&self.facts.driver, made.handle.as_str());
        let shown = match self.api().create(&self.caches.volumes, body).await {
            Ok(_) => format!("PersistentVolume {:?} stands for it", intent.volume),
            // Another volume's object has the name: then only people can give it one.
            Err(error) if error.is_already_exists() => {
                format!(
                    "make a PersistentVolume for it, for {:?} is another volume's, or delete it there",
                    intent.volume
                )
            }
            Err(source) => return Err(Error::write("create the object of a retained volume")(source)),
        };
        tracing::warn!(
            claim = %intent.claim.key(), volume = intent.volume, handle, class = intent.class.name,
            "a volume of a class that retains had no object; it is kept: {shown}"
        );
        let message = format!(
            "volume {handle:?} of driver {driver:?} was made for this claim and had no object; it is kept, because StorageClass \
             {:?} had the reclaim policy {:?}: {shown}",
            intent.class.name, intent.class.reclaim_policy
        );
        self.calls.recorder.record(&intent.claim.reference(), Note::warning("VolumeRetained", message));
        self.calls.metrics.retained.inc();
        self.forget(key)
    }

    /// By fresh reads neither an object nor the claim has or gets the volume.
    async fn check_unwanted(&self, intent: &Intent, handle: &VolumeHandle) -> Result<(), Error> {
        if self.has_owner(handle).await? {
            return Err(Error::Stale("the volume"));
        }
        let _turn = self.turns.acquire().await.ok();
        // If the name is taken, the claim cannot have this volume, whether it waits or not.
        let taken = self.read_volume(&intent.volume).await?.is_some();
        if !taken && self.wanted_claim(intent).await?.is_some() {
            return Err(Error::Stale("the claim"));
        }
        Ok(())
    }

    /// Whether any PersistentVolume has the handle, by a fresh look: objects made by hand have any name.
    async fn has_owner(&self, handle: &VolumeHandle) -> Result<bool, Error> {
        let owner = self.holders.find(self.api(), &self.facts, handle).await;
        let owner = owner.map_err(|source| Error::Read { what: "the volumes", source })?;
        let Some(owner) = owner else { return Ok(false) };
        match Volume::read(owner.to_string().as_bytes()) {
            Ok(owner) => {
                self.caches.volumes.observe(owner);
                Ok(true)
            }
            Err(source) => {
                let name = owner["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                Err(Error::other(holders::Unreadable { name, handle: handle.clone(), source }))
            }
        }
    }

    async fn let_go(&self, volume: &Volume) -> Result<(), Error> {
        let fresh = self.read_volume(&volume.meta.name).await?;
        let fresh = fresh.filter(|fresh| fresh.meta.uid == volume.meta.uid);
        let Some(fresh) = fresh.filter(|fresh| fresh.spec.reclaim_policy != ReclaimPolicy::Delete) else {
            return Err(Error::Stale("the volume"));
        };
        let Some(patch) = Patch::remove_finalizer(&fresh.meta, PROVISIONER) else { return Ok(()) };
        // A policy that changes to Delete now must not lose the finalizer that makes sure of it.
        let target = Target::exact(&fresh.meta);
        let patched = self.api().patch(&self.caches.volumes, &target, Part::Main, patch).await;
        patched.map(drop).map_err(Error::write("change the volume's finalizers"))
    }

    async fn delete(&self, volume: &Volume, handle: VolumeHandle, secret: DeletionSecret) -> Result<(), Error> {
        self.check_lease()?;
        let fresh = self.read_volume(&volume.meta.name).await?;
        let still = fresh.is_some_and(|fresh| {
            fresh.meta.uid == volume.meta.uid
                && fresh.status.phase == VolumePhase::Released
                && fresh.spec.reclaim_policy == ReclaimPolicy::Delete
                && has_handle(&fresh, &handle, &self.facts.driver)
        });
        if !still {
            return Err(Error::Stale("the volume"));
        }
        let secret = match secret {
            DeletionSecret::None => None,
            DeletionSecret::At(secret) => Some(secret),
            DeletionSecret::FromClass => self.secret_of_class(volume),
        };
        let location = self.location(volume).await?;
        let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        let options = DeleteOptions {
            volume: volume.meta.name.clone(),
            handle,
            location,
            places: required.map(topology::from_node_selector),
            annotations: volume.meta.annotations.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            secret,
        };
        let call = self.calls.clone().delete(options, Some(volume.reference()), volume.meta.uid.clone());
        let (calls, volume, clock) = (self.calls.clone(), volume.clone(), Arc::clone(&self.context().clock));
        self.deletions.start(volume.meta.name.clone(), async move {
            let begin = clock.boottime();
            let ended = call.await;
            let is_deleted = matches!(ended, Ended::Done(_));
            let is_ignored = matches!(&ended, Ended::Uncertain(failure) if failure.code == IGNORED);
            if !is_ignored {
                calls.metrics.tried_to_delete(volume.class_name(), is_deleted, clock.boottime().saturating_sub(begin));
            }
            if is_deleted {
                calls.signals.deleted(&volume);
            }
            ended
        });
        Ok(())
    }

    /// Where a volume is that is no CSI volume: caches keep nothing of that.
    async fn location(&self, volume: &Volume) -> Result<Option<Location>, Error> {
        let Some(field) = volume.spec.other_source else { return Ok(None) };
        let raw = self.api().get_raw(&volume.id()).await.map_err(Error::read("the volume"))?;
        let same = raw.filter(|raw| raw["metadata"]["uid"] == volume.meta.uid.as_str());
        let Some(mut raw) = same else { return Err(Error::Stale("the volume")) };
        Ok(Some(Location { field: field.to_owned(), value: raw["spec"][field].take() }))
    }

    /// Volumes older than the annotations: what the class says now, if it still exists.
    fn secret_of_class(&self, volume: &Volume) -> Option<SecretRef> {
        let class = self.caches.classes.get(&ObjectKey::cluster(volume.class_name()))?;
        let claim = volume.spec.claim_ref.as_ref()?;
        let subject = secrets::Subject {
            volume: &volume.meta.name,
            claim: &claim.name,
            namespace: &claim.namespace,
            annotations: &Default::default(),
        };
        let class = migrated::class(&class, &self.facts.driver).ok()?.0;
        secrets::provisioner(&class.parameters, subject).unwrap_or_else(|error| {
            tracing::warn!(volume = volume.meta.name, class = class.meta.name, %error, "no deletion secret");
            None
        })
    }

    async fn patch(&self, volume: &Volume, patch: Option<Patch>) -> Result<(), Error> {
        let Some(patch) = patch else { return Ok(()) };
        let target = Target::any_version(&volume.meta);
        let patched = self.api().patch(&self.caches.volumes, &target, Part::Main, patch).await;
        patched.map(drop).map_err(Error::write("change the volume's finalizers"))
    }

    async fn read_volume(&self, name: &str) -> Result<Option<Arc<Volume>>, Error> {
        let read = self.api().refresh(&self.caches.volumes, &ObjectKey::cluster(name)).await;
        read.map_err(Error::read("the volume"))
    }

    /// The intent's claim by a fresh read, if it still waits for its volume.
    async fn wanted_claim(&self, intent: &Intent) -> Result<Option<Arc<Claim>>, Error> {
        let fresh = self.api().refresh(&self.caches.claims, &intent.claim.key()).await;
        let fresh = fresh.map_err(Error::read("the claim"))?;
        Ok(fresh.filter(|claim| self.is_wanted(claim, intent)))
    }

    fn is_wanted(&self, claim: &Claim, intent: &Intent) -> bool {
        claim.meta.uid == intent.claim.uid && is_wanted(claim) && ownership::is_claimed(claim, &self.facts)
    }

    fn check_lease(&self) -> Result<(), Error> {
        if self.context().may_call_driver() { Ok(()) } else { Err(Error::Deposed) }
    }
}
