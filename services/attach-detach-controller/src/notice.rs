//! What pods are told about their volumes.

use jiff::Timestamp;

use stowage_model::object::ObjectRef;
use stowage_runtime::events::Note;

use crate::snapshot::{Snapshot, Wish};

/// A reason to wait, as far as telling it twice goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The driver refused, at that time.
    Failed { message: String, time: Option<Timestamp> },
    /// The volume is still held by another node.
    Elsewhere { node: String },
}

pub fn attached(wish: &Wish, node: &str) -> (ObjectRef, Note) {
    let message = format!("volume {:?} is attached to node {node:?}", wish.volume_name);
    (wish.pod.clone(), Note::normal("SuccessfulAttachVolume", message))
}

/// The sentence behind a notice, for one pod.
pub fn sentence(notice: &Notice, wish: &Wish, snapshot: &Snapshot) -> Note {
    let volume = &wish.volume_name;
    let message = match notice {
        Notice::Failed { message, .. } => format!("attaching volume {volume:?} failed: {message}"),
        Notice::Elsewhere { node } => {
            format!("volume {volume:?} cannot be attached to a second node: {}", holder(wish, node, snapshot))
        }
    };
    Note::warning("FailedAttachVolume", message)
}

/// Pods of other namespaces are none of this user's business, so they are only counted.
fn holder(wish: &Wish, node: &str, snapshot: &Snapshot) -> String {
    let users = snapshot.sites.get(node).map(|site| site.wishes.as_slice()).unwrap_or_default();
    let (near, far): (Vec<&Wish>, Vec<&Wish>) =
        users.iter().partition(|user| user.pod.key.namespace == wish.pod.key.namespace);
    let names: Vec<&str> = near.iter().map(|user| user.pod.key.name.as_str()).collect();
    let users = match (names.as_slice(), far.len()) {
        ([], 0) => {
            return format!("it is attached exclusively to node {node:?} and is waited for until it is detached there");
        }
        ([], far) => format!("{far} pod(s) in other namespaces"),
        (names, 0) => format!("pod(s) {}", names.join(", ")),
        (names, far) => format!("pod(s) {} and {far} pod(s) in other namespaces", names.join(", ")),
    };
    format!("it is used on node {node:?} by {users}; delete them, or use a volume with access mode ReadWriteMany")
}
