//! What a write stands on, so that it can be thought through beside the store and not inside of it.
//!
//! Reading a large object, patching and checking it takes long; meanwhile others read. The store is looked at twice, each
//! time shortly: for the ground, and to keep the result if the ground is still the same.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Action, Answer, Applied, Store, Subresource, Write};
use crate::crd::Definition;
use crate::kind::{Kind, Kinds};
use crate::object::{Key, Object, name_suffix, text};
use crate::rules::service_account::{Admission, account_of};
use crate::status::Status;

/// Tries for a generated name that is still free, as upstream.
const NAME_ATTEMPTS: u32 = 8;

/// The part of the store that one write depends on, as it was at one moment.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(super) kinds: Arc<Kinds>,
    /// The kind in whose form the object is kept.
    pub(super) kind: &'static Kind,
    pub(super) definition: Option<Arc<Definition>>,
    /// The object's name, given or generated; empty if there is none.
    pub(super) name: String,
    pub(super) current: Option<Arc<Object>>,
    /// Why there is no current object, and whether the name is taken all the same.
    pub(super) missing: Option<Status>,
    pub(super) taken: bool,
    /// The namespace, or why there is none.
    pub(super) namespace: Option<Result<Arc<Object>, Status>>,
    classes: Vec<(Key, Arc<Object>)>,
    /// For a new pod, where accounts are looked at.
    admission: Option<Admission>,
    pub(super) published: u64,
}

/// A write that was thought through.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(super) kind: &'static Kind,
    pub(super) key: Key,
    pub(super) outcome: Outcome,
    pub(super) warnings: Vec<String>,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Outcome {
    Create(Value),
    Replace(Value),
    /// Nothing: a dry run, or a write that changes nothing. The revision is the one that must be published before.
    Answer(Answer, u64),
}

impl Ground {
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The kind in whose form the object is kept.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// What the admission of a new pod depends on; none where accounts are not looked at.
    pub fn admission(&self) -> Option<&Admission> {
        self.admission.as_ref()
    }

    /// The storage classes there are.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &Object)> {
        self.classes.iter().map(|(key, object)| (&*key.name, &**object))
    }

    /// Thinks a creation, an update or a patch through.
    pub fn plan(&self, write: &Write, now: Timestamp) -> Result<Planned, Status> {
        match &write.action {
            Action::Create(body) => self.create(write, body.clone(), now),
            Action::Update(body) => self.update(write, body.clone(), now),
            Action::Patch(patch) => self.patch(write, patch, now),
            Action::Delete(_) | Action::DeleteCollection(..) => {
                Err(Status::internal("a deletion has nothing to think through"))
            }
        }
    }

    pub(super) fn planned(&self, write: &Write, outcome: Outcome, warnings: Vec<String>) -> Planned {
        Planned { kind: self.kind, key: Key::new(&write.namespace, &self.name), outcome, warnings }
    }

    /// Whether this is still what the store has.
    fn holds(&self, store: &Store, write: &Write) -> bool {
        let same = |ours: Option<&Arc<Object>>, theirs: Option<&Arc<Object>>| match (ours, theirs) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        let namespace = self.namespace.as_ref().map(|found| found.as_ref().ok());
        let about_kinds = *self.kind == *Kind::named("CustomResourceDefinition");
        same(self.current.as_ref(), store.newest(self.kind, &write.namespace, &self.name))
            && self.taken == store.is_taken(self.kind, &write.namespace, &self.name)
            && namespace.is_none_or(|n| same(n, store.newest(Kind::named("Namespace"), "", &write.namespace)))
            && self.definition.as_ref().map(Arc::as_ptr)
                == store.definitions.get(&self.kind.resource()).map(Arc::as_ptr)
            && self.account_holds(store, write)
            && (!about_kinds || Arc::ptr_eq(&self.kinds, &store.kinds))
    }
}

