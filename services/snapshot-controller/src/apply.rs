//! Carries out one action.

mod group;

use std::sync::Arc;

use serde_json::{Value, json};

use stowage_model::object::{self, ObjectRef, Projection};
use stowage_model::{Volume, finalizers};
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use crate::controller::Controller;
use crate::decide::{Action, status};
use crate::watches::Key;

// What was to be done, as far as people are told when it fails.
const FINALIZERS: &str = "write the VolumeSnapshot's finalizers";
const CONTENT: &str = "create the VolumeSnapshotContent";
const BIND: &str = "bind the VolumeSnapshotContent";
const STATUS: &str = "write the VolumeSnapshot's status";
const DELETE: &str = "delete the VolumeSnapshotContent";
const CLAIM: &str = "write the claim's finalizers";
const GROUP_FINALIZER: &str = "write the VolumeGroupSnapshot's finalizer";
const GROUP_CONTENT: &str = "create the VolumeGroupSnapshotContent";
const GROUP_BIND: &str = "bind the VolumeGroupSnapshotContent";
const GROUP_STATUS: &str = "write the VolumeGroupSnapshot's status";
const GROUP_DELETE: &str = "delete the VolumeGroupSnapshotContent";
const DELETE_MEMBER: &str = "delete a member's VolumeSnapshot";

/// The reason under which people are told that an action failed.
pub(crate) fn reason_of(what: &str) -> Option<&'static str> {
    match what {
        FINALIZERS => Some("SnapshotFinalizerError"),
        CONTENT => Some("CreateSnapshotContentFailed"),
        BIND => Some("SnapshotBindFailed"),
        STATUS => Some("SnapshotStatusUpdateFailed"),
        DELETE => Some("SnapshotContentObjectDeleteError"),
        CLAIM => Some("ErrorPVCFinalizer"),
        GROUP_FINALIZER => Some("GroupSnapshotFinalizerError"),
        GROUP_CONTENT => Some("CreateGroupSnapshotContentFailed"),
        GROUP_BIND => Some("GroupSnapshotBindFailed"),
        GROUP_STATUS => Some("GroupSnapshotStatusUpdateFailed"),
        GROUP_DELETE => Some("GroupSnapshotContentObjectDeleteError"),
        DELETE_MEMBER => Some("SnapshotDeleteError"),
        _ => None,
    }
}

impl Controller {
    pub(crate) async fn carry_out(&self, key: Key, action: Action) -> Result<(), Error> {
        let result = self.step(key.clone(), action).await;
        if let Err(error) = &result {
            self.write_failure(&key, error).await;
        }
        result
    }

    /// What keeps a VolumeSnapshot from its content is in its status too, where tools look. It is tried again whether or
    /// not this can be written.
    async fn write_failure(&self, key: &Key, error: &Error) {
        let (Key::Snapshot(name), Error::Write { what: CONTENT | BIND, .. }) = (key, error) else { return };
        let Some(snapshot) = self.caches.snapshots.get(name).filter(|_| error.must_be_told()) else { return };
        let message = error.to_string();
        let said = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
        if said == Some(message.as_str()) {
            return;
        }
        let status = status::failure(&message, self.context.clock.now());
        let body = Patch::Merge(json!({ "status": status }));
        let target = Target::any_version(&snapshot.meta);
        if let Err(error) = self.context.api.patch(&self.caches.snapshots, &target, Part::Status, body).await {
            tracing::warn!(snapshot = %name, %error, "what failed cannot be written either");
        }
    }

