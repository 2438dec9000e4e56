//! One volume handle: its volume objects, its attachments, and the driver calls made for them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stowage_csi::identity::ControllerCapabilities;
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::names::VolumeHandle;
use stowage_model::object::Meta;
use stowage_model::volume::VolumeSpec;
use stowage_model::{Volume, VolumeAttachment, finalizers, migration, object};
use stowage_runtime::cache::View;
use stowage_runtime::driver::Driver;
use stowage_runtime::operation::Record;

use crate::calls::{Kind, Operation};
use crate::controller::{Controller, Options};
use crate::refusals::Refusal;
use crate::watches::Key;
use crate::written::UpTo;

/// What a publish gives to the node; empty for an unpublish.
pub type PublishContext = BTreeMap<String, String>;

/// What decisions need to know about the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    /// On attachments and volumes.
    pub finalizer: String,
    /// Which calls it answers.
    pub calls: ControllerCapabilities,
    pub default_fs_type: String,
    /// Whether an attach error says the gRPC code.
    pub error_codes: bool,
    /// For how many attachments of a volume is written at once, after their calls and beside that for others.
    pub workers: usize,
}

impl Facts {
    pub fn of(driver: &Driver, options: &Options) -> Self {
        Self {
            name: driver.name.clone(),
            finalizer: finalizers::attacher(&driver.name),
            calls: driver.controller.clone(),
            default_fs_type: options.default_fs_type.clone(),
            error_codes: options.error_codes,
            workers: options.driver.workers,
        }
    }

    pub fn can(&self, call: Call) -> bool {
        self.calls.contains(&call)
    }
}

/// How many calls of each sort may begin now, beside those whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub publish: usize,
    pub unpublish: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { publish: usize::MAX, unpublish: usize::MAX }
    }
}

impl Room {
    /// Takes a place, if there is one.
    pub fn take(&mut self, kind: Kind) -> bool {
        let room = match kind {
            Kind::Publish => &mut self.publish,
            Kind::Unpublish => &mut self.unpublish,
        };
        let is_free = *room > 0;
        *room = room.saturating_sub(1);
        is_free
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub facts: Arc<Facts>,
    /// Volumes of the handle that no attachment of any driver names.
    pub unnamed: Vec<Arc<Volume>>,
    /// Ids of the nodes for which a call for the handle is under way, also for an attachment that is gone meanwhile.
    pub calling: BTreeSet<String>,
    pub room: Room,
    /// The sort of call for which it is the volume's turn, where it waits as one.
    pub called: Option<Kind>,
    /// In the order of their names.
    pub attachments: Vec<Case>,
    /// How far the writes of the last round came, where some were left.
    pub written_up_to: UpTo,
    /// Calls that have ended for attachments that are gone.
    pub abandoned: Vec<Operation>,
}

/// One attachment of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub attachment: Arc<VolumeAttachment>,
    /// A write of ours got no answer.
    pub unknown: bool,
    /// The driver says the opposite of its status.
    pub doubted: bool,
    pub source: Source,
    /// The driver's id of the node, as the node registered it.
    pub node_id: Option<String>,
    /// A call for it is under way.
    pub calling: bool,
    /// The sort of call for which it is its turn.
    pub called: Option<Kind>,
    /// A write about it that the API server refuses.
    pub refused: Option<Refusal>,
    pub publish: Option<Record<PublishContext>>,
    /// By the id under which it was published.
    pub unpublish: Option<Record<PublishContext>>,
    /// By the id that the node has now, where that is another.
    pub unpublish_by_new: Option<Record<PublishContext>>,
}

/// Where an attachment's volume is described.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// As the driver knows it, also where an in-tree plugin had it before.
    Volume(Arc<Volume>),
    /// A write of ours to the volume got no answer.
    Unknown(String),
    Missing(String),
    Inline(Box<VolumeSpec>),
    /// A volume of an in-tree plugin that its driver cannot use, and why.
    Untranslated(String, migration::Error),
    /// The attachment names no volume, or two.
    Unclear,
}

impl Controller {
    pub fn gather(&self, key: &Key) -> Snapshot {
        match key {
            Key::Handle(handle) => self.gather_handle(handle),
            Key::Attachment(name) => {
                let found = self.caches.attachments.get(&object::Key::cluster(name.as_str()));
                // Found by its volume meanwhile: then it is decided on there.
                let found = found.filter(|attachment| self.caches.key_of(attachment).as_ref() == Some(key));
                let attachments =
                    found.map(|attachment| self.case(&VolumeHandle::default(), attachment)).into_iter().collect();
                Snapshot { facts: Arc::clone(&self.facts), attachments, ..Snapshot::default() }
            }
        }
    }

