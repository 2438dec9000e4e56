//! Events do not stay: each goes some time after it was last written.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Event, EventType, Store};
use crate::kind::Kind;
use crate::object::{Key, Object, text};

/// Upstream's default of `--event-ttl`.
const DEFAULT: SignedDuration = SignedDuration::from_hours(1);

/// Which events expire when, the next one first.
#[derive(Debug)]
pub(super) struct Expiry {
    pub after: SignedDuration,
    /// When an event was written, and the revision of that write: a later write has an entry of its own.
    written: VecDeque<(Timestamp, Key, u64)>,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { after: DEFAULT, written: VecDeque::new() }
    }
}

impl Store {
    /// How long an event stays after it was last written.
    pub fn keep_events_for(&mut self, duration: SignedDuration) {
        self.expiry.after = duration;
    }

    pub(super) fn note_expiry(&mut self, event: &Event, now: Timestamp) {
        if *event.kind == *Kind::named("Event") && event.event_type != EventType::Deleted {
            self.expiry.written.push_back((now, event.key.clone(), event.revision));
        }
    }

    /// Takes out the events whose time is over.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<Arc<Event>> {
        let kind = Kind::named("Event");
        let mut events = Vec::new();
        let after = self.expiry.after;
        while let Some((_, key, revision)) =
            self.expiry.written.pop_front_if(|(at, ..)| now.duration_since(*at) >= after)
        {
            let object = self.newest(kind, &key.namespace, &key.name);
            if let Some(object) = object.filter(|object| object.revision == revision) {
                let tree = object.tree();
                events.push(self.remove(kind, key, tree));
            }
        }
        events
    }

    /// Learns from the events that are there when each was written.
    pub(super) fn read_expiry(&mut self) {
        let all = self.newest_all(Kind::named("Event"));
        let mut written: Vec<_> = all.map(|(key, object)| (last_told(object), key.clone(), object.revision)).collect();
        written.sort_unstable_by_key(|(at, _, revision)| (*at, *revision));
        self.expiry.written = written.into();
    }
}

/// The newest time that an event names: clients say in each write when they last saw what it is about.
fn last_told(object: &Object) -> Timestamp {
    const TIMES: [&str; 4] =
        ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let tree = object.tree();
    TIMES.iter().filter_map(|time| text(&tree, time).parse().ok()).max().unwrap_or(Timestamp::UNIX_EPOCH)
}
