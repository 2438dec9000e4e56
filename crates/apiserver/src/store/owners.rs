//! Who owns whom: an index of dependents by the owner's uid.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Resource;
use crate::object::{Key, Object, text};

/// Objects by the uid of each of their owners.
#[derive(Debug, Default)]
pub(super) struct Dependents(BTreeMap<String, BTreeSet<(Resource, Key)>>);

impl Dependents {
    /// Notes that an object changed from `old` to `new`.
    pub fn change(&mut self, resource: Resource, key: &Key, old: Option<&Object>, new: Option<&Object>) {
        let (old, new) = (old.map(owner_uids).unwrap_or_default(), new.map(owner_uids).unwrap_or_default());
        for uid in old.difference(&new) {
            if let Some(set) = self.0.get_mut(uid) {
                set.remove(&(resource, key.clone()));
                if set.is_empty() {
                    self.0.remove(uid);
                }
            }
        }
        for uid in new.difference(&old) {
            self.0.entry(uid.clone()).or_default().insert((resource, key.clone()));
        }
    }

    /// The objects that this one owns.
    pub fn of(&self, uid: &str) -> Vec<(Resource, Key)> {
        self.0.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Whether nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether the object can have owners at all; most do not, and need not be decoded to know.
pub(super) fn may_have_owners(object: &Object) -> bool {
    std::str::from_utf8(&object.json).is_ok_and(|json| json.contains("\"ownerReferences\""))
}

fn owner_uids(object: &Object) -> BTreeSet<String> {
    if !may_have_owners(object) {
        return BTreeSet::new();
    }
    owner_references(&object.tree()).iter().map(|owner| text(owner, "/uid").to_owned()).collect()
}

/// The owners that an object names.
pub(super) fn owner_references(tree: &Value) -> &[Value] {
    tree.pointer("/metadata/ownerReferences").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
