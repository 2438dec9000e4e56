//! `volumesAttached` of each node: one writer, one write at a time, carrying all that gathered during the last one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use stowage_model::{Node, object};
use stowage_runtime::api::{self, Api, Part, Patch, Target};
use stowage_runtime::cache::{Cache, View};

/// A wish to have a volume in the list of a node, or not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub volume: String,
    pub listed: bool,
}

type Answer = Result<(), Arc<api::Error>>;

#[derive(Default)]
struct Desk {
    writing: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<(Entry, oneshot::Sender<Answer>)>>,
}

pub struct Reports {
    api: Api,
    nodes: Cache<Node>,
    desks: Mutex<BTreeMap<String, Arc<Desk>>>,
}

impl Reports {
    pub fn new(api: Api, nodes: Cache<Node>) -> Self {
        Self { api, nodes, desks: Mutex::default() }
    }

    /// Returns when a write that carried the entry was answered, or was not needed. The answer is in the cache then.
    pub async fn write(&self, node: &str, uid: &str, entry: Entry) -> Answer {
        let desk = Arc::clone(self.desks().entry(node.to_owned()).or_default());
        let (sender, receiver) = oneshot::channel();
        desk.waiting.lock().expect("no code panics while holding the desk").push((entry, sender));
        {
            let _writing = desk.writing.lock().await;
            let batch = std::mem::take(&mut *desk.waiting.lock().expect("no code panics while holding the desk"));
            if !batch.is_empty() {
                let entries: Vec<Entry> = batch.iter().map(|(entry, _)| entry.clone()).collect();
                let answer = self.write_batch(node, uid, &entries).await.map_err(Arc::new);
                for (_, sender) in batch {
                    // Who wished may have been dropped; the write counts all the same.
                    let _ = sender.send(answer.clone());
                }
            }
        }
        self.tidy(node, desk);
        // Whoever took the entry answers it before letting go of the desk, or is dropped together with us.
        receiver.await.unwrap_or(Ok(()))
    }

    async fn write_batch(&self, name: &str, uid: &str, entries: &[Entry]) -> Result<(), api::Error> {
        let View::Known(node) = self.nodes.view(&object::Key::cluster(name)) else { return Ok(()) };
        if node.meta.uid != uid {
            return Ok(());
        }
        let Some(patch) = patch(&node, entries) else { return Ok(()) };
        self.api.patch(&self.nodes, &Target::any_version(&node.meta), Part::Status, patch).await?;
        Ok(())
    }

    fn tidy(&self, node: &str, desk: Arc<Desk>) {
        let mut desks = self.desks();
        drop(desk);
        if desks.get(node).is_some_and(|desk| Arc::strong_count(desk) == 1) {
            desks.remove(node);
        }
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Desk>>> {
        self.desks.lock().expect("no code panics while holding the desks")
    }
}

/// Touches only the entries that change, so that fields of the others that we do not know survive.
fn patch(node: &Node, entries: &[Entry]) -> Option<Patch> {
    // The last wish for a volume counts.
    let wanted: BTreeMap<&str, bool> = entries.iter().map(|entry| (entry.volume.as_str(), entry.listed)).collect();
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
        serde_json::from_value(json!({ "metadata": { "name": "n" }, "status": { "volumesAttached": attached } }))
            .unwrap()
    }

    fn entry(volume: &str, listed: bool) -> Entry {
        Entry { volume: volume.into(), listed }
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
    }
}
