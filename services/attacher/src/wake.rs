//! Which change can alter which decision.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::{CsiNode, Volume, VolumeAttachment};
use stowage_runtime::cache::Change;
use stowage_runtime::queue::Queue;

use crate::caches::{Caches, Key, node_id};

/// Queues every key whose decision a change may alter.
pub fn subscribe(caches: &Arc<Caches>, queue: &Queue<Key>) {
    macro_rules! on_change {
        ($cache:ident, $keys:path) => {{
            // Weak, because the caches own what subscribes to them.
            let (view, queue) = (Arc::downgrade(caches), queue.clone());
            caches.$cache.on_change(move |change| {
                let keys = view.upgrade().map(|caches| $keys(&caches, change));
                for key in keys.into_iter().flatten() {
                    queue.add(key);
                }
            });
        }};
    }
    on_change!(attachments, of_attachment);
    on_change!(volumes, of_volume);
    on_change!(csi_nodes, of_csi_node);
}

fn both<'a, T>(change: &'a Change<'_, T>) -> impl Iterator<Item = &'a T> {
    change.before.into_iter().chain(change.after).map(AsRef::as_ref)
}

fn of_attachment(caches: &Caches, change: &Change<'_, VolumeAttachment>) -> BTreeSet<Key> {
    both(change).filter_map(|attachment| caches.key_of(attachment)).collect()
}

fn of_volume(caches: &Caches, change: &Change<'_, Volume>) -> BTreeSet<Key> {
    let mut keys: BTreeSet<Key> = both(change).filter_map(|volume| caches.key_of_volume(volume)).collect();
    if change.before.is_none() || change.after.is_none() {
        // Its attachments are decided on under another key from now on.
        let attachments = caches.attachments.by_index("volume", &change.key.name);
        keys.extend(attachments.iter().filter_map(|attachment| caches.key_of(attachment)));
    }
    keys
}

fn of_csi_node(caches: &Caches, change: &Change<'_, CsiNode>) -> BTreeSet<Key> {
    let id = |node: Option<&Arc<CsiNode>>| node.and_then(|node| node_id(node, &caches.driver));
    if id(change.before) == id(change.after) {
        return BTreeSet::new();
    }
    let attachments = caches.attachments.by_index("node", &change.key.name);
    attachments.iter().filter_map(|attachment| caches.key_of(attachment)).collect()
}
