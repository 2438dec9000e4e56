//! Turns of driver calls. Attaches and detaches each have a lane of their own, with as many calls at a time as there are
//! workers: however many detaches wait, and however slow they are, an attach waits for attaches only.
//!
//! Who finds no room waits in line and is woken when it is his turn. Rooms are asked (`may`) while a decision is gathered
//! and taken or waited for when it is noted; both happen on one task, so that between the two room is only ever gained.

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
    line: BTreeMap<u64, VolumeHandle>,
    /// Their places in it, and since when they wait.
    waiting: BTreeMap<VolumeHandle, (u64, Duration)>,
    /// Woken because it is their turn.
    called: BTreeSet<VolumeHandle>,
    came: u64,
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

    /// Whether a call for the volume may begin now.
    pub fn may(&self, kind: Kind, handle: &VolumeHandle) -> bool {
        self.lock().get(&kind).is_some_and(|lane| lane.called.contains(handle) || lane.free > lane.called.len())
    }

    /// Takes the room that there was; the call itself asks for its [`turn`](Self::turn).
    pub fn take(&self, kind: Kind, handle: &VolumeHandle) {
        self.change(kind, |lane| {
            lane.leave(handle);
            lane.free = lane.free.saturating_sub(1);
        });
    }

    /// The place that was taken, to be kept for as long as the call lasts.
    pub fn turn(&self, kind: Kind) -> Turn {
        Turn { lanes: self.clone(), kind }
    }

    /// Stands in line; who stands there already keeps his place.
    pub fn wait(&self, kind: Kind, handle: &VolumeHandle) {
        let now = self.0.clock.boottime();
        self.change(kind, |lane| {
            if !lane.called.contains(handle) && !lane.waiting.contains_key(handle) {
                lane.came += 1;
                lane.waiting.insert(handle.clone(), (lane.came, now));
                lane.line.insert(lane.came, handle.clone());
            }
        });
    }

    /// Leaves the line: nothing is to be called for the volume any more.
    pub fn leave(&self, kind: Kind, handle: &VolumeHandle) {
        self.change(kind, |lane| lane.leave(handle));
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
        woken.into_iter().for_each(|handle| self.0.queue.go_on(Key::Handle(handle)));
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
    fn leave(&mut self, handle: &VolumeHandle) {
        self.called.remove(handle);
        if let Some((place, _)) = self.waiting.remove(handle) {
            self.line.remove(&place);
        }
    }

    fn call_next(&mut self) -> Vec<VolumeHandle> {
        let mut woken = Vec::new();
        while self.free > self.called.len()
            && let Some((_, handle)) = self.line.pop_first()
        {
            self.waiting.remove(&handle);
            self.called.insert(handle.clone());
            woken.push(handle);
        }
        woken
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

    #[tokio::test]
    async fn who_came_first_is_woken_first_and_newcomers_do_not_overtake() {
        let (lanes, queue) = lanes(1);
        assert!(lanes.may(Kind::Unpublish, &handle("a")));
        lanes.take(Kind::Unpublish, &handle("a"));
        let turn = lanes.turn(Kind::Unpublish);
        for name in ["b", "c", "b"] {
            assert!(!lanes.may(Kind::Unpublish, &handle(name)));
            lanes.wait(Kind::Unpublish, &handle(name));
        }
        assert_eq!(lanes.backlog(Kind::Unpublish).depth, 2);
        assert_eq!(woken(&queue), None);
        drop(turn);
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
        assert!(!lanes.may(Kind::Unpublish, &handle("newcomer")), "the room is b's");
        assert!(lanes.may(Kind::Unpublish, &handle("b")));
        lanes.take(Kind::Unpublish, &handle("b"));
        assert_eq!(woken(&queue), None);
        drop(lanes.turn(Kind::Unpublish));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("c"))));
    }

    #[tokio::test]
    async fn one_lane_does_not_know_of_the_other() {
        let (lanes, _queue) = lanes(1);
        lanes.take(Kind::Unpublish, &handle("a"));
        assert!(lanes.may(Kind::Publish, &handle("b")));
    }

    #[tokio::test]
    async fn who_does_not_want_his_turn_any_more_passes_it_on() {
        let (lanes, queue) = lanes(1);
        lanes.take(Kind::Publish, &handle("a"));
        lanes.wait(Kind::Publish, &handle("b"));
        lanes.wait(Kind::Publish, &handle("c"));
        drop(lanes.turn(Kind::Publish));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
        lanes.leave(Kind::Publish, &handle("b"));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("c"))));
    }

    #[tokio::test]
    async fn room_that_came_after_the_question_is_not_missed() {
        let (lanes, queue) = lanes(1);
        lanes.take(Kind::Publish, &handle("a"));
        assert!(!lanes.may(Kind::Publish, &handle("b")));
        drop(lanes.turn(Kind::Publish));
        lanes.wait(Kind::Publish, &handle("b"));
        assert_eq!(woken(&queue), Some(Key::Handle(handle("b"))));
    }
}
