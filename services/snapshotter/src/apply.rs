//! Carries out one action. What cannot be undone is preceded by one fresh read: here, or in the call itself.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::object::Meta;
use stowage_runtime::Context;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::seconds;

use crate::calls::{Answer, Job, Kind, Member, Operation};
use crate::content::Content;
use crate::controller::Controller;
use crate::decide::{Action, Trouble};
use crate::doubts::Subject;
use crate::sort::Sort;
use crate::watches::Key;

impl Controller {
    pub async fn carry_out(&self, key: Key, action: Action) -> Result<(), Error> {
        match action {
            Action::Call { kind, content, planned, looks } => {
                if !self.context().may_call_driver() {
                    return Err(Error::Deposed);
                }
                let subject = Subject { key, uid: content.meta.uid.clone() };
                let operation = Operation { subject, kind };
                let job = Job { operation: operation.clone(), content: *content, planned: *planned, looks };
                self.operations.start(operation, self.calls.clone().run(job));
                Ok(())
            }
            // A doubt too many does no harm, so that any version will do.
            Action::Mark(content) => self.annotate(&content, Target::any_version(&content.meta), json!("yes")).await,
            Action::Unmark(content) => self.annotate(&content, Target::exact(&content.meta), Value::Null).await,
            Action::SaveStatus { content, answer } => {
                let body = match content.sort {
                    Sort::Snapshot => status(&content, &answer, self.context().clock.now()),
                    Sort::Group => group_status(&content, &answer, self.context().clock.now()),
                };
                self.patch(&content, &Target::exact(&content.meta), Part::Status, Patch::Merge(body)).await?;
                if answer.is_ready {
                    self.forget(&Subject { key, uid: content.meta.uid.clone() });
                }
                Ok(())
            }
            Action::SaveError { content, error } => {
                let Trouble { message, time } = error;
                let error = json!({ "message": message, "time": seconds(time) });
                let body = json!({ "status": { "readyToUse": false, "error": error } });
                self.patch(&content, &Target::exact(&content.meta), Part::Status, Patch::Merge(body)).await
            }
            Action::ClearStatus(content) => {
                let body = match content.sort {
                    Sort::Snapshot => json!({ "status": {
                        "snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null,
                    } }),
                    Sort::Group => json!({ "status": {
                        "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null, "error": null,
                    } }),
                };
                self.patch(&content, &Target::exact(&content.meta), Part::Status, Patch::Merge(body)).await
            }
            Action::Release(content) => self.release(&content).await,
            Action::Tell { content, note } => {
                let taken = self.recorder.record(&content.about, note.clone());
                self.told.note(key, (), note, taken, self.context().clock.now());
                Ok(())
            }
            Action::Refresh(content) => self.read(&content).await.map(drop),
        }
    }

    /// The last step: what it was decided on must be the newest there is.
    async fn release(&self, content: &Content) -> Result<(), Error> {
        let fresh = self.read(content).await?;
        let Some(fresh) =
            fresh.filter(|fresh| (&fresh.uid, fresh.revision) == (&content.meta.uid, content.meta.revision))
        else {
            return Err(Error::Stale("the content"));
        };
        match Patch::remove_finalizer(&fresh, content.words().finalizer) {
            Some(patch) => self.patch(content, &Target::exact(&fresh), Part::Main, patch).await,
            None => Ok(()),
        }
    }

    /// Marks what is still in doubt, for whoever comes next: it may be an original, which knows of doubts by marks only.
    pub async fn mark_doubts(&self) {
        let doubtful = self.calls.doubts.all().into_iter().filter_map(|subject| {
            let content = self.caches.content(&subject.key)?;
            let is_open = content.meta.uid == subject.uid && content.handle().is_none() && content.is_protected();
            (is_open && !content.is_marked()).then_some(content)
        });
        let marks = doubtful.map(|content| async move {
            let target = Target::any_version(&content.meta);
            if let Err(error) = self.annotate(&content, target, json!("yes")).await {
                tracing::warn!(content = content.meta.name, %error, "a creation in doubt is not marked as such");
            }
        });
        futures::future::join_all(marks).await;
    }

