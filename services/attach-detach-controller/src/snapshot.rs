//! One volume and every node that wants it, has it or says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::object::{self, ObjectRef, Projection};
use stowage_model::{AccessModes, Node, Volume, VolumeAttachment, migration};
use stowage_runtime::cache::View;
use stowage_runtime::told::Known;

use crate::memory::Memory;
use crate::notice::Notice;
use crate::watches::{self, Caches, Key};

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// As nodes name it in their status; unknown for an attachment whose volume object is gone.
    pub volume: Option<UniqueVolumeName>,
    pub driver: String,
    /// Whether it may be attached to several nodes at a time.
    pub many_nodes: bool,
    /// By the node's name; none when there is nothing to decide under the key.
    pub sites: BTreeMap<String, Site>,
    /// What its pods were told, by their uids.
    pub told: Known<String, Notice>,
    pub policy: Policy,
}

/// When a volume may be taken from a node that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub force_detach_on_timeout: bool,
    pub max_unmount_wait: Duration,
}

/// The volume as seen from one node.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    pub node: NodeView,
    /// The one name the attachment of this volume to this node can have.
    pub attachment_name: String,
    pub attachment: AttachmentView,
    /// Somebody else attached the volume here under a name of their own.
    pub foreign_attachment: bool,
    /// The pods that want the volume here.
    pub wishes: Vec<Wish>,
    /// Since when nobody wants here what is or may be attached here.
    pub unwanted_since: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum NodeView {
    Gone,
    /// A write of ours got no answer.
    Unknown,
    Known(NodeFacts),
}

#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    pub uid: String,
    pub ready: bool,
    /// When it stopped being ready, if it said so.
    pub not_ready_since: Option<Timestamp>,
    pub out_of_service: bool,
    /// In `volumesAttached`, which is ours.
    pub listed: bool,
    /// In `volumesInUse`, which is the node's.
    pub in_use: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AttachmentView {
    Absent,
    /// A write of ours got no answer.
    Unknown,
    Present(AttachmentFacts),
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttachmentFacts {
    pub uid: String,
    pub attached: bool,
    pub deleting: bool,
    /// What the driver last said, and when.
    pub attach_error: Option<(String, Option<Timestamp>)>,
}

/// One pod that wants the volume on its node.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    pub pod: ObjectRef,
    /// The volume object the pod's claim is bound to.
    pub volume_name: String,
    /// The volume itself where the pod names it and there is no object; then the name is made up.
    pub inline: Option<Arc<Volume>>,
    pub since: Option<Timestamp>,
}

/// Why a volume may be taken from a node that has not said it is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    OutOfService,
    Timeout,
}

impl Site {
    /// Whether the volume is, was or is about to be attached here.
    pub fn holds(&self) -> bool {
        self.attachment != AttachmentView::Absent || self.foreign_attachment || self.is_listed()
    }

    pub fn is_listed(&self) -> bool {
        matches!(&self.node, NodeView::Known(node) if node.listed)
    }
}

impl Snapshot {
    fn nothing(policy: Policy) -> Self {
        Self {
            volume: None,
            driver: String::new(),
            many_nodes: true,
            sites: BTreeMap::new(),
            told: Known::default(),
            policy,
        }
    }
}

pub fn gather(caches: &Caches, memory: &Memory, policy: Policy, key: &Key, now: Timestamp) -> Snapshot {
    let found = match key {
        Key::Volume(volume) => gather_volume(caches, memory, policy, volume, now),
        Key::Attachment(name) => gather_orphan(caches, policy, name, now),
    };
    found.unwrap_or_else(|| Snapshot::nothing(policy))
}

