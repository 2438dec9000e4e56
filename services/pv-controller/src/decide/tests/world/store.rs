//! The API server of the test's world: objects as JSON, versions, guards, and what the caches have seen of them.

use std::collections::VecDeque;

use serde_json::{Value, json};

use stowage_model::finalizers;
use stowage_model::object::{Key, Kind, Projection, kinds};
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::Cache;

use super::{NOW, Trouble, UNANSWERED, World, called};
use crate::decide::tests::fixtures::Fixture;
use crate::write::Write;

const KINDS: [Kind; 5] = [kinds::CLAIM, kinds::VOLUME, kinds::STORAGE_CLASS, kinds::POD, kinds::ATTRIBUTES_CLASS];

/// A fresh read found nothing.
fn observe_absent<T: Projection>(cache: &Cache<T>, key: &Key) {
    let known = cache.get(key).map(|object| object.meta().uid.clone());
    cache.observe_absent(key, known.as_deref());
}

pub(super) fn kind_of(plural: &str) -> Kind {
    KINDS.into_iter().find(|kind| kind.plural == plural).unwrap()
}

fn short(kind: Kind) -> &'static str {
    match kind.plural {
        "persistentvolumes" => "pv",
        "persistentvolumeclaims" => "pvc",
        "volumeattributesclasses" => "vac",
        "pods" => "pod",
        other => other,
    }
}

impl World {
    /// Stores an object as a user would.
    pub fn put(&mut self, object: Fixture) {
        let key = object.key();
        self.save(object.kind, &key, object.tree);
    }

    /// Removes an object as the API server does when nothing holds it.
    pub fn take(&mut self, kind: Kind, key: &Key) {
        if let Some(tree) = self.store.remove(&(kind.plural, key.clone())) {
            self.revision += 1;
            self.publish(kind, tree, true);
        }
    }

    /// Changes an object, if it is there, as somebody else would.
    pub fn edit(&mut self, kind: Kind, key: &Key, change: impl FnOnce(&mut Value)) {
        if let Some(mut tree) = self.get(kind, key).cloned() {
            change(&mut tree);
            self.save(kind, key, tree);
        }
    }

    /// All objects of a kind as they are stored.
    pub fn trees(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Value)> {
        let first = (kind.plural, Key::cluster(""));
        let of_kind = self.store.range(first..).take_while(move |((plural, _), _)| *plural == kind.plural);
        of_kind.map(|((_, key), tree)| (key, tree))
    }

    pub fn get(&self, kind: Kind, key: &Key) -> Option<&Value> {
        self.store.get(&(kind.plural, key.clone()))
    }

    pub fn all<T: Projection>(&self) -> Vec<T> {
        let of_kind = self.store.iter().filter(|((plural, _), _)| *plural == T::KIND.plural);
        of_kind.map(|(_, tree)| serde_json::from_value(tree.clone()).unwrap()).collect()
    }

    pub(super) fn read<T: Projection>(&self, key: &Key) -> Option<T> {
        self.get(T::KIND, key).map(|tree| serde_json::from_value(tree.clone()).unwrap())
    }

