//! Turns of driver calls. Attaches and detaches each have a lane of their own, with as many calls at a time as there are
//! workers: however many detaches wait, and however slow they are, an attach waits for attaches only.
//!
//! Who finds no room waits in line, and his volume is woken when it is his turn. Rooms are asked for (`room`) while a decision
//! is gathered and taken or waited for when it is noted (`settle`); both happen on one task, so that between the two room is
//! only ever gained.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stowage_model::names::VolumeHandle;
use stowage_runtime::clock::Clock;
use stowage_runtime::queue::Queue;

use crate::calls::Kind;
use crate::watches::Key;

#[derive(Clone)]
pub struct Lanes(Arc<Inner>);

struct Inner {
    lanes: Mutex<BTreeMap<Kind, Lane>>,
    queue: Queue<Key>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Lane {
    free: usize,
    /// In the order in which they came.
    line: BTreeMap<u64, Seat>,
    /// Their places in it, and since when they wait.
    waiting: BTreeMap<Seat, (u64, Duration)>,
    /// Woken because it is their turn.
    called: BTreeSet<Seat>,
    came: u64,
}

/// Who wants a call: one attachment of a volume for many nodes, or a volume for one, which waits under no attachment's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    handle: VolumeHandle,
    attachment_uid: String,
}

impl Seat {
    fn new(handle: &VolumeHandle, attachment_uid: &str) -> Self {
        Self { handle: handle.clone(), attachment_uid: attachment_uid.into() }
    }
}

/// What a lane looks like to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Calls that wait for their turn.
    pub depth: usize,
    /// How long the first of them has waited.
    pub age: Duration,
}

/// A call's place in its lane; dropped, it makes room for the next.
pub struct Turn {
    lanes: Lanes,
    kind: Kind,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lanes.change(self.kind, |lane| lane.free += 1);
    }
}

impl Lanes {
    pub fn new(calls: usize, queue: Queue<Key>, clock: Arc<dyn Clock>) -> Self {
        let lanes = Kind::ALL.map(|kind| (kind, Lane { free: calls, ..Lane::default() }));
        Self(Arc::new(Inner { lanes: Mutex::new(lanes.into()), queue, clock }))
    }

    /// How many calls may begin now, beside those whose turn it is.
    pub fn room(&self, kind: Kind) -> usize {
        self.lock().get(&kind).map_or(0, |lane| lane.free.saturating_sub(lane.called.len()))
    }

    /// Whether it is the attachment's turn.
    pub fn is_called(&self, kind: Kind, handle: &VolumeHandle, attachment_uid: &str) -> bool {
        self.lock().get(&kind).is_some_and(|lane| lane.called.contains(&Seat::new(handle, attachment_uid)))
    }

    /// The place that was taken, to be kept for as long as the call lasts.
    pub fn turn(&self, kind: Kind) -> Turn {
        Turn { lanes: self.clone(), kind }
    }

    /// What was decided for a volume: calls for so many of its attachments take the room that there was, each asking for its
    /// [`turn`](Self::turn). These stand in line, where who stands there already keeps his place, and no other of the volume
    /// does any more.
    pub fn settle(&self, kind: Kind, handle: &VolumeHandle, begun: usize, waiting: &[&str]) {
        let now = self.0.clock.boottime();
        self.change(kind, |lane| {
            lane.keep(handle, &waiting.iter().copied().collect());
            lane.free = lane.free.saturating_sub(begun);
            waiting.iter().for_each(|uid| lane.wait(Seat::new(handle, uid), now));
        });
    }

    pub fn backlog(&self, kind: Kind) -> Backlog {
        let now = self.0.clock.boottime();
        let lanes = self.lock();
        let Some(lane) = lanes.get(&kind) else { return Backlog::default() };
        let since = lane.line.first_key_value().and_then(|(_, first)| lane.waiting.get(first));
        let age = since.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since));
        Backlog { depth: lane.line.len() + lane.called.len(), age }
    }

    /// Changes a lane, then wakes those whose turn it is by that.
    fn change(&self, kind: Kind, change: impl FnOnce(&mut Lane)) {
        let woken = {
            let mut lanes = self.lock();
            let Some(lane) = lanes.get_mut(&kind) else { return };
            change(lane);
            lane.call_next()
        };
        woken.into_iter().for_each(|seat| self.0.queue.go_on(Key::Handle(seat.handle)));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, Lane>> {
        self.0.lanes.lock().expect("no code panics while holding the lanes")
    }

    pub fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + 'static {
        let inner = Arc::downgrade(&self.0);
        move || inner.upgrade().map(Self)
    }
}

impl Lane {
    fn keep(&mut self, handle: &VolumeHandle, stay: &BTreeSet<&str>) {
        let first = Seat::new(handle, "");
        let is_its = |seat: &&Seat| seat.handle == *handle;
        let waiting = self.waiting.range(&first..).map(|(seat, _)| seat).take_while(is_its);
        let seats = waiting.chain(self.called.range(&first..).take_while(is_its));
        let gone: Vec<Seat> = seats.filter(|seat| !stay.contains(seat.attachment_uid.as_str())).cloned().collect();
        for seat in gone {
            self.called.remove(&seat);
            if let Some((place, _)) = self.waiting.remove(&seat) {
                self.line.remove(&place);
            }
        }
    }

    fn wait(&mut self, seat: Seat, now: Duration) {
        if !self.called.contains(&seat) && !self.waiting.contains_key(&seat) {
            self.came += 1;
            self.waiting.insert(seat.clone(), (self.came, now));
            self.line.insert(self.came, seat);
        }
    }

