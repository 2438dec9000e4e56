//! What must happen to one volume next, on every node at once.
//!
//! A volume is listed in a node's `volumesAttached` exactly while its attachment says so and a pod wants it there, or the
//! node may still use it. To detach, the entry goes first; only a node that neither lists nor uses the volume, in the
//! answer to that very write or later, loses the attachment. A node starts to use a volume only when it sees the entry
//! after having said so, hence the two can not miss each other.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use stowage_model::Volume;
use stowage_model::names::UniqueVolumeName;
use stowage_model::object::ObjectRef;
use stowage_runtime::engine;
use stowage_runtime::events::Note;

use crate::notice::{self, Notice};
use crate::snapshot::{AttachmentFacts, AttachmentView, Force, NodeFacts, NodeView, Site, Snapshot, Wish};

#[cfg(test)]
mod tests;

/// What is done at one node. All of a decision is done side by side: one node in trouble does not hold up the others.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    CreateAttachment {
        name: String,
        driver: String,
        node: String,
        volume_name: String,
        /// The volume itself where it has no object.
        inline: Option<Arc<Volume>>,
    },
    DeleteAttachment {
        name: String,
        uid: String,
        node: String,
        force: Option<Force>,
    },
    /// Puts the volume into the node's list, then tells the pods that waited for it.
    List {
        node: String,
        node_uid: String,
        volume: UniqueVolumeName,
        tell: Vec<(ObjectRef, Note)>,
    },
    Unlist {
        node: String,
        node_uid: String,
        volume: UniqueVolumeName,
    },
    Tell {
        volume: UniqueVolumeName,
        pod: ObjectRef,
        notice: Notice,
        note: Note,
    },
    RefreshNode(String),
    RefreshAttachment(String),
}

/// Why, node by node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Why(pub Vec<(String, Reason)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A write of ours got no answer; one fresh read comes first.
    Unknown,
    Attached,
    /// Wanted, and the attacher is at it.
    Attaching,
    AttachFailed,
    /// Wanted, and to be asked for now.
    Wanted,
    /// Wanted, but another node has it.
    HeldElsewhere,
    /// Wanted by pods of a node that does not exist.
    NodeGone,
    /// The attachment is on its way out.
    Detaching,
    /// Not wanted, but the node may still use it.
    InUse,
    /// Not wanted: the entry in the node's list goes first.
    Unlisting,
    /// Not wanted, not listed, not used.
    Unused,
    /// Not wanted, perhaps used, and the node is past waiting for.
    Forced(Force),
    /// Nothing is here.
    Idle,
}

pub type Decision = engine::Decision<Action, Why>;

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    let mut actions = Vec::new();
    let mut why = Why::default();
    let mut wake_at: Option<Timestamp> = None;
    for (name, site) in &snapshot.sites {
        let mut at = At { snapshot, name, site, now, actions: &mut actions, wake_at: &mut wake_at };
        let reason = at.decide();
        why.0.push((name.clone(), reason));
    }
    Decision { wake_at, ..Decision::together(actions, why) }
}

/// One node's part of the decision.
struct At<'a> {
    snapshot: &'a Snapshot,
    name: &'a str,
    site: &'a Site,
    now: Timestamp,
    actions: &'a mut Vec<Action>,
    wake_at: &'a mut Option<Timestamp>,
}