    async fn step(&self, key: Key, action: Action) -> Result<(), Error> {
        let api = &self.context.api;
        match action {
            Action::LookAtVolume { name, claim } => {
                let volume = api.get::<Volume>(&object::Key::cluster(name.as_str())).await;
                let volume = volume.map_err(Error::read("the claim's volume"))?;
                self.memory.looked(name, volume.map(Arc::new), self.context.clock.now());
                // No cache has changed, and the claim's decision may.
                self.queue.add(Key::Claim(claim));
                Ok(())
            }
            Action::PrepareSnapshot { target, operations } | Action::ReleaseSnapshot { target, operations } => {
                let written = api.patch(&self.caches.snapshots, &target, Part::Main, Patch::Json(operations)).await;
                written.map(drop).map_err(Error::write(FINALIZERS))
            }
            Action::CreateContent { snapshot, body, is_fresh } => self.create_content(&snapshot, body, is_fresh).await,
            Action::BindContent { target, body } => {
                let written = api.patch(&self.caches.contents, &target, Part::Main, Patch::Merge(body)).await;
                written.map(drop).map_err(Error::write(BIND))
            }
            Action::MarkContent { target, body } => {
                let written = api.patch(&self.caches.contents, &target, Part::Main, Patch::Merge(body)).await;
                written.map(drop).map_err(Error::write(DELETE))
            }
            Action::GuardContent { target, operations } => {
                let written = api.patch(&self.caches.contents, &target, Part::Main, Patch::Json(operations)).await;
                written.map(drop).map_err(Error::write("write the VolumeSnapshotContent's finalizer"))
            }
            Action::DeleteContent { target, snapshot } => self.delete_content(&target, &snapshot).await,
            Action::WriteStatus { target, status, tell, about, finished } => {
                let body = Patch::Merge(json!({ "status": status }));
                let written = api.patch(&self.caches.snapshots, &target, Part::Status, body).await;
                written.map_err(Error::write(STATUS))?;
                let now = self.context.clock.now();
                finished.into_iter().for_each(|operation| self.metrics.finish(&key, operation, now));
                tell.into_iter().for_each(|note| self.tell(&key, &about, note));
                Ok(())
            }
            Action::ConfirmContentGone { content } => {
                let read = api.refresh(&self.caches.contents, &content).await;
                let found = read.map_err(Error::read("the VolumeSnapshotContent"))?;
                if found.is_some() { Err(Error::Stale("the VolumeSnapshotContent")) } else { Ok(()) }
            }
            Action::ConfirmGroupGone { group, uid } => {
                let read = api.refresh(&self.caches.groups, &group).await.map_err(Error::read("the group"))?;
                let is_there = read.is_some_and(|found| uid.is_none_or(|uid| found.meta.uid == uid));
                if is_there { Err(Error::Stale("the group")) } else { Ok(()) }
            }
            Action::ProtectClaim { target, keep } => {
                let edit = move |claim: &mut Value| edit_finalizer(claim, finalizers::CLAIM_AS_SNAPSHOT_SOURCE, keep);
                let written = api.replace(&self.caches.claims, &target, Part::Main, edit).await;
                written.map(drop).map_err(Error::write(CLAIM))
            }
            Action::AdoptMember { target, owner } => {
                let edit = move |snapshot: &mut Value| push(&mut snapshot["metadata"]["ownerReferences"], owner);
                let written = api.replace(&self.caches.snapshots, &target, Part::Main, edit).await;
                written.map(drop).map_err(Error::write("write the VolumeSnapshot's owner"))
            }
            Action::Group(action) => self.carry_out_group(&key, action).await,
            Action::Tell { about, note } => {
                self.tell(&key, &about, note);
                Ok(())
            }
        }
    }

    /// With the content the driver is asked, so the VolumeSnapshot that wants it is read once more.
    async fn create_content(&self, snapshot: &ObjectRef, body: Value, is_fresh: bool) -> Result<(), Error> {
        let wanted = if is_fresh {
            self.caches.snapshots.get(&snapshot.key)
        } else {
            let read = self.context.api.refresh(&self.caches.snapshots, &snapshot.key).await;
            read.map_err(Error::read("the VolumeSnapshot"))?
        };
        if !wanted.is_some_and(|wanted| wanted.meta.uid == snapshot.uid && !wanted.meta.is_deleting()) {
            return Err(Error::Stale("the VolumeSnapshot"));
        }
        self.check_lease()?;
        let created = self.context.api.create(&self.caches.contents, body).await;
        let content = created.map_err(Error::write(CONTENT))?;
        let message = format!("driver {:?} is asked to make the snapshot", content.spec.driver);
        self.recorder.record(snapshot, Note::normal("CreatingSnapshot", message));
        Ok(())
    }

    /// What is deleted with the content cannot be brought back: also a leader that was deposed and does not know it yet
    /// sees that the VolumeSnapshot is really going.
    async fn delete_content(&self, target: &Target, snapshot: &ObjectRef) -> Result<(), Error> {
        let read = self.context.api.refresh(&self.caches.snapshots, &snapshot.key).await;
        let fresh = read.map_err(Error::read("the VolumeSnapshot"))?;
        if !fresh.is_some_and(|fresh| fresh.meta.uid == snapshot.uid && fresh.meta.is_deleting()) {
            return Err(Error::Stale("the VolumeSnapshot"));
        }
        self.check_lease()?;
        let deleted = self.context.api.delete(&self.caches.contents, target, Deletion::default()).await;
        deleted.map_err(Error::write(DELETE))
    }

    pub(crate) fn tell(&self, key: &Key, about: &ObjectRef, note: Note) {
        let taken = self.recorder.record(about, note.clone());
        self.memory.told.note(key.clone(), (), note, taken, self.context.clock.now());
    }

    /// Tells about an object what could not be done, unless somebody else was only faster.
    pub(crate) fn tell_failure(&self, key: &Key, error: &Error) {
        let Error::Write { what, .. } = error else { return };
        let Some(reason) = reason_of(what).filter(|_| error.must_be_told()) else { return };
        let note = Note::warning(reason, error.to_string());
        let about: Vec<ObjectRef> = match key {
            Key::Snapshot(name) => self.caches.snapshots.get(name).iter().map(|it| it.reference()).collect(),
            Key::Claim(name) => self.caches.snapshots_of(name).iter().map(|it| it.reference()).collect(),
            Key::Group(name) => self.caches.groups.get(name).iter().map(|it| it.reference()).collect(),
            Key::Content(_) | Key::GroupContent(_) => Vec::new(),
        };
        for about in about {
            self.recorder.record(&about, note.clone());
        }
    }

    fn check_lease(&self) -> Result<(), Error> {
        if self.context.may_call_driver() { Ok(()) } else { Err(Error::Deposed) }
    }
}

fn edit_finalizer(object: &mut Value, finalizer: &str, keep: bool) {
    let list = &mut object["metadata"]["finalizers"];
    if let Some(list) = list.as_array_mut() {
        list.retain(|present| present.as_str() != Some(finalizer));
    }
    if keep {
        push(list, finalizer.into());
    }
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    }
}