impl Ground {
    fn account_holds(&self, store: &Store, write: &Write) -> bool {
        let (Some(admission), Action::Create(pod)) = (&self.admission, &write.action) else { return true };
        let found = store.newest(Kind::named("ServiceAccount"), &write.namespace, account_of(pod));
        match (&admission.account, found) {
            (Ok(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (ours, theirs) => ours.is_err() && theirs.is_none(),
        }
    }
}

impl Write {
    /// Whether this is a write that can be thought through beside the store.
    pub(crate) fn can_be_planned(&self) -> bool {
        let kept = matches!(self.action, Action::Create(_) | Action::Update(_) | Action::Patch(_));
        kept && self.subresource != Subresource::Binding
    }
}

impl Store {
    /// The length of what a write would have to read first.
    pub(crate) fn size_of(&self, write: &Write) -> usize {
        self.newest(write.kind, &write.namespace, &write.name).map_or(0, |object| object.json.len())
    }

    /// What a write stands on.
    pub(crate) fn ground(&self, write: &Write) -> Result<Ground, Status> {
        let kind = self.kinds.kept_as(write.kind);
        let name = match &write.action {
            Action::Create(body) => self.name_for(write, body)?,
            _ => write.name.clone(),
        };
        let current = self.newest(kind, &write.namespace, &name).cloned();
        let namespaces = Kind::named("Namespace");
        let namespace = kind.namespaced.then(|| {
            let found = self.newest(namespaces, "", &write.namespace).cloned();
            found.ok_or_else(|| self.missing(namespaces, "", &write.namespace))
        });
        let all = |kind: &str| self.newest_all(Kind::named(kind)).map(|(k, o)| (k.clone(), o.clone())).collect();
        let classes = if *kind == *Kind::named("PersistentVolumeClaim") { all("StorageClass") } else { Vec::new() };
        let admission = match &write.action {
            Action::Create(pod) if self.mounts_tokens() && *kind == *Kind::named("Pod") => {
                let accounts = Kind::named("ServiceAccount");
                let found = self.newest(accounts, &write.namespace, account_of(pod)).cloned();
                let account = found.ok_or_else(|| self.missing(accounts, &write.namespace, account_of(pod)));
                Some(Admission { account, id: write.id })
            }
            _ => None,
        };
        Ok(Ground {
            admission,
            missing: current.is_none().then(|| self.missing(write.kind, &write.namespace, &name)),
            taken: self.is_taken(kind, &write.namespace, &name),
            kinds: self.kinds.clone(),
            kind,
            definition: self.definitions.get(&kind.resource()).cloned(),
            name,
            current,
            namespace,
            classes,
            published: self.published,
        })
    }

    /// The name that the body gives, or one that is made for it and still free.
    fn name_for(&self, write: &Write, body: &Value) -> Result<String, Status> {
        let (name, prefix) = (text(body, "/metadata/name"), text(body, "/metadata/generateName"));
        if !name.is_empty() || prefix.is_empty() {
            return Ok(name.to_owned());
        }
        // Names of 63 characters at most, whatever the prefix.
        let prefix: String = prefix.chars().take(58).collect();
        (0..NAME_ATTEMPTS)
            .map(|attempt| format!("{prefix}{}", name_suffix(write.id, attempt)))
            .find(|name| !self.is_taken(write.kind, &write.namespace, name))
            .ok_or_else(|| Status::already_exists(write.kind, &prefix))
    }

    /// Does what was planned and what follows from it; nothing if the ground has changed.
    pub(crate) fn keep(&mut self, ground: &Ground, write: &Write, planned: Planned, now: Timestamp) -> Option<Applied> {
        ground.holds(self, write).then(|| {
            let applied = self.perform(planned);
            self.follow_up(applied, now)
        })
    }

    /// Does what was planned on the ground that there is.
    pub(super) fn perform(&mut self, planned: Planned) -> Applied {
        let Planned { kind, key, outcome, warnings } = planned;
        let (event, created) = match outcome {
            Outcome::Answer(answer, revision) => return Applied { answer, events: Vec::new(), revision, warnings },
            Outcome::Create(tree) => (self.put(kind, key, tree), true),
            // The last finalizer has gone: the object goes with it, and watchers see only the deletion.
            Outcome::Replace(tree) if self.may_end(kind, &key, &tree) => (self.remove(kind, key, tree), false),
            Outcome::Replace(tree) => (self.put(kind, key, tree), false),
        };
        let object = event.object.clone();
        let answer = if created { Answer::Created(object) } else { Answer::Object(object) };
        Applied { answer, revision: event.revision, events: vec![event], warnings }
    }
}
