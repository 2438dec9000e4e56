//! Which change can alter which decision.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::object;
use stowage_model::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment};
use stowage_runtime::cache::Change;
use stowage_runtime::queue::Queue;

use crate::caches::{Caches, Key, attachment_name, mentioned, unique_name, wants_at};

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
    on_change!(pods, of_pod);
    on_change!(claims, of_claim);
    on_change!(volumes, of_volume);
    on_change!(nodes, of_node);
    on_change!(attachments, of_attachment);
    on_change!(drivers, of_driver);
}

fn both<'a, T>(change: &'a Change<'_, T>) -> impl Iterator<Item = &'a T> {
    change.before.into_iter().chain(change.after).map(AsRef::as_ref)
}

fn of_pod(caches: &Caches, change: &Change<'_, Pod>) -> BTreeSet<Key> {
    // Pods change all the time; only where they want volumes counts.
    let places: BTreeSet<Option<&str>> =
        [change.before, change.after].into_iter().map(|pod| pod.and_then(|pod| wants_at(pod))).collect();
    if places.len() == 1 {
        return BTreeSet::new();
    }
    both(change).flat_map(|pod| caches.volumes_of_pod(pod)).map(Key::Volume).collect()
}

fn of_claim(caches: &Caches, change: &Change<'_, Claim>) -> BTreeSet<Key> {
    both(change).filter_map(|claim| caches.volume_of_claim(claim)).map(Key::Volume).collect()
}

fn of_volume(caches: &Caches, change: &Change<'_, Volume>) -> BTreeSet<Key> {
    let mut keys: BTreeSet<Key> = both(change).filter_map(unique_name).map(Key::Volume).collect();
    if change.before.is_none() || change.after.is_none() {
        // Its attachments are decided on under another key from now on.
        let attachments = caches.attachments.by_index("volume", &change.key.name);
        keys.extend(attachments.iter().map(|attachment| caches.key_of(attachment)));
    }
    keys
}

fn of_attachment(caches: &Caches, change: &Change<'_, VolumeAttachment>) -> BTreeSet<Key> {
    both(change).map(|attachment| caches.key_of(attachment)).collect()
}

fn of_driver(caches: &Caches, change: &Change<'_, CsiDriver>) -> BTreeSet<Key> {
    let needs = |driver: Option<&Arc<CsiDriver>>| driver.is_none_or(|driver| driver.needs_attach());
    if needs(change.before) == needs(change.after) {
        return BTreeSet::new();
    }
    let volumes = caches.volumes.list();
    let of_driver =
        volumes.iter().filter(|volume| volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == change.key.name));
    of_driver.filter_map(|volume| unique_name(volume)).map(Key::Volume).collect()
}

fn of_node(caches: &Caches, change: &Change<'_, Node>) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    for volume in altered(change) {
        // Where the volume object is gone, the attachment is found through what the node mentions.
        if caches.volumes.by_index("unique", &volume).is_empty()
            && let Some(name) = attachment_name(&volume, &change.key.name)
            && caches.attachments.get(&object::Key::cluster(name.as_str())).is_some()
        {
            keys.insert(Key::Attachment(name));
        }
        keys.insert(Key::Volume(volume));
    }
    // Heartbeats come every few seconds; what bears on all volumes of the node seldom changes.
    let standing = |node: &Node| {
        let ready = node.ready().map(|ready| (ready.is_true(), ready.last_transition_time));
        (node.meta.uid.clone(), node.is_attach_managed(), node.is_out_of_service(), ready)
    };
    if change.before.map(|node| standing(node)) != change.after.map(|node| standing(node)) {
        let name = &change.key.name;
        for pod in caches.pods.by_index("node", name) {
            keys.extend(caches.volumes_of_pod(&pod).into_iter().map(Key::Volume));
        }
        keys.extend(caches.attachments.by_index("node", name).iter().map(|attachment| caches.key_of(attachment)));
        keys.extend(both(change).flat_map(mentioned).map(Key::Volume));
    }
    keys
}

/// Volumes that came into or went from one of the node's two lists.
fn altered(change: &Change<'_, Node>) -> BTreeSet<String> {
    let entries = |node: Option<&Arc<Node>>| -> BTreeSet<(bool, String)> {
        let Some(node) = node else { return BTreeSet::new() };
        let attached = node.status.volumes_attached.iter().map(|volume| (true, volume.name.clone()));
        attached.chain(node.status.volumes_in_use.iter().map(|volume| (false, volume.clone()))).collect()
    };
    let (before, after) = (entries(change.before), entries(change.after));
    before.symmetric_difference(&after).map(|(_, volume)| volume.clone()).collect()
}