    async fn annotate(&self, content: &Content, target: Target, value: Value) -> Result<(), Error> {
        let body = json!({ "metadata": { "annotations": { content.words().being_created: value } } });
        self.patch(content, &target, Part::Main, Patch::Merge(body)).await
    }

    async fn patch(&self, content: &Content, target: &Target, part: Part, patch: Patch) -> Result<(), Error> {
        let api = &self.context().api;
        let answer = match content.sort {
            Sort::Snapshot => api.patch(&self.caches.contents, target, part, patch).await.map(drop),
            Sort::Group => api.patch(&self.caches.group_contents, target, part, patch).await.map(drop),
        };
        answer.map_err(Error::write("write the content"))
    }

    async fn read(&self, content: &Content) -> Result<Option<Meta>, Error> {
        let (api, key) = (&self.context().api, content.meta.key());
        let read = match content.sort {
            Sort::Snapshot => {
                let read = api.refresh(&self.caches.contents, &key).await;
                read.map(|found| found.map(|content| content.meta.clone()))
            }
            Sort::Group => {
                let read = api.refresh(&self.caches.group_contents, &key).await;
                read.map(|found| found.map(|content| content.meta.clone()))
            }
        };
        read.map_err(Error::read("the content"))
    }

    /// What was kept for a content goes with it, or when it is ready.
    pub fn forget(&self, subject: &Subject) {
        self.calls.doubts.settle(subject);
        self.told.forget(&subject.key);
        for kind in [Kind::Create, Kind::Look, Kind::Delete] {
            self.operations.forget(&Operation { subject: subject.clone(), kind });
        }
    }

    pub fn context(&self) -> &Context {
        self.calls.caller.context()
    }
}

/// What was there first stays: a moment and a size do not change.
fn status(content: &Content, answer: &Answer, now: Timestamp) -> Value {
    let before = content.status.as_ref();
    let mut status = json!({ "snapshotHandle": answer.handle, "readyToUse": answer.is_ready, "error": null });
    if before.is_none_or(|before| !before.has_creation_time) {
        status["creationTime"] = nanoseconds(answer.created.unwrap_or(now));
    }
    if answer.bytes > 0 && before.is_none_or(|before| !before.has_size) {
        status["restoreSize"] = answer.bytes.into();
    }
    if let Some(group) = answer.group.as_ref().filter(|_| before.is_none_or(|before| before.group.is_none())) {
        status["volumeGroupSnapshotHandle"] = group.as_str().into();
    }
    json!({ "status": status })
}

fn group_status(content: &Content, answer: &Answer, now: Timestamp) -> Value {
    let mut status =
        json!({ "volumeGroupSnapshotHandle": answer.handle, "readyToUse": answer.is_ready, "error": null });
    if content.status.as_ref().is_none_or(|before| !before.has_creation_time) {
        status["creationTime"] = seconds(answer.created.unwrap_or(now)).into();
    }
    if !answer.members.is_empty() {
        status["volumeSnapshotInfoList"] = answer.members.iter().map(info).collect();
    }
    json!({ "status": status })
}

fn info(member: &Member) -> Value {
    let mut info =
        json!({ "volumeHandle": member.volume, "snapshotHandle": member.handle, "readyToUse": member.is_ready });
    if let Some(created) = member.created {
        info["creationTime"] = nanoseconds(created);
    }
    if member.bytes > 0 {
        info["restoreSize"] = member.bytes.into();
    }
    info
}

/// Out of the range of 64 bits are only times that no snapshot was made at.
fn nanoseconds(at: Timestamp) -> Value {
    i64::try_from(at.as_nanosecond()).unwrap_or_default().into()
}
