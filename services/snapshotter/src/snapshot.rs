//! One content, its class, and the driver calls made for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_model::object;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::View;
use stowage_runtime::driver::Driver;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::told::Known;

use crate::calls::{Answer, Kind, Operation};
use crate::content::Content;
use crate::controller::Controller;
use crate::doubts::{Doubt, Subject};
use crate::options::Options;
use crate::sort::Sort;
use crate::watches::Key;

/// Readiness is not looked for more seldom than this, unless the first delay is longer already: who waits for a snapshot
/// waits for its restore.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// What decisions need to know about the driver.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub driver: String,
    /// Whether it tells about snapshots that it has.
    pub lists: bool,
    /// Whether it makes snapshots of several volumes at one moment.
    pub groups: bool,
    pub options: Options,
}

impl Facts {
    pub fn of(driver: &Driver, groups: bool, options: Options) -> Self {
        let lists = driver.controller.contains(&Call::ListSnapshots);
        Self { driver: driver.name.clone(), lists, groups, options }
    }

    /// When to look again at a snapshot that was not ready so often.
    pub fn next_look(&self, since: Timestamp, looks: u32) -> Timestamp {
        let Backoff { base, max } = self.options.driver.retry;
        let delay = Backoff { base, max: max.min(LONGEST_LOOK.max(base)) }.delay(looks);
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        since.saturating_add(delay).unwrap_or(Timestamp::MAX)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub facts: Arc<Facts>,
    pub case: Option<Case>,
    /// Calls that have ended for contents of the name that are gone.
    pub abandoned: Vec<Operation>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub content: Content,
    /// A write of ours got no answer.
    pub is_unknown: bool,
    pub class: Class,
    pub create: Option<Record<Answer>>,
    pub look: Option<Record<Answer>>,
    pub delete: Option<Record<Answer>>,
    pub doubt: Option<Doubt>,
    /// What people were told.
    pub known: Known,
}

/// The class that a content names.
#[derive(Debug, Clone, PartialEq)]
pub enum Class {
    None,
    /// It is not known yet whether there is one; the first list of classes wakes the key.
    Unlisted,
    Missing(String),
    Found {
        name: String,
        parameters: BTreeMap<String, String>,
    },
}

impl Case {
    pub fn subject(&self) -> Subject {
        let Content { sort, meta, .. } = &self.content;
        Subject { key: Key { sort: *sort, name: meta.name.clone() }, uid: meta.uid.clone() }
    }

    pub fn is_calling(&self) -> bool {
        let running = |record: &Option<Record<Answer>>| matches!(record, Some(Record { state: State::Running, .. }));
        running(&self.create) || running(&self.look) || running(&self.delete)
    }
}

impl Controller {
    pub fn gather(&self, key: &Key) -> Snapshot {
        let case = self.caches.content(key).map(|content| self.case(key, content));
        let uid = case.as_ref().map(|case| case.content.meta.uid.as_str());
        let of_name = |operation: &Operation| operation.subject.key == *key;
        let records = self.operations.records_from(&Operation::first(key), of_name);
        let ended = records.into_iter().filter(|(operation, record)| {
            record.state != State::Running && Some(operation.subject.uid.as_str()) != uid
        });
        let abandoned = ended.map(|(operation, _)| operation).collect();
        Snapshot { facts: Arc::clone(&self.facts), case, abandoned }
    }

    fn case(&self, key: &Key, content: Content) -> Case {
        let caches = &self.caches;
        let class = match &content.class {
            None => Class::None,
            Some(name) => match caches.parameters(key.sort, name) {
                Some(parameters) => Class::Found { name: name.clone(), parameters },
                None if !caches.knows_classes(key.sort) => Class::Unlisted,
                None => Class::Missing(name.clone()),
            },
        };
        let object = object::Key::cluster(key.name.as_str());
        let is_unknown = match key.sort {
            Sort::Snapshot => caches.contents.view(&object) == View::Unknown,
            Sort::Group => caches.group_contents.view(&object) == View::Unknown,
        };
        let subject = Subject { key: key.clone(), uid: content.meta.uid.clone() };
        let record = |kind| self.operations.record(&Operation { subject: subject.clone(), kind });
        Case {
            is_unknown,
            class,
            create: record(Kind::Create),
            look: record(Kind::Look),
            delete: record(Kind::Delete),
            doubt: self.calls.doubts.of(&subject),
            known: self.told.known(key),
            content,
        }
    }
}

#[cfg(test)]
mod tests;