fn gather_volume(
    caches: &Caches,
    memory: &Memory,
    policy: Policy,
    volume: &UniqueVolumeName,
    now: Timestamp,
) -> Option<Snapshot> {
    let (driver, handle) = volume.driver_and_handle()?;
    let objects = caches.volumes.by_index("unique", volume.as_str());
    let attachable = caches.drivers.get(&object::Key::cluster(driver)).is_none_or(|driver| driver.needs_attach());
    let mut wishes: BTreeMap<String, Vec<Wish>> = BTreeMap::new();
    let mut attachments = caches.attachments.by_index("inline", volume.as_str());
    let mut modes: Vec<AccessModes> = objects.iter().map(|object| modes_of(object)).collect();
    modes.extend(attachments.iter().filter_map(|attachment| Some(attachment.inline_spec()?.access_modes)));
    for (pod, named) in caches.pods_with(volume).into_iter().filter(|_| attachable) {
        modes.push(named.spec.access_modes);
        let (volume_name, since) = (named.meta.name.clone(), pod.meta.creation_timestamp);
        let wish = Wish { pod: pod.reference(), volume_name, inline: Some(named), since };
        wishes.entry(pod.spec.node_name.clone()).or_default().push(wish);
    }
    for object in &objects {
        attachments.extend(caches.attachments.by_index("volume", &object.meta.name));
        if !attachable {
            continue;
        }
        for pod in caches.pods_of(object) {
            let wish = Wish {
                pod: pod.reference(),
                volume_name: object.meta.name.clone(),
                inline: None,
                since: pod.meta.creation_timestamp,
            };
            wishes.entry(pod.spec.node_name.clone()).or_default().push(wish);
        }
    }
    attachments.retain(|attachment| attachment.spec.attacher == driver);
    let mut nodes: BTreeSet<String> = wishes.keys().cloned().collect();
    nodes.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
    nodes.extend(caches.nodes.by_index("volume", volume.as_str()).iter().map(|node| node.meta.name.clone()));
    let unwanted = memory.unwanted(volume);
    let site = |name: String| {
        let attachment_name = names::attachment(handle.as_str(), driver, &name);
        let foreign = |other: &VolumeAttachment| other.spec.node_name == name && other.meta.name != attachment_name;
        let mentions = |node: &Node| (node.is_attached(volume.as_str()), node.is_in_use(volume.as_str()));
        let mut site = Site {
            node: node_view(caches, &name, mentions),
            attachment: attachment_view(caches, &attachment_name),
            foreign_attachment: attachments.iter().any(|other| foreign(other)),
            attachment_name,
            wishes: wishes.get(&name).cloned().unwrap_or_default(),
            unwanted_since: None,
        };
        if site.wishes.is_empty() && site.holds() {
            // What is seen so for the first time is remembered with the decision, not here.
            site.unwanted_since = Some(unwanted.get(&name).copied().unwrap_or(now));
        }
        (name, site)
    };
    Some(Snapshot {
        volume: Some(volume.clone()),
        driver: driver.to_owned(),
        // No mode at all says nothing against it; one object that forbids it is enough.
        many_nodes: modes.iter().all(|modes| modes.is_empty() || modes.allow_many_nodes()),
        sites: nodes.into_iter().map(site).collect(),
        told: memory.told.known(volume),
        policy,
    })
}

/// As the driver is asked for them.
fn modes_of(volume: &Volume) -> AccessModes {
    let translated = migration::to_csi(volume).ok().flatten();
    translated.map_or(volume.spec.access_modes, |volume| volume.spec.access_modes)
}

/// An attachment of ours whose volume object is gone and which no node mentions: nothing can want or use it.
fn gather_orphan(caches: &Caches, policy: Policy, name: &str, now: Timestamp) -> Option<Snapshot> {
    let attachment = caches.attachments.get(&object::Key::cluster(name))?;
    let volume = object::Key::cluster(attachment.volume_name()?);
    // A volume that exists but that no driver knows is not ours.
    if !is_ours(name) || caches.volumes.get(&volume).is_some() || caches.volume_of(&attachment).is_some() {
        return None;
    }
    let site = Site {
        node: node_view(caches, &attachment.spec.node_name, |node| mentions(node, name)),
        attachment_name: name.to_owned(),
        attachment: attachment_view(caches, name),
        foreign_attachment: false,
        wishes: Vec::new(),
        unwanted_since: Some(now),
    };
    Some(Snapshot {
        driver: attachment.spec.attacher.clone(),
        sites: BTreeMap::from([(attachment.spec.node_name.clone(), site)]),
        ..Snapshot::nothing(policy)
    })
}

/// Whether a node lists the volume of this attachment as attached, and whether as in use. An attachment's name is made
/// from the volume's, so this works without the volume.
pub fn mentions(node: &Node, attachment_name: &str) -> (bool, bool) {
    let is_it = |volume: &str| {
        watches::attachment_name(&volume.into(), &node.meta.name).is_some_and(|name| name == attachment_name)
    };
    (
        node.status.volumes_attached.iter().any(|volume| is_it(&volume.name)),
        node.status.volumes_in_use.iter().any(|volume| is_it(volume)),
    )
}

/// Whether an attachment's name has the form that this controller and the original give.
fn is_ours(name: &str) -> bool {
    let hash = name.strip_prefix("csi-").unwrap_or_default();
    hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn node_view(caches: &Caches, name: &str, mentions: impl Fn(&Node) -> (bool, bool)) -> NodeView {
    match caches.nodes.view(&object::Key::cluster(name)) {
        View::Absent => NodeView::Gone,
        View::Unknown => NodeView::Unknown,
        View::Known(node) => {
            let (listed, in_use) = mentions(&node);
            let ready = node.is_ready();
            NodeView::Known(NodeFacts {
                uid: node.meta.uid.clone(),
                ready,
                not_ready_since: node.ready().filter(|_| !ready).and_then(|ready| ready.last_transition_time),
                out_of_service: node.is_out_of_service(),
                listed,
                in_use,
            })
        }
    }
}

fn attachment_view(caches: &Caches, name: &str) -> AttachmentView {
    match caches.attachments.view(&object::Key::cluster(name)) {
        View::Absent => AttachmentView::Absent,
        View::Unknown => AttachmentView::Unknown,
        View::Known(attachment) => AttachmentView::Present(AttachmentFacts {
            uid: attachment.meta.uid.clone(),
            attached: attachment.status.attached,
            deleting: attachment.meta.is_deleting(),
            attach_error: attachment.status.attach_error.as_ref().map(|error| (error.message.clone(), error.time)),
        }),
    }
}

#[cfg(test)]
mod tests;
