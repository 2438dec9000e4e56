//! One volume handle: its volume objects, its attachments, and the driver calls made for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use stowage_model::object;
use stowage_model::volume::VolumeSpec;
use stowage_model::{Volume, VolumeAttachment};
use stowage_runtime::cache::View;
use stowage_runtime::operation::{Record, State};

use crate::caches::{Caches, Key};
use crate::call::{Calls, Kind, Subject};

/// What a publish gives to the node; empty for an unpublish.
pub type PublishContext = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub volumes: Vec<VolumeCase>,
    /// Whether a call for the handle is under way, also for an attachment that is gone meanwhile.
    pub calling: bool,
    /// In the order of their names.
    pub attachments: Vec<Case>,
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

pub fn gather(caches: &Caches, calls: &Calls, key: &Key) -> Snapshot {
    match key {
        Key::Handle(handle) => gather_handle(caches, calls, handle),
        Key::Attachment(name) => {
            let found = caches.attachments.get(&object::Key::cluster(name.as_str()));
            // Found by its volume meanwhile: then it is decided on there.
            let found = found.filter(|attachment| caches.key_of(attachment).as_ref() == Some(key));
            let attachments = found.map(|attachment| case(caches, calls, "", attachment));
            Snapshot { attachments: attachments.into_iter().collect(), ..Snapshot::default() }
        }
    }
}

fn gather_handle(caches: &Caches, calls: &Calls, handle: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
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
    snapshot.attachments =
        attachments.into_values().map(|attachment| case(caches, calls, handle, attachment)).collect();
    for (subject, record) in calls.records_from(&Subject::first(handle), |subject| subject.handle == handle) {
        if record.state == State::Running {
            snapshot.calling = true;
        } else if !snapshot.attachments.iter().any(|case| case.attachment.meta.uid == subject.attachment_uid) {
            // Its attachment went while the call was under way.
            calls.forget(&subject);
        }
    }
    snapshot
}

fn case(caches: &Caches, calls: &Calls, handle: &str, attachment: Arc<VolumeAttachment>) -> Case {
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
    let record = |kind| calls.record(&Subject::new(handle, &attachment, kind));
    Case {
        unknown: caches.attachments.view(&attachment.meta.key()) == View::Unknown,
        source,
        node_id: caches.node_id(&attachment.spec.node_name),
        publish: record(Kind::Publish),
        unpublish: record(Kind::Unpublish),
        attachment,
    }
}

#[cfg(test)]
mod tests;
