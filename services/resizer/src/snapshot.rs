//! One claim, its volume, the classes it names, and the driver calls made for it.

use std::sync::Arc;

use stowage_csi::identity::ControllerCapabilities;
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::Volume;
use stowage_model::object::{Key, Meta};
use stowage_runtime::cache::View;
use stowage_runtime::operation::{Failure, Record, State};
use stowage_runtime::told::Known;

use crate::calls::{Aim, Answer, Expanded, Kind, Operation, is_in_use};
use crate::controller::Controller;
use crate::options::Options;
use crate::projections::{Claim, Class};
use crate::users::Users;

/// Who makes volumes larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    Controller,
    /// Nodes alone.
    Node,
    Nobody,
}

/// What decisions need to know about the driver.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub name: String,
    pub expansion: Expansion,
    /// Whether attributes are changed.
    pub modifies: bool,
    /// Which calls it answers.
    pub calls: ControllerCapabilities,
    pub options: Options,
}

impl Facts {
    pub fn can(&self, call: Call) -> bool {
        self.calls.contains(&call)
    }
}

/// What people are told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Begun(Kind),
    Failed(Kind),
}

impl Topic {
    pub fn kind(self) -> Kind {
        match self {
            Self::Begun(kind) | Self::Failed(kind) => kind,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub facts: Arc<Facts>,
    pub case: Option<Case>,
    /// Calls that have ended for claims of the name that are gone.
    pub abandoned: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub claim: Arc<Claim>,
    /// A write of ours got no answer.
    pub is_unknown: bool,
    pub source: Source,
    /// The class that the claim wants, and the one that it is on the way to.
    pub wanted: ClassView,
    pub aimed_at: ClassView,
    pub expand: Option<Tried>,
    pub modify: Option<Tried>,
    /// Only looked up where it matters.
    pub users: Users,
    /// What people were told.
    pub known: Known<Topic>,
}

/// A call that was begun for the claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub aim: Aim,
    pub record: Record<Answer>,
    /// It waits for its turn: the driver was not asked yet.
    pub is_in_line: bool,
}

/// The volume that a claim names.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Ours(Arc<Volume>),
    /// None, another driver's, or one that is not bound to the claim.
    Foreign,
    /// A write of ours to the volume got no answer.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ClassView {
    Found(Arc<Class>),
    Missing,
    /// It is not known yet whether there is one; the first list of classes wakes the claim.
    Unlisted,
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failed<'a> {
    pub failure: &'a Failure,
    /// Whether it certainly was not done and is not under way.
    pub is_final: bool,
}

impl Case {
    pub fn tried(&self, kind: Kind) -> Option<&Tried> {
        match kind {
            Kind::Expand => self.expand.as_ref(),
            Kind::Modify => self.modify.as_ref(),
        }
    }

    pub fn record(&self, kind: Kind) -> Option<&Record<Answer>> {
        self.tried(kind).map(|tried| &tried.record)
    }

    pub fn is_calling(&self) -> bool {
        [&self.expand, &self.modify].into_iter().flatten().any(|tried| tried.record.is_running())
    }

    /// How the call for this very aim failed.
    pub fn failed_at(&self, aim: &Aim) -> Option<Failed<'_>> {
        self.tried(aim.kind()).filter(|tried| tried.aim == *aim)?;
        self.failed(aim.kind())
    }

    pub fn failed(&self, kind: Kind) -> Option<Failed<'_>> {
        match &self.record(kind)?.state {
            State::Failed(failure) => Some(Failed { failure, is_final: true }),
            State::Uncertain(failure) => Some(Failed { failure, is_final: false }),
            State::Running | State::Done(_) => None,
        }
    }

    pub fn expanded(&self) -> Option<&Expanded> {
        match self.record(Kind::Expand)?.done()? {
            Answer::Expanded(expanded) => Some(expanded),
            Answer::Modified(_) => None,
        }
    }

    /// The class that a call has brought into effect.
    pub fn modified(&self) -> Option<&str> {
        match self.record(Kind::Modify)?.done()? {
            Answer::Modified(class) => Some(class),
            Answer::Expanded(_) => None,
        }
    }

    /// Whether the driver refused to expand the volume because it is in use.
    pub fn waits_for_users(&self) -> bool {
        self.failed(Kind::Expand).is_some_and(|failed| is_in_use(failed.failure))
    }
}

impl Controller {
    pub fn gather(&self, key: &Key) -> Snapshot {
        let case = self.caches.claims.get(key).map(|claim| self.case(key, claim));
        let uid = case.as_ref().map(|case| case.claim.meta.uid.as_str());
        let records = self.operations.records_from(&Operation::first(key), |operation| operation.claim == *key);
        let ended = records
            .into_iter()
            .filter(|(operation, record)| !record.is_running() && Some(operation.uid.as_str()) != uid);
        let abandoned = ended.map(|(operation, _)| operation).collect();
        Snapshot { facts: Arc::clone(&self.facts), case, abandoned }
    }

    fn case(&self, key: &Key, claim: Arc<Claim>) -> Case {
        let caches = &self.caches;
        let source = match caches.volumes.view(&Key::cluster(claim.spec.volume_name.as_str())) {
            View::Unknown => Source::Unknown,
            View::Known(volume) if caches.is_ours(&claim, &volume) && is_bound(&volume, &claim) => Source::Ours(volume),
            View::Known(_) | View::Absent => Source::Foreign,
        };
        let target = claim.modifying().map(|modifying| modifying.target.as_str()).unwrap_or_default();
        let mut case = Case {
            is_unknown: caches.claims.view(key) == View::Unknown,
            source,
            wanted: self.class(claim.wanted_class()),
            aimed_at: self.class(target),
            expand: self.tried(&claim, Kind::Expand),
            modify: self.tried(&claim, Kind::Modify),
            users: Users::Unwatched,
            known: self.told.known(key),
            claim,
        };
        if case.waits_for_users() {
            case.users = self.watching.users(key);
        }
        case
    }

    /// There is one at the most: what is begun takes the place of what ended.
    fn tried(&self, claim: &Claim, kind: Kind) -> Option<Tried> {
        let (operation, record) = self.records(&claim.meta).into_iter().find(|(of, _)| of.aim.kind() == kind)?;
        let is_in_line = self.calls.turns(kind).is_in_line(&operation);
        Some(Tried { aim: operation.aim, record, is_in_line })
    }

    /// What was begun for this very claim.
    pub fn records(&self, claim: &Meta) -> Vec<(Operation, Record<Answer>)> {
        let key = claim.key();
        let records = self.operations.records_from(&Operation::first(&key), |operation| operation.claim == key);
        records.into_iter().filter(|(operation, _)| operation.uid == claim.uid).collect()
    }

    fn class(&self, name: &str) -> ClassView {
        match self.caches.classes.get(&Key::cluster(name)) {
            Some(class) => ClassView::Found(class),
            None if self.caches.classes.is_synced() || name.is_empty() => ClassView::Missing,
            None => ClassView::Unlisted,
        }
    }
}

/// A volume that another claim holds, even one of the same name, is not this one's to expand.
fn is_bound(volume: &Volume, claim: &Claim) -> bool {
    let held = volume.spec.claim_ref.as_ref();
    held.is_some_and(|held| held.namespace == claim.meta.namespace && held.uid == claim.meta.uid)
}

#[cfg(test)]
mod tests;
