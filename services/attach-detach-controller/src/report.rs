//! `volumesAttached` of each node: one writer, one write at a time, carrying all that gathered during the last one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use stowage_model::names::UniqueVolumeName;
use stowage_model::{Node, object};
use stowage_runtime::api::{self, Api, Part, Patch, Target};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::tasks::Spawner;

/// A wish to have a volume in the list of a node, or not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Only in the list of the node with this uid.
    pub node_uid: String,
    pub volume: UniqueVolumeName,
    pub listed: bool,
}

type Answer = Result<(), Arc<api::Error>>;

/// The writer has ended without an answer: whether the node's list was written is not known.
#[derive(Debug, thiserror::Error)]
#[error("the write of volumesAttached was given up")]
pub struct GivenUp;

/// What is to be written to one node next, and who waits for it.
type Batch = Vec<(Entry, oneshot::Sender<Answer>)>;

#[derive(Clone)]
pub struct Reports {
    api: Api,
    nodes: Cache<Node>,
    spawner: Spawner,
    /// By node, for those that are being written to.
    waiting: Arc<Mutex<BTreeMap<String, Batch>>>,
}

impl Reports {
    pub fn new(api: Api, nodes: Cache<Node>, spawner: Spawner) -> Self {
        Self { api, nodes, spawner, waiting: Arc::default() }
    }

    /// Returns when a write that carried the entry was answered, or was not needed. The answer is in the cache then.
    pub async fn write(&self, node: &str, entry: Entry) -> Result<Answer, GivenUp> {
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting();
            let is_first = !waiting.contains_key(node);
            waiting.entry(node.to_owned()).or_default().push((entry, sender));
            is_first
        };
        if is_first {
            self.spawner.spawn(self.clone().write_all(node.to_owned()));
        }
        receiver.await.map_err(|_| GivenUp)
    }

    /// Writes until nothing has gathered during the last write.
    async fn write_all(self, node: String) {
        loop {
            let batch = {
                let mut waiting = self.waiting();
                match waiting.get_mut(&node).map(std::mem::take) {
                    Some(batch) if !batch.is_empty() => batch,
                    _ => {
                        waiting.remove(&node);
                        return;
                    }
                }
            };
            let (entries, senders): (Vec<Entry>, Vec<_>) = batch.into_iter().unzip();
            let answer = self.write_batch(&node, &entries).await.map_err(Arc::new);
            for sender in senders {
                // Who wished may have been dropped; the write counts all the same.
                let _ = sender.send(answer.clone());
            }
        }
    }

    async fn write_batch(&self, name: &str, entries: &[Entry]) -> Result<(), api::Error> {
        let View::Known(node) = self.nodes.view(&object::Key::cluster(name)) else { return Ok(()) };
        let Some(patch) = patch(&node, entries) else { return Ok(()) };
        self.api.patch(&self.nodes, &Target::any_version(&node.meta), Part::Status, patch).await?;
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Batch>> {
        self.waiting.lock().expect("no code panics while holding what waits")
    }
}

/// Touches only the entries that change, so that fields of the others that we do not know survive.
fn patch(node: &Node, entries: &[Entry]) -> Option<Patch> {
    // The last wish for a volume counts.
    let entries = entries.iter().filter(|entry| entry.node_uid == node.meta.uid);
    let wanted: BTreeMap<&str, bool> = entries.map(|entry| (entry.volume.as_str(), entry.listed)).collect();
    let listed = &node.status.volumes_attached;
    let added: Vec<Value> = wanted
        .iter()
        .filter(|(volume, wanted)| **wanted && !node.is_attached(volume))
        // Only in-tree plugins know a device path; the field is required all the same.
        .map(|(volume, _)| json!({ "name": volume, "devicePath": "" }))
        .collect();
    if listed.is_empty() {
        return (!added.is_empty()).then(|| Patch::Merge(json!({ "status": { "volumesAttached": added } })));
    }
    let mut operations = Vec::new();
    // From the end, so that the places of those still to go do not move.
    for (index, volume) in listed.iter().enumerate().rev() {
        if wanted.get(volume.name.as_str()) == Some(&false) {
            let path = format!("/status/volumesAttached/{index}");
            operations.push(json!({ "op": "test", "path": format!("{path}/name"), "value": volume.name }));
            operations.push(json!({ "op": "remove", "path": path }));
        }
    }
    operations.extend(
        added.into_iter().map(|value| json!({ "op": "add", "path": "/status/volumesAttached/-", "value": value })),
    );
    (!operations.is_empty()).then_some(Patch::Json(operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(attached: &[&str]) -> Node {
        let attached: Vec<Value> = attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
        serde_json::from_value(
            json!({ "metadata": { "name": "n", "uid": "u" }, "status": { "volumesAttached": attached } }),
        )
        .unwrap()
    }

    fn entry(volume: &str, listed: bool) -> Entry {
        Entry { node_uid: "u".into(), volume: volume.into(), listed }
    }

    #[test]
    fn the_first_entry_of_a_node_is_merged_in() {
        let expected = json!({ "status": { "volumesAttached": [{ "name": "a", "devicePath": "" }] } });
        assert_eq!(patch(&node(&[]), &[entry("a", true)]), Some(Patch::Merge(expected)));
    }

    #[test]
    fn only_the_entries_that_change_are_touched_and_removals_are_tested() {
        let entries = [entry("c", false), entry("d", true), entry("a", false), entry("b", true)];
        let expected = vec![
            json!({ "op": "test", "path": "/status/volumesAttached/2/name", "value": "c" }),
            json!({ "op": "remove", "path": "/status/volumesAttached/2" }),
            json!({ "op": "test", "path": "/status/volumesAttached/0/name", "value": "a" }),
            json!({ "op": "remove", "path": "/status/volumesAttached/0" }),
            json!({ "op": "add", "path": "/status/volumesAttached/-", "value": { "name": "d", "devicePath": "" } }),
        ];
        assert_eq!(patch(&node(&["a", "b", "c"]), &entries), Some(Patch::Json(expected)));
    }

    #[test]
    fn what_is_so_already_is_not_written() {
        assert_eq!(patch(&node(&["a"]), &[entry("a", true), entry("b", false)]), None);
        assert_eq!(patch(&node(&[]), &[entry("a", false)]), None);
        let earlier = Entry { node_uid: "of an earlier node".into(), ..entry("a", true) };
        assert_eq!(patch(&node(&[]), &[earlier]), None);
    }
}
