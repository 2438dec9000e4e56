//! What is watched, and which change wakes which key.

use std::collections::BTreeMap;
use std::sync::Arc;

use stowage_model::labels::SNAPSHOT_MANAGED_BY;
use stowage_model::object::{self, Projection};
use stowage_model::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshotClass, VolumeSnapshotContent};
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::Watches;
use stowage_runtime::watch::Scope;

use crate::content::Content;
use crate::controller::Controller;
use crate::doubts::Subject;
use crate::options::Options;
use crate::sort::Sort;

/// A content, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub sort: Sort,
    pub name: String,
}

#[derive(Clone)]
pub struct Caches {
    /// The driver whose contents are ours.
    pub driver: Arc<str>,
    pub contents: Cache<VolumeSnapshotContent>,
    pub classes: Cache<VolumeSnapshotClass>,
    pub group_contents: Cache<VolumeGroupSnapshotContent>,
    pub group_classes: Cache<VolumeGroupSnapshotClass>,
}

impl Caches {
    pub fn new(driver: &str) -> Self {
        Self {
            driver: driver.into(),
            contents: Cache::indexed(&[("class", |content| {
                content.spec.volume_snapshot_class_name.iter().cloned().collect()
            })]),
            classes: Cache::new(),
            group_contents: Cache::indexed(&[("class", |content| {
                content.spec.volume_group_snapshot_class_name.iter().cloned().collect()
            })]),
            group_classes: Cache::new(),
        }
    }

    pub fn declare(&self, options: &Options, watches: &mut Watches<'_, Controller>) {
        let scope = match &options.node {
            Some(node) => Scope { label_selector: format!("{SNAPSHOT_MANAGED_BY}={node}"), ..Scope::all() },
            None => Scope::all(),
        };
        watches.cache(&self.classes, Scope::all(), |controller, change| {
            let contents = controller.caches.contents.by_index("class", &change.key.name);
            waiting(controller, &contents)
        });
        watches.cache(&self.contents, scope.clone(), |controller, change| {
            changed(controller, change, controller.caches.contents.is_synced())
        });
        if options.with_groups {
            watches.optional(&self.group_classes, Scope::all(), |controller, change| {
                let contents = controller.caches.group_contents.by_index("class", &change.key.name);
                waiting(controller, &contents)
            });
            watches.optional(&self.group_contents, scope, |controller, change| {
                changed(controller, change, controller.caches.group_contents.is_synced())
            });
        }
    }

    /// A content of ours, as it was seen last.
    pub fn content(&self, key: &Key) -> Option<Content> {
        let object = object::Key::cluster(key.name.as_str());
        let content = match key.sort {
            Sort::Snapshot => Content::from(&*self.contents.get(&object)?),
            Sort::Group => Content::from(&*self.group_contents.get(&object)?),
        };
        (content.driver == *self.driver).then_some(content)
    }

    pub fn parameters(&self, sort: Sort, class: &str) -> Option<BTreeMap<String, String>> {
        let object = object::Key::cluster(class);
        match sort {
            Sort::Snapshot => self.classes.get(&object).map(|class| class.parameters.clone()),
            Sort::Group => self.group_classes.get(&object).map(|class| class.parameters.clone()),
        }
    }

    /// Whether a class that is not found does not exist.
    pub fn knows_classes(&self, sort: Sort) -> bool {
        match sort {
            Sort::Snapshot => self.classes.is_synced(),
            Sort::Group => self.group_classes.is_synced(),
        }
    }

    pub fn keys(&self) -> Vec<Key> {
        let snapshots = self.contents.list().into_iter().filter(|content| content.spec.driver == *self.driver);
        let snapshots = snapshots.map(|content| Key { sort: Sort::Snapshot, name: content.meta.name.clone() });
        let groups = self.group_contents.list().into_iter().filter(|content| content.spec.driver == *self.driver);
        let groups = groups.map(|content| Key { sort: Sort::Group, name: content.meta.name.clone() });
        snapshots.chain(groups).collect()
    }
}

/// What a content's watch needs of either kind.
trait Ours: Projection {
    const SORT: Sort;

    fn driver(&self) -> &str;

    /// Whether a creation may have begun of which only the driver knows.
    fn may_be_begun(&self) -> bool;

    fn is_ready(&self) -> bool;
}

impl Ours for VolumeSnapshotContent {
    const SORT: Sort = Sort::Snapshot;

    fn driver(&self) -> &str {
        &self.spec.driver
    }

    fn may_be_begun(&self) -> bool {
        may_be_begun(&Content::from(self))
    }

    fn is_ready(&self) -> bool {
        self.is_ready()
    }
}

impl Ours for VolumeGroupSnapshotContent {
    const SORT: Sort = Sort::Group;

    fn driver(&self) -> &str {
        &self.spec.driver
    }

    fn may_be_begun(&self) -> bool {
        may_be_begun(&Content::from(self))
    }

    fn is_ready(&self) -> bool {
        self.is_ready()
    }
}

/// A status without a handle is only ever written after a final answer, or with the mark beside it.
fn may_be_begun(content: &Content) -> bool {
    content.handle().is_none() && (content.status.is_none() || content.is_marked())
}

fn changed<T: Ours>(controller: &Controller, change: &Change<'_, T>, is_synced: bool) -> Option<Key> {
    change.both().find(|content| content.driver() == &*controller.caches.driver)?;
    let key = Key { sort: T::SORT, name: change.key.name.clone() };
    let subject = |content: &T| Subject { key: key.clone(), uid: content.meta().uid.clone() };
    match (change.before, change.after) {
        // Of what the first list shows, somebody else may have begun the creation.
        (None, Some(content)) if !is_synced && content.may_be_begun() => {
            controller.calls.doubts.inherit(subject(content));
        }
        (Some(gone), None) => controller.forget(&subject(gone)),
        _ => {}
    }
    Some(key)
}

/// A class that came or changed may be what contents wait for.
fn waiting<T: Ours>(controller: &Controller, contents: &[Arc<T>]) -> Vec<Key> {
    let ours = contents.iter().filter(|content| content.driver() == &*controller.caches.driver && !content.is_ready());
    ours.map(|content| Key { sort: T::SORT, name: content.meta().name.clone() }).collect()
}