    fn call_next(&mut self) -> Vec<Seat> {
        let mut woken = Vec::new();
        // A volume is decided on as a whole, so that more than one seat of it would only keep room that others could use.
        while self.free > self.called.len()
            && let Some((place, _)) = self.line.iter().find(|(_, seat)| !self.is_any_called(&seat.handle))
        {
            let place = *place;
            let Some(seat) = self.line.remove(&place) else { break };
            self.waiting.remove(&seat);
            self.called.insert(seat.clone());
            woken.push(seat);
        }
        woken
    }

    fn is_any_called(&self, handle: &VolumeHandle) -> bool {
        let mut seats = self.called.range(Seat::new(handle, "")..);
        seats.next().is_some_and(|seat| seat.handle == *handle)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use stowage_runtime::Context;
    use stowage_runtime::backoff::Backoff;

    use super::*;

    fn lanes(calls: usize) -> (Lanes, Queue<Key>) {
        let queue = Queue::new(Backoff::QUEUE);
        (Lanes::new(calls, queue.clone(), Arc::clone(&Context::deaf().clock)), queue)
    }

    fn woken(queue: &Queue<Key>) -> Option<Key> {
        let key = queue.next().now_or_never()?;
        queue.done(&key);
        Some(key)
    }

    fn handle(name: &str) -> VolumeHandle {
        name.into()
    }

    /// Volumes of one attachment each.
    impl Lanes {
        fn may(&self, kind: Kind, volume: &str) -> bool {
            self.is_called(kind, &handle(volume), "va") || self.room(kind) > 0
        }

        fn take(&self, kind: Kind, volume: &str) {
            self.settle(kind, &handle(volume), 1, &[]);
        }

        fn wait(&self, kind: Kind, volume: &str) {
            self.settle(kind, &handle(volume), 0, &["va"]);
        }
    }

    #[tokio::test]
    async fn who_came_first_is_woken_first_and_newcomers_do_not_overtake() {
        let (lanes, queue) = lanes(1);
        assert!(lanes.may(Kind::Unpublish, "a"));
        lanes.take(Kind::Unpublish, "a");
        let turn = lanes.turn(Kind::Unpublish);
        for name in ["b", "c", "b"] {
            assert!(!lanes.may(Kind::Unpublish, name));
            lanes.wait(Kind::Unpublish, name);
        }
        assert_eq!(lanes.backlog(Kind::Unpublish).depth, 2);
        assert_eq!(woken(&queue), None);
        drop(turn);
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
        assert!(!lanes.may(Kind::Unpublish, "newcomer"), "the room is b's");
        assert!(lanes.may(Kind::Unpublish, "b"));
        lanes.take(Kind::Unpublish, "b");
        assert_eq!(woken(&queue), None);
        drop(lanes.turn(Kind::Unpublish));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("c"))));
    }

    #[tokio::test]
    async fn one_lane_does_not_know_of_the_other() {
        let (lanes, _queue) = lanes(1);
        lanes.take(Kind::Unpublish, "a");
        assert!(lanes.may(Kind::Publish, "b"));
    }

    #[tokio::test]
    async fn who_does_not_want_his_turn_any_more_passes_it_on() {
        let (lanes, queue) = lanes(1);
        lanes.take(Kind::Publish, "a");
        lanes.wait(Kind::Publish, "b");
        lanes.wait(Kind::Publish, "c");
        drop(lanes.turn(Kind::Publish));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
        lanes.settle(Kind::Publish, &handle("b"), 0, &[]);
        assert_eq!(woken(&queue), Some(Key::Handle(handle("c"))));
    }

    #[tokio::test]
    async fn room_that_came_after_the_question_is_not_missed() {
        let (lanes, queue) = lanes(1);
        lanes.take(Kind::Publish, "a");
        assert!(!lanes.may(Kind::Publish, "b"));
        drop(lanes.turn(Kind::Publish));
        lanes.wait(Kind::Publish, "b");
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
    }

    #[tokio::test]
    async fn attachments_of_one_volume_have_places_of_their_own_and_keep_them_when_another_begins() {
        let (lanes, queue) = lanes(1);
        let shared = handle("shared");
        lanes.settle(Kind::Unpublish, &shared, 1, &["first", "gone"]);
        lanes.wait(Kind::Unpublish, "b");
        lanes.settle(Kind::Unpublish, &shared, 0, &["first", "last"]);
        assert_eq!(lanes.backlog(Kind::Unpublish).depth, 3);
        drop(lanes.turn(Kind::Unpublish));
        assert!(lanes.is_called(Kind::Unpublish, &shared, "first"), "before those that came later");
        assert_eq!(woken(&queue), Some(Key::Handle(shared.clone())));
        lanes.settle(Kind::Unpublish, &shared, 1, &["last"]);
        drop(lanes.turn(Kind::Unpublish));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
    }

    /// All seats of a volume for many nodes used to be called at once, and kept their room while it wrote.
    #[tokio::test]
    async fn a_volume_with_many_attachments_keeps_one_room_at_a_time_from_the_others() {
        let (lanes, queue) = lanes(2);
        lanes.take(Kind::Publish, "a");
        lanes.take(Kind::Publish, "b");
        lanes.settle(Kind::Publish, &handle("shared"), 0, &["first", "second", "third"]);
        lanes.wait(Kind::Publish, "c");
        drop([lanes.turn(Kind::Publish), lanes.turn(Kind::Publish)]);
        assert_eq!(
            [woken(&queue), woken(&queue)],
            [Some(Key::Handle(handle("shared"))), Some(Key::Handle(handle("c")))]
        );
        lanes.settle(Kind::Publish, &handle("shared"), 1, &["second", "third"]);
        lanes.take(Kind::Publish, "c");
        drop(lanes.turn(Kind::Publish));
        assert!(lanes.is_called(Kind::Publish, &handle("shared"), "second"));
    }
}