    pub(super) fn save(&mut self, kind: Kind, key: &Key, mut tree: Value) {
        self.revision += 1;
        tree["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.store.insert((kind.plural, key.clone()), tree.clone());
        self.publish(kind, tree, false);
    }

    pub(super) fn publish(&mut self, kind: Kind, tree: Value, gone: bool) {
        if self.lagging {
            self.unseen.entry(kind.plural).or_default().push_back((kind, tree, gone));
        } else {
            self.observe(kind, tree, gone);
        }
    }

    /// Lets the caches see the oldest version of a kind that they have not seen.
    pub fn deliver(&mut self, plural: &'static str) -> bool {
        let Some((kind, tree, gone)) = self.unseen.get_mut(plural).and_then(VecDeque::pop_front) else { return false };
        self.observe(kind, tree, gone);
        true
    }

    pub(super) fn observe(&self, kind: Kind, tree: Value, gone: bool) {
        macro_rules! observe {
            ($cache:ident) => {{
                if gone {
                    self.caches.$cache.watched_deletion(&serde_json::from_value(tree["metadata"].clone()).unwrap());
                } else {
                    self.caches.$cache.watched(serde_json::from_value(tree).unwrap());
                }
            }};
        }
        let name = tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match kind.plural {
            "persistentvolumeclaims" => observe!(claims),
            "persistentvolumes" => observe!(volumes),
            "storageclasses" => observe!(classes),
            "pods" => observe!(pods),
            _ => observe!(attributes_classes),
        }
        if kind == kinds::VOLUME {
            self.caches.matchmaker.file(&self.caches.volumes, &Key::cluster(name));
        }
    }

    /// A fresh read: the caches see what is there.
    pub(super) fn refresh(&self, kind: Kind, key: &Key) {
        match self.get(kind, key) {
            Some(tree) => self.observe(kind, tree.clone(), false),
            None => {
                match kind.plural {
                    "persistentvolumeclaims" => observe_absent(&self.caches.claims, key),
                    "persistentvolumes" => observe_absent(&self.caches.volumes, key),
                    _ => observe_absent(&self.caches.pods, key),
                }
                if kind == kinds::VOLUME {
                    self.caches.matchmaker.file(&self.caches.volumes, key);
                }
            }
        }
    }

    /// Sends writes; all of one batch are sent even if one fails.
    pub(super) fn send(&mut self, writes: Vec<Write>) -> Result<(), Trouble> {
        let mut result = Ok(());
        for write in writes {
            if let Err(trouble) = self.write(write) {
                result = Err(trouble);
            }
        }
        result
    }

    pub(super) fn write(&mut self, write: Write) -> Result<(), Trouble> {
        match write {
            Write::Create { kind, mut body } => {
                let text = |name: &str| body["metadata"][name].as_str().unwrap_or_default().to_owned();
                let key = Key::namespaced(text("namespace"), text("name"));
                if self.get(kind, &key).is_some() {
                    self.refresh(kind, &key);
                    return Err(Trouble::Stale);
                }
                self.note("POST", kind, &key, "", &body);
                self.refuse(|world| &mut world.refused_writes)?;
                body["metadata"]["uid"] = format!("u-{}", key.name).into();
                body["status"] = json!({ "phase": "Pending" });
                let protection =
                    if kind == kinds::CLAIM { finalizers::CLAIM_PROTECTION } else { finalizers::VOLUME_PROTECTION };
                let mut list = body["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                list.push(protection.into());
                body["metadata"]["finalizers"] = list.into();
                self.answer(kind, &key, body)
            }
            Write::Patch { kind, target, part, patch } => {
                let mut tree = self.guarded(kind, &target)?;
                let suffix = if part == Part::Status { "/status" } else { "" };
                match patch {
                    Patch::Merge(body) => {
                        self.note("", kind, &target.key, suffix, &body);
                        self.refuse(|world| &mut world.refused_writes)?;
                        json_patch::merge(&mut tree, &body);
                    }
                    Patch::Json(operations) => {
                        let operations = Value::Array(operations);
                        self.note("", kind, &target.key, suffix, &operations);
                        self.refuse(|world| &mut world.refused_writes)?;
                        let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
                        json_patch::patch(&mut tree, &patch).unwrap();
                    }
                }
                self.answer(kind, &target.key, tree)
            }
            Write::Delete { kind, target } => {
                let mut tree = self.guarded(kind, &target)?;
                self.log.push(format!("DELETE {}/{}", short(kind), called(&target.key)));
                tree["metadata"]["deletionTimestamp"] = NOW.into();
                self.answer(kind, &target.key, tree)
            }
        }
    }

    pub(super) fn guarded(&mut self, kind: Kind, target: &Target) -> Result<Value, Trouble> {
        let found = self.get(kind, &target.key).filter(|tree| {
            let meta = &tree["metadata"];
            meta["uid"] == target.uid.as_str()
                && target
                    .revision
                    .is_none_or(|revision| meta["resourceVersion"].as_str() == Some(&revision.to_string()))
        });
        match found {
            Some(tree) => Ok(tree.clone()),
            None => {
                self.conflicts += 1;
                self.refresh(kind, &target.key);
                Err(Trouble::Stale)
            }
        }
    }

    /// Stores the result of our own write, which is seen at once, as answers are. So is what was not answered: by the
    /// fresh read that follows.
    pub(super) fn answer(&mut self, kind: Kind, key: &Key, tree: Value) -> Result<(), Trouble> {
        let held = tree["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let gone = tree["metadata"]["deletionTimestamp"].is_string() && !held;
        let lagging = std::mem::replace(&mut self.lagging, false);
        if gone {
            self.take(kind, key);
        } else {
            self.save(kind, key, tree);
        }
        self.lagging = lagging;
        if self.goes_wrong(|world| &mut world.lost_answers, UNANSWERED) { Err(Trouble::Unanswered) } else { Ok(()) }
    }

    pub(super) fn note(&mut self, verb: &str, kind: Kind, key: &Key, suffix: &str, body: &Value) {
        let mut body = body.clone();
        // The version of the claim in the reference differs from run to run.
        if let Some(held) = body.pointer_mut("/spec/claimRef").and_then(Value::as_object_mut)
            && held.contains_key("name")
        {
            let version = held.remove("resourceVersion");
            assert!(version.is_some_and(|version| version.as_str() != Some("0")), "a reference without version");
        }
        let space = if verb.is_empty() { "" } else { " " };
        self.log.push(format!("{verb}{space}{}/{}{suffix} {body}", short(kind), called(key)));
    }
}