    fn gather_handle(&self, handle: &VolumeHandle) -> Snapshot {
        let caches = &self.caches;
        let room = Room { publish: self.lanes.room(Kind::Publish), unpublish: self.lanes.room(Kind::Unpublish) };
        let called = self.called(handle, "");
        let written_up_to = self.written.up_to(handle);
        let facts = Arc::clone(&self.facts);
        let mut snapshot = Snapshot { facts, room, called, written_up_to, ..Snapshot::default() };
        let mut attachments = BTreeMap::new();
        for volume in caches.volumes.by_index("handle", handle.as_str()) {
            if caches.key_of_volume(&volume).is_none() {
                continue;
            }
            let naming = caches.attachments.by_index("volume", &volume.meta.name);
            if naming.is_empty() {
                snapshot.unnamed.push(volume);
            }
            attachments.extend(naming.into_iter().map(|attachment| (attachment.meta.name.clone(), attachment)));
        }
        let inline = caches.attachments.by_index("inline", handle.as_str()).into_iter();
        attachments.extend(inline.map(|attachment| (attachment.meta.name.clone(), attachment)));
        attachments.retain(|_, attachment| caches.is_ours(attachment));
        snapshot.attachments = attachments.into_values().map(|attachment| self.case(handle, attachment)).collect();
        let of_handle = |operation: &Operation| operation.handle == *handle;
        // The first that the handle can have, as they are ordered.
        let first = Operation::new(handle, &Meta::default(), Kind::Publish, "");
        let cases = snapshot.attachments.iter_mut().map(|case| (case.attachment.meta.uid.clone(), case));
        let mut cases: BTreeMap<String, &mut Case> = cases.collect();
        for (operation, record) in self.operations.records_from(&first, of_handle) {
            match cases.get_mut(&operation.attachment_uid) {
                Some(case) if record.is_running() => case.calling = true,
                None if !record.is_running() => snapshot.abandoned.push(operation.clone()),
                _ => {}
            }
            if record.is_running() {
                snapshot.calling.insert(operation.node_id);
            }
        }
        snapshot
    }

    fn called(&self, handle: &VolumeHandle, attachment_uid: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| self.lanes.is_called(*kind, handle, attachment_uid))
    }

    fn case(&self, handle: &VolumeHandle, attachment: Arc<VolumeAttachment>) -> Case {
        let caches = &self.caches;
        let source = &attachment.spec.source;
        let source = match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(name), None) => match caches.volumes.view(&object::Key::cluster(name.as_str())) {
                View::Known(volume) => described(volume),
                View::Unknown => Source::Unknown(name.clone()),
                View::Absent => Source::Missing(name.clone()),
            },
            (None, Some(spec)) => Source::Inline(spec.clone()),
            _ => Source::Unclear,
        };
        let meta = &attachment.meta;
        let record = |kind, id: &str| self.operations.record(&Operation::new(handle, meta, kind, id));
        let node_id = caches.node_id(&attachment.spec.node_name);
        let published_by = attachment.node_id().or(node_id.as_deref()).unwrap_or_default();
        let new_id = node_id.as_deref().filter(|id| *id != published_by);
        Case {
            unknown: caches.attachments.view(&attachment.meta.key()) == View::Unknown,
            doubted: self.doubts.contains(&attachment.meta.uid),
            source,
            calling: false,
            called: self.called(handle, &meta.uid),
            refused: self.refusals.get(&meta.uid),
            publish: record(Kind::Publish, published_by),
            unpublish: record(Kind::Unpublish, published_by),
            unpublish_by_new: new_id.and_then(|id| record(Kind::Unpublish, id)),
            node_id,
            attachment,
        }
    }
}

fn described(volume: Arc<Volume>) -> Source {
    match migration::to_csi(&volume) {
        Ok(Some(Cow::Owned(translated))) => Source::Volume(Arc::new(translated)),
        Ok(_) => Source::Volume(volume),
        Err(error) => Source::Untranslated(volume.meta.name.clone(), error),
    }
}

#[cfg(test)]
mod tests;
