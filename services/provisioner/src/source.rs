//! What a claim's volume is filled from: which object the claim names, whether it may, and whether it can be used now.

mod clone;
mod need;
mod problem;
mod restorable;
mod restore;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::claim::{Claim, DataSource};
use stowage_model::object::{Key as ObjectKey, Kind, ObjectId, kinds};
use stowage_model::volume::Volume;
use stowage_model::volume_snapshot::VolumeSnapshotContent;
use stowage_runtime::cache::View;
use stowage_runtime::operation::Record;

use crate::facts::Facts;
use crate::intent::{Source, SourceKind};

pub use need::{Need, Needs};
pub use problem::Problem;
pub use restorable::Restorable;

pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
pub const SNAPSHOT_KIND: &str = "VolumeSnapshot";

/// The object that a claim names as its source.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    pub kind: SourceKind,
    /// Apart, because every problem with a source carries it.
    pub key: Box<ObjectKey>,
}

impl Origin {
    /// What the claim is to be filled from, if a CSI driver can do that.
    pub fn of(claim: &Claim) -> Option<Self> {
        let DataSource { api_group, kind, name, namespace } = claim.data_source()?;
        let kind = match (api_group.as_deref().unwrap_or_default(), kind.as_str()) {
            ("", "PersistentVolumeClaim") => SourceKind::Claim,
            (SNAPSHOT_GROUP, SNAPSHOT_KIND) => SourceKind::Snapshot,
            _ => return None,
        };
        let namespace = namespace.as_ref().filter(|namespace| !namespace.is_empty());
        let key = ObjectKey::namespaced(namespace.unwrap_or(&claim.meta.namespace), name);
        Some(Self { kind, key: key.into() })
    }

    pub fn claim(key: &ObjectKey) -> Self {
        Self { kind: SourceKind::Claim, key: key.clone().into() }
    }

    pub fn snapshot(key: &ObjectKey) -> Self {
        Self { kind: SourceKind::Snapshot, key: key.clone().into() }
    }

    pub fn object_kind(&self) -> Kind {
        match self.kind {
            SourceKind::Claim => kinds::CLAIM,
            SourceKind::Snapshot => kinds::VOLUME_SNAPSHOT,
        }
    }

    pub fn id(&self) -> ObjectId {
        ObjectId { kind: self.object_kind(), key: (*self.key).clone() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.object_kind().kind, self.key)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Source {
    pub fn origin(&self) -> Origin {
        Origin { kind: self.kind, key: ObjectKey::namespaced(&self.namespace, &self.name).into() }
    }
}

/// What is known of the object that a claim names.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub origin: Origin,
    /// Whether the claim may use it, as far as it is in another namespace.
    pub permitted: bool,
    pub object: Object,
}

/// The object itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Claim {
        claim: View<Claim>,
        /// What the claim is bound to.
        volume: View<Volume>,
    },
    Snapshot {
        snapshot: View<Restorable>,
        look: Option<Record<Look>>,
        /// Whether its changes wake who waits for it.
        is_followed: bool,
    },
}

impl Object {
    /// Uid and finalizers, as far as the object is known.
    pub fn meta(&self) -> View<stowage_model::Meta> {
        fn of<T>(view: &View<T>, meta: impl Fn(&T) -> &stowage_model::Meta) -> View<stowage_model::Meta> {
            match view {
                View::Absent => View::Absent,
                View::Unknown => View::Unknown,
                View::Known(object) => View::Known(Arc::new(meta(object).clone())),
            }
        }
        match self {
            Self::Claim { claim, .. } => of(claim, |claim| &claim.meta),
            Self::Snapshot { snapshot, .. } => of(snapshot, |snapshot| &snapshot.meta),
        }
    }
}

/// What a live look at a VolumeSnapshot and its content found. The original's role does not let contents be watched, and until
/// its 6.1 not snapshots either.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The content that the snapshot was bound to; `None` if there was no such snapshot, or it was not bound.
    pub bound_to: Option<String>,
    /// Whether the snapshot was ready then; before, its content does not say all.
    pub is_ready: bool,
    pub content: Option<Arc<VolumeSnapshotContent>>,
}

/// Why a volume cannot be filled now.
#[derive(Debug, Clone, PartialEq)]
pub enum Missing {
    /// The change that is needed wakes the claim.
    Problem(Problem),
    /// Nobody tells of the change that is needed: look again at this moment.
    Until(Problem, Timestamp),
    /// The data is on another node.
    Elsewhere(Problem),
    /// A live look at the snapshot is due.
    Look,
    /// It is under way, or the answer to a write is.
    Looking,
}

impl From<Problem> for Missing {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// The source of the claim's volume, with the driver's id of it.
///
/// `begun` is what an earlier decision found: a source that is held for us may be deleting, and is still there.
pub fn find(
    claim: &Claim,
    facts: &Facts,
    found: Option<&Found>,
    begun: Option<&Source>,
    now: Timestamp,
) -> Result<Option<Source>, Missing> {
    let Some(Found { origin, permitted, object }) = found else { return Ok(None) };
    let own = &claim.meta.namespace;
    if origin.key.namespace != *own && !facts.options.cross_namespace {
        return Err(Problem::CrossNamespaces { origin: origin.clone(), own: own.clone() }.into());
    }
    if !permitted {
        return Err(Problem::FindGrant { origin: origin.clone(), own: own.clone() }.into());
    }
    let asked = Asked { claim, facts, origin, begun, now };
    match object {
        Object::Claim { claim, volume } => clone::check(&asked, claim, volume),
        Object::Snapshot { snapshot, look, is_followed } => {
            restore::check(&asked, snapshot, look.as_ref(), *is_followed)
        }
    }
    .map(Some)
}

/// What both kinds of source are checked against.
struct Asked<'a> {
    claim: &'a Claim,
    facts: &'a Facts,
    origin: &'a Origin,
    begun: Option<&'a Source>,
    now: Timestamp,
}

impl Asked<'_> {
    fn origin(&self) -> Origin {
        self.origin.clone()
    }

    fn need(&self, has: bool, capability: &'static str) -> Result<(), Problem> {
        let driver = || self.facts.driver.clone();
        if has { Ok(()) } else { Err(Problem::NeedCapability { origin: self.origin(), driver: driver(), capability }) }
    }

    /// A source that goes is used no more, except by what was begun while its finalizer held it.
    fn need_lasting(&self, meta: &stowage_model::Meta, finalizer: &str) -> Result<(), Problem> {
        let is_held = self.begun.is_some_and(|source| source.uid == meta.uid) && meta.has_finalizer(finalizer);
        if meta.is_deleting() && !is_held { Err(Problem::Lasts { origin: self.origin() }) } else { Ok(()) }
    }

    fn need_driver(&self, what: String, driver: &str) -> Result<(), Problem> {
        if driver == self.facts.driver {
            return Ok(());
        }
        let (found, driver) = (driver.to_owned(), self.facts.driver.clone());
        Err(Problem::MatchDriver { origin: self.origin(), what, found, driver })
    }

    fn source(&self, uid: &str, handle: &str) -> Source {
        let ObjectKey { namespace, name } = (*self.origin.key).clone();
        Source {
            kind: self.origin.kind,
            namespace,
            name,
            uid: uid.to_owned(),
            handle: handle.to_owned(),
            released: false,
        }
    }
}

#[cfg(test)]
pub mod tests;