impl At<'_> {
    fn decide(&mut self) -> Reason {
        if self.site.node == NodeView::Unknown {
            self.actions.push(Action::RefreshNode(self.name.to_owned()));
            return Reason::Unknown;
        }
        match &self.site.attachment {
            AttachmentView::Unknown => {
                self.actions.push(Action::RefreshAttachment(self.site.attachment_name.clone()));
                Reason::Unknown
            }
            AttachmentView::Absent if !self.site.wishes.is_empty() => self.ask(),
            AttachmentView::Present(attachment) if !self.site.wishes.is_empty() => self.follow(attachment),
            _ => self.give_up(),
        }
    }

    /// Wanted and not asked for yet.
    fn ask(&mut self) -> Reason {
        if self.site.node == NodeView::Gone {
            return Reason::NodeGone;
        }
        if let Some(node) = self.holder_elsewhere() {
            self.tell(&Notice::Elsewhere { node: node.to_owned() });
            return Reason::HeldElsewhere;
        }
        let Some(first) = oldest(self.site) else { return Reason::Idle };
        self.actions.push(Action::CreateAttachment {
            name: self.site.attachment_name.clone(),
            driver: self.snapshot.driver.clone(),
            node: self.name.to_owned(),
            volume_name: first.volume_name.clone(),
            inline: first.inline.clone(),
        });
        Reason::Wanted
    }

    /// Wanted and asked for.
    fn follow(&mut self, attachment: &AttachmentFacts) -> Reason {
        if attachment.attached && !attachment.deleting {
            let tell = self.site.wishes.iter().map(|wish| notice::attached(wish, self.name)).collect();
            self.list(tell);
            return Reason::Attached;
        }
        // What the list says must be true before the node acts on it.
        self.unlist();
        if attachment.deleting {
            return Reason::Detaching;
        }
        match &attachment.attach_error {
            Some((message, time)) => {
                self.tell(&Notice::Failed { message: message.clone(), time: *time });
                Reason::AttachFailed
            }
            None => Reason::Attaching,
        }
    }

    /// Not wanted.
    fn give_up(&mut self) -> Reason {
        let force = match self.patience() {
            Patience::Needless => None,
            Patience::Over(force) => Some(force),
            Patience::Endless => return self.hold(),
            Patience::Until(end) => {
                self.wake(end);
                return self.hold();
            }
        };
        // Off the list before the attachment goes, each in a round of its own: the node mounts by the list (rule 7), and the
        // answer to that write says whether it uses the volume all the same.
        if self.unlist() {
            return force.map_or(Reason::Unlisting, Reason::Forced);
        }
        match &self.site.attachment {
            AttachmentView::Present(attachment) if !attachment.deleting => {
                self.actions.push(Action::DeleteAttachment {
                    name: self.site.attachment_name.clone(),
                    uid: attachment.uid.clone(),
                    node: self.name.to_owned(),
                    force,
                });
                force.map_or(Reason::Unused, Reason::Forced)
            }
            AttachmentView::Present(_) => Reason::Detaching,
            AttachmentView::Absent | AttachmentView::Unknown => Reason::Idle,
        }
    }

    /// The node may use it: if its entry was removed a moment too early, it comes back.
    fn hold(&mut self) -> Reason {
        match &self.site.attachment {
            AttachmentView::Present(attachment) if attachment.attached && !attachment.deleting => self.list(Vec::new()),
            AttachmentView::Absent if !self.site.is_listed() => return Reason::Idle,
            _ => {}
        }
        Reason::InUse
    }

    /// How long to wait for the node to unmount.
    fn patience(&self) -> Patience {
        let NodeView::Known(node) = &self.site.node else { return Patience::Needless };
        if !node.in_use {
            return Patience::Needless;
        }
        if node.out_of_service {
            return Patience::Over(Force::OutOfService);
        }
        if node.ready || !self.snapshot.policy.force_detach_on_timeout || !self.site.holds() {
            return Patience::Endless;
        }
        // Both the pod must be gone and the node silent for the whole time.
        let since = self.site.unwanted_since.unwrap_or(self.now).max(node.not_ready_since.unwrap_or(Timestamp::MIN));
        let wait = SignedDuration::try_from(self.snapshot.policy.max_unmount_wait).unwrap_or(SignedDuration::MAX);
        match since.checked_add(wait) {
            Ok(end) if end <= self.now => Patience::Over(Force::Timeout),
            Ok(end) => Patience::Until(end),
            Err(_) => Patience::Endless,
        }
    }

    fn known(&self) -> Option<(&NodeFacts, &UniqueVolumeName)> {
        match (&self.site.node, &self.snapshot.volume) {
            (NodeView::Known(node), Some(volume)) => Some((node, volume)),
            _ => None,
        }
    }

    fn list(&mut self, tell: Vec<(ObjectRef, Note)>) {
        if let Some((node, volume)) = self.known().filter(|(node, _)| !node.listed) {
            let action =
                Action::List { node: self.name.to_owned(), node_uid: node.uid.clone(), volume: volume.clone(), tell };
            self.actions.push(action);
        }
    }

    fn unlist(&mut self) -> bool {
        match self.known().filter(|(node, _)| node.listed) {
            Some((node, volume)) => {
                let action =
                    Action::Unlist { node: self.name.to_owned(), node_uid: node.uid.clone(), volume: volume.clone() };
                self.actions.push(action);
                true
            }
            None => false,
        }
    }

    fn wake(&mut self, at: Timestamp) {
        *self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn tell(&mut self, notice: &Notice) {
        let Some(volume) = &self.snapshot.volume else { return };
        for wish in &self.site.wishes {
            if let Some(again_at) = self.snapshot.told.until(&wish.pod.uid, notice, self.now) {
                self.wake(again_at);
                continue;
            }
            self.actions.push(Action::Tell {
                volume: volume.clone(),
                pod: wish.pod.clone(),
                notice: notice.clone(),
                note: notice::sentence(notice, wish, self.snapshot),
            });
        }
    }

    /// The node that keeps this one from getting a volume which only one may have. Until its attachment is really gone
    /// it counts, whatever became of it.
    fn holder_elsewhere(&self) -> Option<&str> {
        if self.snapshot.many_nodes {
            return None;
        }
        let sites = &self.snapshot.sites;
        if let Some((name, _)) = sites.iter().find(|(name, site)| *name != self.name && site.holds()) {
            return Some(name);
        }
        if self.site.holds() {
            return None;
        }
        // Nobody has it yet: the pod that waited longest gets it.
        let rank = |(name, site): (&'_ String, &'_ Site)| oldest(site).map(|wish| (wish.since, name.clone()));
        let first = sites.iter().filter(|(_, site)| site.node != NodeView::Gone).filter_map(rank).min();
        let (_, first) = first.filter(|(_, name)| name != self.name)?;
        sites.get_key_value(&first).map(|(name, _)| name.as_str())
    }
}

enum Patience {
    /// The node does not use it.
    Needless,
    Over(Force),
    Until(Timestamp),
    Endless,
}

fn oldest(site: &Site) -> Option<&Wish> {
    site.wishes.iter().min_by(|a, b| (a.since, &a.pod.key).cmp(&(b.since, &b.pod.key)))
}
