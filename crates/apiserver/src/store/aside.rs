//! Objects of the data file that cannot be read: named, kept where they are, and served as errors.
//!
//! Their names are taken, they can be deleted, and nothing else can be done with them. Lists and watches are without them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::{Event, Store};
use crate::kind::Kind;
use crate::object::Key;
use crate::status::Status;

/// A row of the data file that is no object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its resource as [`Kind::group_resource`] writes it.
    pub resource: String,
    /// Namespace and name.
    pub key: Key,
    /// What is wrong with it.
    pub why: String,
}

/// What was set aside, by resource and key.
#[derive(Debug, Default)]
pub(super) struct Aside(BTreeMap<(String, Key), Row>);

#[derive(Debug)]
struct Row {
    why: String,
    /// The revision that deleted it.
    gone: Option<u64>,
}

impl Aside {
    pub fn add(&mut self, row: Unreadable) {
        tracing::error!(
            resource = row.resource,
            namespace = %row.key.namespace,
            name = %row.key.name,
            why = row.why,
            "an object of the data file cannot be read and is set aside; delete it, or restore the file from a backup"
        );
        self.0.insert((row.resource, row.key), Row { why: row.why, gone: None });
    }

    /// Forgets what was deleted for good, and takes back what was deleted after `published` if that did not last.
    pub fn publish(&mut self, published: u64) {
        self.0.retain(|_, row| row.gone.is_none_or(|gone| gone > published));
    }

    pub fn discard_unpublished(&mut self) {
        self.0.values_mut().for_each(|row| row.gone = None);
    }
}

impl Store {
    /// What of the data file cannot be read.
    pub(super) fn unreadable<'a>(&'a self, kind: &Kind) -> impl Iterator<Item = &'a Key> {
        let resource = kind.kept_resource();
        let begin = (resource.clone(), Key::new("", ""));
        let rows = self.aside.0.range(begin..).take_while(move |((of, _), _)| *of == resource);
        rows.filter(|(_, row)| row.gone.is_none()).map(|((_, key), _)| key)
    }

    fn row(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&Row> {
        if self.aside.0.is_empty() {
            return None;
        }
        self.aside.0.get(&(kind.kept_resource(), Key::new(namespace, name)))
    }

    /// Whether the name is taken, by an object or by what was one.
    pub(crate) fn is_taken(&self, kind: &Kind, namespace: &str, name: &str) -> bool {
        self.newest(kind, namespace, name).is_some()
            || self.row(kind, namespace, name).is_some_and(|row| row.gone.is_none())
    }

    /// Why there is no such object: it is not there, or it cannot be read.
    pub(super) fn missing(&self, kind: &Kind, namespace: &str, name: &str) -> Status {
        let kept = self.row(kind, namespace, name).filter(|row| row.gone.is_none_or(|gone| gone > self.published));
        let Some(row) = kept else { return Status::not_found(kind, name) };
        Status::internal(format!(
            "{} {name:?} is kept but cannot be read ({}); delete it, or restore the data file from a backup",
            kind.group_resource(),
            row.why
        ))
        .about(kind, name)
    }

    /// Whether all of a kind can be read, in one namespace or in all. A list without one of them would be taken for the
    /// word that it is gone, and whoever cleans up after it would delete what it stands for.
    pub(crate) fn check_complete(&self, kind: &Kind, namespace: &str) -> Result<(), Status> {
        let inside = |key: &&Key| namespace.is_empty() || *key.namespace == *namespace;
        let mut keys = self.unreadable(kind).filter(inside);
        let Some(first) = keys.next() else { return Ok(()) };
        let others = match keys.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Err(Status::internal(format!(
            "{} cannot be listed: {:?} in namespace {:?}{others} is kept but cannot be read; delete it by name, or restore \
             the data file from a backup",
            kind.group_resource(),
            &*first.name,
            &*first.namespace
        )))
    }

    /// Deletes what cannot be read; nothing if there is no such thing.
    pub(super) fn remove_unreadable(&mut self, kind: &'static Kind, key: &Key) -> Option<Arc<Event>> {
        let resource = kind.kept_resource();
        let row = self.aside.0.get_mut(&(resource, key.clone())).filter(|row| row.gone.is_none())?;
        row.gone = Some(self.head + 1);
        let mut metadata = json!({"name": &*key.name});
        if kind.namespaced {
            metadata["namespace"] = (*key.namespace).into();
        }
        let tree = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": metadata});
        Some(self.remove(kind, key.clone(), tree))
    }

    /// Deletes all that cannot be read of a kind, in one namespace or in all.
    pub(super) fn remove_all_unreadable(&mut self, kind: &'static Kind, namespace: &str, events: &mut Vec<Arc<Event>>) {
        let inside = |key: &&Key| namespace.is_empty() || *key.namespace == *namespace;
        let keys: Vec<Key> = self.unreadable(kind).filter(inside).cloned().collect();
        for key in keys {
            events.extend(self.remove_unreadable(kind, &key));
        }
    }
}
