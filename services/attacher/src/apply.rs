//! Carries out one action.

use serde_json::json;

use stowage_model::annotations;
use stowage_model::object::{Key, Meta};
use stowage_model::volume::SecretRef;
use stowage_runtime::Context;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::seconds;

use crate::calls::{Kind, Operation, Request, call};
use crate::controller::Controller;
use crate::decide::{Action, Trouble};

impl Controller {
    pub(crate) async fn carry_out(&self, handle: &str, action: Action) -> Result<(), Error> {
        match action {
            Action::Call { attachment, request, secret } => self.call(handle, &attachment, request, secret).await,
            Action::ProtectVolume(meta) => match Patch::add_finalizer(&meta, self.finalizer()) {
                Some(patch) => self.patch_volume(&Target::any_version(&meta), patch).await,
                None => Ok(()),
            },
            Action::ReleaseVolume(meta) => self.release_volume(&meta).await,
            Action::MarkAttachment { attachment, node_id } => {
                let mut finalizers = attachment.finalizers.clone();
                if !attachment.has_finalizer(self.finalizer()) {
                    finalizers.push(self.finalizer().to_owned());
                }
                let body = json!({
                    "metadata": {
                        "finalizers": finalizers,
                        "annotations": { annotations::ATTACHMENT_NODE_ID: node_id },
                    },
                });
                // A merge replaces the whole list of finalizers, so the version must be the one that was read.
                self.patch_attachment(&Target::exact(&attachment), Part::Main, Patch::Merge(body)).await
            }
            Action::ReleaseAttachment(meta) => {
                if let Some(patch) = Patch::remove_finalizer(&meta, self.finalizer()) {
                    self.patch_attachment(&Target::any_version(&meta), Part::Main, patch).await?;
                }
                self.forget(handle, &meta);
                Ok(())
            }
            Action::SaveAttached { attachment, metadata } => {
                let body = json!({
                    "status": { "attached": true, "attachmentMetadata": metadata, "attachError": null },
                });
                self.patch_status(&attachment, body).await?;
                self.forget(handle, &attachment);
                Ok(())
            }
            Action::SaveDetached(meta) => {
                let body = json!({ "status": { "attached": false, "attachmentMetadata": null, "detachError": null } });
                self.patch_status(&meta, body).await
            }
            Action::SaveAttachError { attachment, error } => {
                let mut shown = shown(&error);
                shown["errorCode"] = error.code.into();
                // The field is required, and an attachment that never got a status has none yet.
                let body = json!({ "status": { "attached": false, "attachError": shown } });
                self.patch_status(&attachment, body).await
            }
            Action::SaveDetachError { attachment, error } => {
                self.patch_status(&attachment, json!({ "status": { "detachError": shown(&error) } })).await
            }
            Action::RefreshAttachment(name) => {
                let read = self.context().api.refresh(&self.caches.attachments, &Key::cluster(name)).await;
                read.map(drop).map_err(Error::read("the attachment"))
            }
            Action::RefreshVolume(name) => {
                let read = self.context().api.refresh(&self.caches.volumes, &Key::cluster(name)).await;
                read.map(drop).map_err(Error::read("the volume"))
            }
        }
    }

    /// Starts a driver call after a fresh read: a leader that was deposed and does not know it yet, or a stale view, must
    /// not publish what is being deleted or unpublish what is wanted.
    async fn call(
        &self,
        handle: &str,
        attachment: &Meta,
        request: Request,
        secret: Option<SecretRef>,
    ) -> Result<(), Error> {
        let key = attachment.key();
        let fresh =
            self.context().api.refresh(&self.caches.attachments, &key).await.map_err(Error::read("the attachment"))?;
        let Some(fresh) = fresh.filter(|fresh| fresh.meta.uid == attachment.uid) else {
            return Err(Error::Stale("the attachment"));
        };
        let kept = fresh.meta.has_finalizer(self.finalizer()) && fresh.meta.is_deleting() == attachment.is_deleting();
        let published = match request.kind() {
            Kind::Publish => fresh.status.attached || fresh.node_id() != Some(request.node_id()),
            Kind::Unpublish => fresh.status.attached && !fresh.meta.is_deleting(),
        };
        if !kept || published {
            return Err(Error::Stale("the attachment"));
        }
        if !self.context().may_call_driver() {
            return Err(Error::Deposed);
        }
        let operation = Operation::new(handle, &fresh, request.kind());
        // What the opposite call achieved is not true any more once this one begins.
        self.operations.forget(&operation.opposite());
        tracing::debug!(attachment = %key, volume = request.volume_id(), kind = ?request.kind(), "calling the driver");
        self.operations.start(operation, call(self.caller.clone(), request, secret));
        Ok(())
    }

    async fn release_volume(&self, meta: &Meta) -> Result<(), Error> {
        let read =
            self.context().api.refresh(&self.caches.volumes, &meta.key()).await.map_err(Error::read("the volume"))?;
        let Some(fresh) = read.filter(|fresh| fresh.meta.uid == meta.uid && fresh.meta.is_deleting()) else {
            return Err(Error::Stale("the volume"));
        };
        match Patch::remove_finalizer(&fresh.meta, self.finalizer()) {
            Some(patch) => self.patch_volume(&Target::any_version(&fresh.meta), patch).await,
            None => Ok(()),
        }
    }

    async fn patch_volume(&self, target: &Target, patch: Patch) -> Result<(), Error> {
        let answer = self.context().api.patch(&self.caches.volumes, target, Part::Main, patch).await;
        answer.map(drop).map_err(Error::write("write the volume"))
    }

    async fn patch_status(&self, attachment: &Meta, body: serde_json::Value) -> Result<(), Error> {
        self.patch_attachment(&Target::any_version(attachment), Part::Status, Patch::Merge(body)).await
    }

    async fn patch_attachment(&self, target: &Target, part: Part, patch: Patch) -> Result<(), Error> {
        let answer = self.context().api.patch(&self.caches.attachments, target, part, patch).await;
        answer.map(drop).map_err(Error::write("write the attachment"))
    }

    fn forget(&self, handle: &str, attachment: &Meta) {
        for kind in [Kind::Publish, Kind::Unpublish] {
            let attachment_uid = attachment.uid.clone();
            self.operations.forget(&Operation { handle: handle.to_owned(), attachment_uid, kind });
        }
    }

    fn context(&self) -> &Context {
        self.caller.context()
    }

    fn finalizer(&self) -> &str {
        &self.facts.finalizer
    }
}

fn shown(error: &Trouble) -> serde_json::Value {
    json!({ "message": error.message, "time": seconds(error.time) })
}
