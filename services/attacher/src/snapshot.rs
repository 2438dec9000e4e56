//! One volume handle: its volume objects, its attachments, and the driver calls made for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::volume::VolumeSpec;
use stowage_model::{Volume, VolumeAttachment, finalizers, object};
use stowage_runtime::cache::View;
use stowage_runtime::driver::Driver;
use stowage_runtime::operation::{Record, State};

use crate::calls::{Kind, Operation};
use crate::controller::{Controller, Options};
use crate::watches::Key;

/// What a publish gives to the node; empty for an unpublish.
pub type PublishContext = BTreeMap<String, String>;

/// What decisions need to know about the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    /// On attachments and volumes.
    pub finalizer: String,
    /// Whether it attaches at all; else every attachment is done as soon as it is asked for.
    pub attaches: bool,
    /// Whether it can be asked to attach for reading only.
    pub knows_read_only: bool,
    /// Whether it tells single pods from single nodes.
    pub knows_single_writers: bool,
    pub default_fs_type: String,
}

impl Facts {
    pub fn of(driver: &Driver, options: &Options) -> Self {
        let can = |call| driver.controller.contains(&call);
        Self {
            name: driver.name.clone(),
            finalizer: finalizers::attacher(&driver.name),
            attaches: can(Call::PublishUnpublishVolume),
            knows_read_only: can(Call::PublishReadonly),
            knows_single_writers: can(Call::SingleNodeMultiWriter),
            default_fs_type: options.default_fs_type.clone(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub facts: Arc<Facts>,
    pub volumes: Vec<VolumeCase>,
    /// Whether a call for the handle is under way, also for an attachment that is gone meanwhile.
    pub calling: bool,
    /// In the order of their names.
    pub attachments: Vec<Case>,
    /// Calls that have ended for attachments that are gone.
    pub abandoned: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct VolumeCase {
    pub volume: Arc<Volume>,
    /// Whether an attachment of any driver names it.
    pub named: bool,
}

/// One attachment of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub attachment: Arc<VolumeAttachment>,
    /// A write of ours got no answer.
    pub unknown: bool,
    pub source: Source,
    /// The driver's id of the node, as the node registered it.
    pub node_id: Option<String>,
    pub publish: Option<Record<PublishContext>>,
    pub unpublish: Option<Record<PublishContext>>,
}

/// Where an attachment's volume is described.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Volume(Arc<Volume>),
    /// A write of ours to the volume got no answer.
    Unknown(String),
    Missing(String),
    Inline(Box<VolumeSpec>),
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
                let attachments = found.map(|attachment| self.case("", attachment)).into_iter().collect();
                Snapshot { facts: Arc::clone(&self.facts), attachments, ..Snapshot::default() }
            }
        }
    }

    fn gather_handle(&self, handle: &str) -> Snapshot {
        let caches = &self.caches;
        let mut snapshot = Snapshot { facts: Arc::clone(&self.facts), ..Snapshot::default() };
        let mut attachments = BTreeMap::new();
        for volume in caches.volumes.by_index("handle", handle) {
            if volume.spec.csi.as_ref().is_none_or(|csi| csi.driver != caches.driver) {
                continue;
            }
            let naming = caches.attachments.by_index("volume", &volume.meta.name);
            snapshot.volumes.push(VolumeCase { volume, named: !naming.is_empty() });
            attachments.extend(naming.into_iter().map(|attachment| (attachment.meta.name.clone(), attachment)));
        }
        let inline = caches.attachments.by_index("inline", handle).into_iter();
        attachments.extend(inline.map(|attachment| (attachment.meta.name.clone(), attachment)));
        attachments.retain(|_, attachment| caches.is_ours(attachment));
        snapshot.attachments = attachments.into_values().map(|attachment| self.case(handle, attachment)).collect();
        let of_handle = |operation: &Operation| operation.handle == handle;
        for (operation, record) in self.operations.records_from(&Operation::first(handle), of_handle) {
            if record.state == State::Running {
                snapshot.calling = true;
            } else if !snapshot.attachments.iter().any(|case| case.attachment.meta.uid == operation.attachment_uid) {
                snapshot.abandoned.push(operation);
            }
        }
        snapshot
    }

    fn case(&self, handle: &str, attachment: Arc<VolumeAttachment>) -> Case {
        let caches = &self.caches;
        let source = &attachment.spec.source;
        let source = match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(name), None) => match caches.volumes.view(&object::Key::cluster(name.as_str())) {
                View::Known(volume) => Source::Volume(volume),
                View::Unknown => Source::Unknown(name.clone()),
                View::Absent => Source::Missing(name.clone()),
            },
            (None, Some(spec)) => Source::Inline(spec.clone()),
            _ => Source::Unclear,
        };
        let record = |kind| self.operations.record(&Operation::new(handle, &attachment, kind));
        Case {
            unknown: caches.attachments.view(&attachment.meta.key()) == View::Unknown,
            source,
            node_id: caches.node_id(&attachment.spec.node_name),
            publish: record(Kind::Publish),
            unpublish: record(Kind::Unpublish),
            attachment,
        }
    }
}

#[cfg(test)]
mod tests;
