//! Carries out one action.

use serde_json::json;

use stowage_model::annotations;
use stowage_model::attachment::VolumeAttachment;
use stowage_model::names::VolumeHandle;
use stowage_model::object::{Key, Meta};
use stowage_model::text::Text;
use stowage_model::volume::SecretRef;
use stowage_runtime::api::{self, Part, Patch, Target};
use stowage_runtime::engine::Error;

use crate::calls::{Kind, Operation, Request, call};
use crate::controller::Controller;
use crate::decide::{Action, Waiting, is_left, is_right};
use crate::refusals::Refusal;

impl Controller {
    pub(crate) async fn carry_out(&self, handle: VolumeHandle, action: Action) -> Result<(), Error> {
        let written_for = action.written_for();
        let done = self.act(handle, action).await;
        if let Some((attachments, what)) = written_for {
            match &done {
                Ok(()) => attachments.iter().for_each(|attachment| self.refusals.remove(&attachment.uid)),
                Err(error) if error.must_be_told() => {
                    let (code, text) = (error.answer().and_then(api::Error::code), format!("{what}: {error}"));
                    let refusal = Refusal { what, code, text };
                    attachments.iter().for_each(|attachment| self.refuse(attachment, refusal.clone()));
                }
                Err(_) => {}
            }
        }
        done
    }

    fn refuse(&self, attachment: &Waiting, refusal: Refusal) {
        self.refusals.insert(&attachment.uid, refusal);
        // Asked after the insert: its end, which forgets the refusal, may have come before.
        let known = self.caches.attachments.get(&Key::cluster(attachment.name.as_str()));
        if known.is_none_or(|known| known.meta.uid != attachment.uid) {
            self.refusals.remove(&attachment.uid);
        }
    }

    async fn act(&self, handle: VolumeHandle, action: Action) -> Result<(), Error> {
        let (context, finalizer) = (self.caller.context(), self.facts.finalizer.as_str());
        let attachments = context.objects(&self.caches.attachments);
        let volumes = context.objects(&self.caches.volumes);
        match action {
            Action::Call { attachment, request, secret } => self.call(handle, &attachment, request, secret).await,
            Action::ProtectVolume { volume, .. } => volumes.add_finalizer(&volume, finalizer).await,
            Action::ReleaseVolume(meta) => {
                let fresh = volumes.fresh(&meta).await?;
                match is_left(&fresh, &self.facts.name) {
                    true => volumes.remove_finalizer(&fresh.meta, finalizer).await,
                    false => Err(Error::Stale("the volume")),
                }
            }
            Action::MarkAttachment { attachment, node_id } => {
                let ours = (!attachment.has_finalizer(finalizer)).then(|| finalizer.into());
                let finalizers: Vec<Text> = attachment.finalizers.iter().cloned().chain(ours).collect();
                let annotations = json!({ annotations::ATTACHMENT_NODE_ID: node_id });
                let body = json!({ "metadata": { "finalizers": finalizers, "annotations": annotations } });
                // A merge replaces the whole list of finalizers, so the version must be the one that was read.
                attachments.patch(&Target::exact(&attachment), Part::Main, Patch::Merge(body)).await.map(drop)
            }
            Action::ReleaseAttachment(meta) => {
                attachments.remove_finalizer(&meta, finalizer).await?;
                self.forget(&handle, &meta, &Kind::ALL);
                // It was unpublished just now, whatever the list said meanwhile.
                self.doubts.remove(&meta.uid);
                Ok(())
            }
            Action::SaveAttached { attachment, metadata } => {
                let status = json!({ "attached": true, "attachmentMetadata": metadata, "attachError": null });
                attachments.merge_status(&attachment, json!({ "status": status })).await?;
                // Only now: a crash, or a write that is lost, finds in the record what the driver gave.
                self.forget(&handle, &attachment, &Kind::ALL);
                self.doubts.remove(&attachment.uid);
                Ok(())
            }
            Action::SaveDetached(meta) => {
                let status = json!({ "attached": false, "attachmentMetadata": null, "detachError": null });
                attachments.merge_status(&meta, json!({ "status": status })).await
            }
            Action::SaveTrouble { attachment, attached, trouble } => {
                let mut shown = trouble.body();
                let status = if attachment.is_deleting() {
                    json!({ "detachError": shown })
                } else {
                    // Only attach errors have a code in the API.
                    if self.facts.error_codes {
                        shown["errorCode"] = trouble.code.into();
                    }
                    // The field is required, and an attachment that never got a status has none yet.
                    json!({ "attached": attached, "attachError": shown })
                };
                // A merge of what was true before must not undo what was saved meanwhile.
                let patch = Patch::Merge(json!({ "status": status }));
                attachments.patch(&Target::exact(&attachment), Part::Status, patch).await.map(drop)
            }
            Action::RefreshAttachment(name) => attachments.refresh(&Key::cluster(name)).await.map(drop),
            Action::RefreshVolume(name) => volumes.refresh(&Key::cluster(name)).await.map(drop),
        }
    }

    /// Starts a driver call after a fresh read: a leader that was deposed and does not know it yet, or a stale view, must
    /// not publish what is being deleted or unpublish what is wanted.
    async fn call(
        &self,
        handle: VolumeHandle,
        attachment: &Meta,
        request: Request,
        secret: Option<SecretRef>,
    ) -> Result<(), Error> {
        // From here on: whatever ends this makes room for the next.
        let turn = self.lanes.turn(request.kind());
        let context = self.caller.context();
        let fresh = context.objects(&self.caches.attachments).fresh(attachment).await?;
        let is_doubted = self.doubts.contains(&fresh.meta.uid);
        if !is_right(&request, attachment, &fresh, is_doubted, &self.facts.finalizer) {
            return Err(Error::Stale("the attachment"));
        }
        if !context.may_call_driver() {
            return Err(Error::Deposed);
        }
        let operation = Operation::new(&handle, &fresh.meta, request.kind(), request.node_id());
        // What the opposite call achieved is not true any more once this one begins.
        self.forget(&handle, &fresh.meta, &[request.kind().opposite()]);
        tracing::debug!(attachment = %fresh.meta.name, volume = %handle, kind = ?request.kind(), "calling the driver");
        let caller = self.caller.for_migrated(self.is_migrated(&fresh));
        let call = async move {
            let ended = call(caller, request, secret).await;
            drop(turn);
            ended
        };
        self.operations.start(operation, call);
        Ok(())
    }

    /// Whether the volume was an in-tree plugin's. One that is described in the attachment itself was too, but the original
    /// counts it among the driver's own.
    fn is_migrated(&self, attachment: &VolumeAttachment) -> bool {
        let volume = attachment.volume_name().and_then(|name| self.caches.volumes.get(&Key::cluster(name)));
        volume.is_some_and(|volume| volume.spec.in_tree.is_some())
    }

    /// What came of the attachment's calls of these sorts, by whatever id of its node.
    pub(crate) fn forget(&self, handle: &VolumeHandle, attachment: &Meta, kinds: &[Kind]) {
        let is_its = |operation: &Operation| operation.handle == *handle && operation.attachment_uid == attachment.uid;
        // The first that it can have, as they are ordered.
        let first = Operation::new(handle, attachment, Kind::Publish, "");
        for (operation, _) in self.operations.records_from(&first, is_its) {
            if kinds.contains(&operation.kind) {
                self.operations.forget(&operation);
            }
        }
    }
}
