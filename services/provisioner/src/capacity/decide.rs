//! What must happen next to what is published of one class in one place.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::class::StorageClass;
use stowage_model::phase::BindingMode;
use stowage_model::quantity::Quantity;
use stowage_model::storage_capacity::StorageCapacity;
use stowage_runtime::engine;

use super::book::{Answer, Seen};
use super::item::Item;
use super::owner::Owner;

/// An item is not asked about more often, whatever happens there: a burst of claims costs one call and one write per
/// second, and a lone claim is followed at once.
pub const AT_MOST_EVERY: SignedDuration = SignedDuration::from_secs(1);

#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    Item(Box<ItemSnapshot>),
    /// An object that speaks of no item.
    Stray(Option<Arc<StorageCapacity>>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct ItemSnapshot {
    pub item: Item,
    /// The class, if the item is wanted at all.
    pub class: Option<Arc<StorageClass>>,
    /// What is published of it, in order of names.
    pub objects: Vec<Arc<StorageCapacity>>,
    pub seen: Seen,
    /// Who is to own what is published.
    pub owner: Option<Arc<Owner>>,
    pub poll_interval: Duration,
}

/// One write, or the driver's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Asks the driver, and remembers what it says.
    Ask {
        item: Item,
        class: Arc<StorageClass>,
    },
    Create {
        item: Item,
        answer: Answer,
    },
    Update {
        object: Arc<StorageCapacity>,
        answer: Answer,
    },
    Delete(Arc<StorageCapacity>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Nobody is, or is any more, to know it.
    Unwanted,
    /// Said twice.
    Duplicate,
    /// Never asked.
    Unasked,
    /// Volumes were made or deleted there, or could not be.
    Stale,
    /// The poll interval is over.
    Poll,
    Unpublished,
    Changed,
    Published,
    Gone,
}

pub type Decision = engine::Decision<Action, Why>;

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision {
    match s {
        Snapshot::Item(s) => decide_item(s, now),
        Snapshot::Stray(Some(object)) => Decision::act([Action::Delete(Arc::clone(object))], Why::Unwanted),
        Snapshot::Stray(None) => Decision::rest(Why::Gone),
    }
}

/// Whether capacity of the class is published: for those that bind at once nobody asks, unless the user does.
pub fn is_published(class: &StorageClass, driver: &str, immediate_binding: bool) -> bool {
    let is_ours = class.provisioner == driver;
    is_ours && (immediate_binding || class.binding_mode != Some(BindingMode::Immediate))
}

fn decide_item(s: &ItemSnapshot, now: Timestamp) -> Decision {
    let Some(class) = &s.class else { return delete(&s.objects, Why::Unwanted) };
    // The first one known stays: whichever that is, deciding again gives the same.
    let (object, duplicates) = match s.objects.split_first() {
        Some((first, rest)) => (Some(first), rest),
        None => (None, [].as_slice()),
    };
    if !duplicates.is_empty() {
        return delete(duplicates, Why::Duplicate);
    }
    let ask = |why| Decision::act([Action::Ask { item: s.item.clone(), class: Arc::clone(class) }], why);
    let Some(answer) = s.seen.answer else { return ask(Why::Unasked) };
    let after = |delay: SignedDuration| answer.at.checked_add(delay).unwrap_or(Timestamp::MAX);
    let poll_at = after(SignedDuration::try_from(s.poll_interval).unwrap_or(SignedDuration::MAX));
    let (due, why) = match s.seen.is_stale {
        true => (after(AT_MOST_EVERY).min(poll_at), Why::Stale),
        false => (poll_at, Why::Poll),
    };
    if due <= now {
        return ask(why);
    }
    match object {
        None => Decision::act([Action::Create { item: s.item.clone(), answer }], Why::Unpublished),
        Some(object) if says(object, &answer) && is_owned(object, s.owner.as_deref()) => {
            Decision::wait_until(due, Why::Published)
        }
        Some(object) => Decision::act([Action::Update { object: Arc::clone(object), answer }], Why::Changed),
    }
}

fn delete(objects: &[Arc<StorageCapacity>], why: Why) -> Decision {
    Decision::act(objects.iter().cloned().map(Action::Delete).collect::<Vec<_>>(), why)
}

fn says(object: &StorageCapacity, answer: &Answer) -> bool {
    object.capacity == Some(Quantity::from_bytes(answer.available))
        && object.maximum_volume_size == answer.largest.map(Quantity::from_bytes)
}

fn is_owned(object: &StorageCapacity, owner: Option<&Owner>) -> bool {
    owner.is_none_or(|owner| object.meta.owner_references.iter().any(|of| of.controller && of.uid == owner.uid))
}
