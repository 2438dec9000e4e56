//! What is watched, the ways from one object to another, and which change wakes which key.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::names::VolumeHandle;
use stowage_model::volume::CsiSource;
use stowage_model::{CsiNode, Volume, VolumeAttachment};
use stowage_model::{migration, object};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::controller::Controller;

/// What is decided on together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Everything about one volume of the driver, by its handle.
    Handle(VolumeHandle),
    /// An attachment of ours by its name, whose volume cannot be found.
    Attachment(String),
}

impl Key {
    /// Empty where there is no volume: then no call is ever planned.
    pub fn handle(self) -> VolumeHandle {
        match self {
            Self::Handle(handle) => handle,
            Self::Attachment(_) => VolumeHandle::default(),
        }
    }
}

#[derive(Clone)]
pub struct Caches {
    /// The driver whose attachments are ours.
    pub driver: String,
    pub attachments: Cache<VolumeAttachment>,
    pub volumes: Cache<Volume>,
    pub csi_nodes: Cache<CsiNode>,
}

impl Caches {
    pub fn new(driver: String) -> Self {
        Self {
            driver,
            attachments: Cache::indexed(&[
                ("volume", |attachment| attachment.volume_name().map(str::to_owned).into_iter().collect()),
                ("inline", |attachment| {
                    attachment.inline_csi().map(|csi| csi.volume_handle.clone()).into_iter().collect()
                }),
                ("node", |attachment| vec![attachment.spec.node_name.clone()]),
            ]),
            volumes: Cache::indexed(&[("handle", |volume| {
                let csi = translated(volume);
                csi.and_then(|volume| volume.spec.csi.as_ref().map(|csi| csi.volume_handle.clone()))
                    .into_iter()
                    .collect()
            })]),
            csi_nodes: Cache::new(),
        }
    }

    pub fn declare(&self, with_nodes: bool, watches: &mut Watches<'_, Controller>) {
        if with_nodes {
            watches.cache(&self.csi_nodes, Scope::all(), |controller, change| controller.caches.of_csi_node(change));
        }
        watches.cache(&self.volumes, Scope::all(), |controller, change| controller.caches.of_volume(change));
        watches.cache(&self.attachments, Scope::all(), |controller, change| {
            if let (Some(gone), None) = (change.before, change.after) {
                // Of no use to anybody any more; of one that is called for right now the end is.
                controller.operations.forget_where(|operation| operation.attachment_uid == gone.meta.uid);
                controller.refusals.remove(&gone.meta.uid);
            }
            change.both().filter_map(|attachment| controller.caches.key_of(attachment)).collect::<BTreeSet<_>>()
        });
    }

    fn of_volume(&self, change: &Change<'_, Volume>) -> BTreeSet<Key> {
        let mut keys: BTreeSet<Key> = change.both().filter_map(|volume| self.key_of_volume(volume)).collect();
        if change.before.is_none() || change.after.is_none() {
            // Its attachments are decided on under another key from now on.
            let attachments = self.attachments.by_index("volume", &change.key.name);
            keys.extend(attachments.iter().filter_map(|attachment| self.key_of(attachment)));
        }
        keys
    }

    fn of_csi_node(&self, change: &Change<'_, CsiNode>) -> BTreeSet<Key> {
        if id(change.before, &self.driver) == id(change.after, &self.driver) {
            return BTreeSet::new();
        }
        let attachments = self.attachments.by_index("node", &change.key.name);
        attachments.iter().filter_map(|attachment| self.key_of(attachment)).collect()
    }

    pub fn is_ours(&self, attachment: &VolumeAttachment) -> bool {
        attachment.spec.attacher == self.driver
    }

    pub fn key_of_volume(&self, volume: &Volume) -> Option<Key> {
        let volume = translated(volume)?;
        let csi = volume.spec.csi.as_ref().filter(|csi| csi.driver == self.driver)?;
        Some(Key::Handle(csi.handle()))
    }

    /// What the driver knows of a volume, if it is one of the driver's.
    pub fn csi_of(&self, volume: &str) -> Option<CsiSource> {
        let volume = self.volumes.get(&object::Key::cluster(volume))?;
        let csi = translated(&volume)?.into_owned().spec.csi;
        csi.filter(|csi| csi.driver == self.driver)
    }

    /// Where an attachment is decided on. One of another attacher matters too if it holds a volume of our driver.
    pub fn key_of(&self, attachment: &VolumeAttachment) -> Option<Key> {
        let volume = attachment.volume_name().and_then(|name| self.volumes.get(&object::Key::cluster(name)));
        let inline = attachment.inline_csi().filter(|csi| csi.driver == self.driver);
        let found = match (volume, inline) {
            (Some(volume), _) => self.key_of_volume(&volume),
            (None, Some(csi)) => Some(Key::Handle(csi.handle())),
            (None, None) => None,
        };
        found.or_else(|| self.is_ours(attachment).then(|| Key::Attachment(attachment.meta.name.clone())))
    }

    /// The driver's id of a node, once the driver has registered there.
    pub fn node_id(&self, node: &str) -> Option<String> {
        id(self.csi_nodes.get(&object::Key::cluster(node)).as_ref(), &self.driver).map(str::to_owned)
    }

    pub fn keys(&self) -> Vec<Key> {
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        keys.extend(self.attachments.list().iter().filter_map(|attachment| self.key_of(attachment)));
        keys.extend(self.volumes.list().iter().filter_map(|volume| self.key_of_volume(volume)));
        keys.into_iter().collect()
    }
}

/// As a CSI driver knows the volume, if one does.
fn translated(volume: &Volume) -> Option<Cow<'_, Volume>> {
    migration::to_csi(volume).ok().flatten()
}

fn id<'a>(node: Option<&'a Arc<CsiNode>>, driver: &str) -> Option<&'a str> {
    node?.node_id(driver)
}
