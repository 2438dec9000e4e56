use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::FutureExt as _;

use stowage_model::VolumeSnapshot;
use stowage_model::object::{Key, kinds};

use super::*;
use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::shutdown::Shutdown;
use crate::tasks::Tasks;
use crate::watch::Scope;

/// Counts up each key to its goal, one step per decision; steps on one shared object must not overlap.
struct Counter {
    goals: BTreeMap<&'static str, u32>,
    state: Mutex<State>,
    shared: bool,
}

/// A step that nobody misses.
const REMARK: u32 = 77;

#[derive(Default)]
struct State {
    reached: BTreeMap<&'static str, u32>,
    failures: u32,
    busy: u32,
    most_busy: u32,
}

impl Controller for Counter {
    type Key = &'static str;
    /// How far it is, and how far it has to go.
    type Snapshot = (u32, u32);
    type Action = u32;
    type Why = &'static str;

    const NAME: &'static str = "counter";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, key: &&'static str, _reserved: &Reserved, _now: Timestamp) -> (u32, u32) {
        (self.state.lock().unwrap().reached.get(key).copied().unwrap_or(0), self.goals[key])
    }

    fn decide(&(reached, goal): &(u32, u32), _now: Timestamp) -> Decision<u32, &'static str> {
        if reached < goal { Decision::act([reached + 1], "below") } else { Decision::rest("there") }
    }

    async fn apply(self: Arc<Self>, key: &'static str, step: u32) -> Result<(), Error> {
        {
            let mut state = self.state.lock().unwrap();
            if state.failures > 0 {
                state.failures -= 1;
                return Err(Error::other(std::io::Error::other("no")));
            }
            state.busy += 1;
            state.most_busy = state.most_busy.max(state.busy);
        }
        tokio::task::yield_now().await;
        let mut state = self.state.lock().unwrap();
        state.busy -= 1;
        state.reached.insert(key, step);
        Ok(())
    }

    fn touches(&self, key: &&'static str, _actions: &[u32]) -> Vec<ObjectId> {
        let name = if self.shared { "shared" } else { key };
        vec![ObjectId { kind: kinds::CLAIM, key: Key::cluster(name) }]
    }

    fn is_work(step: &u32) -> bool {
        *step != REMARK
    }

    fn keys(&self) -> Vec<&'static str> {
        self.goals.keys().copied().collect()
    }
}

async fn drive(goals: &[(&'static str, u32)], shared: bool, failures: u32, announced: bool) -> (Arc<Counter>, Context) {
    let context = Context::deaf();
    let state = Mutex::new(State { failures, ..State::default() });
    let counter = Arc::new(Counter { goals: goals.iter().copied().collect(), state, shared });
    let queue = Queue::new(Backoff::QUEUE);
    if announced {
        goals.iter().for_each(|(key, _)| queue.add(*key));
    }
    let finished = async {
        let goals = counter.goals.clone();
        while counter.state.lock().unwrap().reached != goals {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        context.shutdown.trigger();
    };
    let (result, ()) = tokio::join!(run(&context, Arc::clone(&counter), queue, 8), finished);
    result.unwrap();
    (counter, context)
}

#[tokio::test(start_paused = true)]
async fn disjoint_keys_are_applied_side_by_side() {
    let (counter, _) = drive(&[("a", 3), ("b", 3)], false, 0, true).await;
    assert_eq!(counter.state.lock().unwrap().most_busy, 2);
}

#[tokio::test(start_paused = true)]
async fn keys_that_touch_the_same_object_take_turns_and_all_arrive() {
    let (counter, _) = drive(&[("a", 3), ("b", 3), ("c", 1)], true, 0, true).await;
    assert_eq!(counter.state.lock().unwrap().most_busy, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_action_is_decided_again_after_its_backoff() {
    let (counter, _) = drive(&[("a", 1)], false, 3, true).await;
    assert_eq!(counter.state.lock().unwrap().failures, 0);
}

#[tokio::test(start_paused = true)]
async fn work_that_no_event_announced_is_found_by_the_resync_and_counted() {
    let (_, context) = drive(&[("a", 1)], false, 0, false).await;
    assert_eq!(context.metrics.missed_wakeups("counter").get(), 1);
    let (_, context) = drive(&[("a", 1)], false, 0, true).await;
    assert_eq!(context.metrics.missed_wakeups("counter").get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_means_stop_ends_the_service() {
    let mut stale = BTreeMap::new();
    let queue: Queue<&str> = Queue::new(Backoff::QUEUE);
    let stopped = settle(&queue, &mut stale, "a", &[Error::Deposed]);
    assert!(matches!(stopped, Err(Stop::Unable { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_was_stale_beside_something_refused_is_decided_on_again_at_once_but_not_for_ever() {
    let mut stale = BTreeMap::new();
    let queue: Queue<&str> = Queue::new(Backoff::QUEUE);
    let failed = [Error::other(std::io::Error::other("no")), Error::Stale("it")];
    queue.add("a");
    for _ in 0..=IMMEDIATE_RETRIES {
        let next = queue.next().now_or_never();
        assert_eq!(next, Some("a"));
        settle(&queue, &mut stale, "a", &failed).unwrap();
    }
    assert_eq!(queue.next().now_or_never(), None, "it has a backoff by now");
    assert_eq!(queue.next().await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_child_shutdown_does_not_stop_its_parent() {
    let parent = Shutdown::new();
    let child = parent.child();
    child.trigger();
    assert!(child.is_triggered() && !parent.is_triggered());
}

/// The leader acts once; the follower waits for that, without an event that would wake it.
#[derive(Default)]
struct Follower {
    led: Mutex<bool>,
    followed: Mutex<Vec<bool>>,
}

fn lead() -> ObjectId {
    ObjectId { kind: kinds::CLAIM, key: Key::cluster("lead") }
}

impl Controller for Follower {
    type Key = &'static str;
    /// The key, whether the leader is done, and whether it is at it.
    type Snapshot = (&'static str, bool, bool);
    type Action = ();
    type Why = ();

    const NAME: &'static str = "follower";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, key: &&'static str, reserved: &Reserved, _now: Timestamp) -> Self::Snapshot {
        (*key, *self.led.lock().unwrap(), reserved.contains(&lead()))
    }

    fn decide(&(key, led, busy): &Self::Snapshot, _now: Timestamp) -> Decision<(), ()> {
        match key {
            "leader" if !led => Decision::act([()], ()),
            "leader" => Decision::rest(()),
            _ if busy => Decision::wait_for(lead(), ()),
            _ => Decision::rest(()),
        }
    }

    fn note(&self, key: &&'static str, (_, led, _): &Self::Snapshot, _decision: &Decision<(), ()>, _now: Timestamp) {
        if *key != "leader" {
            self.followed.lock().unwrap().push(*led);
        }
    }

    async fn apply(self: Arc<Self>, _key: &'static str, (): ()) -> Result<(), Error> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        *self.led.lock().unwrap() = true;
        Ok(())
    }

    fn touches(&self, _key: &&'static str, _actions: &[()]) -> Vec<ObjectId> {
        vec![lead()]
    }

    fn keys(&self) -> Vec<&'static str> {
        vec![]
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_waits_for_an_object_is_decided_on_again_after_the_action_on_it() {
    let (context, follower, queue) = (Context::deaf(), Arc::new(Follower::default()), Queue::new(Backoff::QUEUE));
    ["leader", "follower"].into_iter().for_each(|key| queue.add(key));
    let end = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        context.shutdown.trigger();
    };
    let (result, ()) = tokio::join!(run(&context, Arc::clone(&follower), queue, 8), end);
    result.unwrap();
    assert_eq!(*follower.followed.lock().unwrap(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_wish_to_look_again_much_later_hides_nothing_from_the_resync() {
    let context = Context::deaf();
    let state = Mutex::new(State::default());
    let counter = Arc::new(Counter { goals: BTreeMap::from([("a", 1)]), state, shared: false });
    let queue = Queue::new(Backoff::QUEUE);
    queue.add_after("a", Duration::from_secs(45 * 60));
    let finished = async {
        tokio::time::sleep(RESYNC * 2).await;
        context.shutdown.trigger();
    };
    let (result, ()) = tokio::join!(run(&context, Arc::clone(&counter), queue, 8), finished);
    result.unwrap();
    assert_eq!(context.metrics.missed_wakeups("counter").get(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_only_told_is_not_told_because_a_resync_looked() {
    let context = Context::deaf();
    let state = Mutex::new(State { reached: BTreeMap::from([("a", REMARK - 1)]), ..State::default() });
    let counter = Arc::new(Counter { goals: BTreeMap::from([("a", REMARK)]), state, shared: false });
    let finished = async {
        tokio::time::sleep(RESYNC * 2).await;
        context.shutdown.trigger();
    };
    let (result, ()) = tokio::join!(run(&context, Arc::clone(&counter), Queue::new(Backoff::QUEUE), 8), finished);
    result.unwrap();
    assert_eq!(context.metrics.missed_wakeups("counter").get(), 0);
    assert_eq!(counter.state.lock().unwrap().reached["a"], REMARK - 1);
}

/// Needs a look before each try; the look succeeds, the try never does.
#[derive(Default)]
struct Looker {
    looked: Mutex<bool>,
    under_way: Arc<Mutex<bool>>,
    tries: Mutex<u32>,
    queue: std::sync::OnceLock<Queue<&'static str>>,
    refusal: std::sync::OnceLock<Error>,
}

impl Controller for Looker {
    type Key = &'static str;
    /// Whether a look is under way.
    type Snapshot = bool;
    type Action = ();
    type Why = ();

    const NAME: &'static str = "looker";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, _key: &&'static str, _reserved: &Reserved, _now: Timestamp) -> bool {
        *self.under_way.lock().unwrap()
    }

    fn decide(under_way: &bool, _now: Timestamp) -> Decision<(), ()> {
        if *under_way { Decision::wait_half_way(()) } else { Decision::act([()], ()) }
    }

    async fn apply(self: Arc<Self>, key: &'static str, (): ()) -> Result<(), Error> {
        if std::mem::take(&mut *self.looked.lock().unwrap()) {
            *self.tries.lock().unwrap() += 1;
            return Err(self.refusal.get().unwrap().clone());
        }
        *self.under_way.lock().unwrap() = true;
        let looker = Arc::clone(&self);
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            *looker.looked.lock().unwrap() = true;
            *looker.under_way.lock().unwrap() = false;
            looker.queue.get().unwrap().add(key);
        });
        Err(Error::Begun("a look"))
    }

    fn keys(&self) -> Vec<&'static str> {
        vec![]
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_look_that_succeeded_is_tried_again_with_a_backoff_that_grows() {
    for refusal in [Error::other(std::io::Error::other("no")), Error::Stale("it")] {
        let (context, looker, queue) = (Context::deaf(), Arc::new(Looker::default()), Queue::new(Backoff::QUEUE));
        assert!(looker.queue.set(queue.clone()).is_ok() && looker.refusal.set(refusal.clone()).is_ok());
        queue.add("a");
        let end = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            context.shutdown.trigger();
        };
        let (result, ()) = tokio::join!(run(&context, Arc::clone(&looker), queue, 8), end);
        result.unwrap();
        let tries = *looker.tries.lock().unwrap();
        assert!((5..40).contains(&tries), "{refusal:?}: {tries} tries in a minute");
    }
}

/// Writes, and gets no answer.
struct Unheard;

impl Controller for Unheard {
    type Key = &'static str;
    type Snapshot = ();
    type Action = ();
    type Why = ();

    const NAME: &'static str = "unheard";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, _key: &&'static str, _reserved: &Reserved, _now: Timestamp) {}

    fn decide((): &(), _now: Timestamp) -> Decision<(), ()> {
        Decision::act([()], ())
    }

    async fn apply(self: Arc<Self>, _key: &'static str, (): ()) -> Result<(), Error> {
        std::future::pending().await
    }

    fn keys(&self) -> Vec<&'static str> {
        vec![]
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_never_answered_does_not_keep_the_service_from_stopping() {
    let (context, queue, begin) = (Context::deaf(), Queue::new(Backoff::QUEUE), tokio::time::Instant::now());
    queue.add("a");
    let stopped = async {
        tokio::task::yield_now().await;
        context.shutdown.trigger();
    };
    let (result, ()) = tokio::join!(run(&context, Arc::new(Unheard), queue, 8), stopped);
    assert!(matches!(result, Err(Stop::Undrained { .. })), "the lease must not be given back");
    assert_eq!(begin.elapsed(), DRAIN);
}

/// Calls a driver that never answers.
struct Caller {
    operations: crate::operation::Operations<&'static str, ()>,
    queue: Queue<&'static str>,
}

impl Controller for Caller {
    type Key = &'static str;
    /// Whether the driver was called.
    type Snapshot = bool;
    type Action = ();
    type Why = ();

    const NAME: &'static str = "caller";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn begin(&self) {
        self.queue.add("a");
    }

    fn gather(&self, key: &&'static str, _reserved: &Reserved, _now: Timestamp) -> bool {
        self.operations.record(key).is_some()
    }

    fn decide(called: &bool, _now: Timestamp) -> Decision<(), ()> {
        if *called { Decision::rest(()) } else { Decision::act([()], ()) }
    }

    async fn apply(self: Arc<Self>, key: &'static str, (): ()) -> Result<(), Error> {
        self.operations.start(key, std::future::pending());
        Ok(())
    }

    fn keys(&self) -> Vec<&'static str> {
        vec!["a"]
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_a_driver_is_called_waits_for_it_and_says_that_it_did_not_end() {
    let (context, begin) = (Context::deaf(), tokio::time::Instant::now());
    let shutdown = context.shutdown.clone();
    let served = serve(context, 8, async |setup| {
        let operations = setup.operations(Backoff::DRIVER, |key: &&'static str| [*key]);
        Ok(Caller { operations, queue: setup.queue.clone() })
    });
    let stopped = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.trigger();
    };
    let (result, ()) = tokio::join!(served, stopped);
    assert!(matches!(result, Err(Stop::Undrained { .. })), "the lease must not be given back");
    assert_eq!(begin.elapsed(), Duration::from_secs(1) + DRAIN);
}

/// Does several things side by side, which fail each in its own way.
#[derive(Default)]
struct Troubled {
    /// How each round ended.
    failed: Mutex<Vec<usize>>,
}

impl Controller for Troubled {
    type Key = &'static str;
    type Snapshot = ();
    type Action = Option<Error>;
    type Why = ();

    const NAME: &'static str = "troubled";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, _key: &&'static str, _reserved: &Reserved, _now: Timestamp) {}

    fn decide((): &(), _now: Timestamp) -> Decision<Option<Error>, ()> {
        Decision::together([Some(Error::Begun("a look")), None, Some(Error::Stale("it")), Some(Error::Deposed)], ())
    }

    async fn apply(self: Arc<Self>, _key: &'static str, error: Option<Error>) -> Result<(), Error> {
        error.map_or(Ok(()), Err)
    }

    fn failed(&self, _key: &&'static str, errors: &[Error]) {
        self.failed.lock().unwrap().push(errors.len());
    }

    fn keys(&self) -> Vec<&'static str> {
        vec![]
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_that_fail_side_by_side_the_gravest_counts_and_all_are_told() {
    let (context, troubled, queue) = (Context::deaf(), Arc::new(Troubled::default()), Queue::new(Backoff::QUEUE));
    queue.add("a");
    let result = run(&context, Arc::clone(&troubled), queue, 8).await;
    assert!(matches!(result, Err(Stop::Unable { .. })), "who is deposed stops: {result:?}");
    assert_eq!(*troubled.failed.lock().unwrap(), [3]);
}

#[tokio::test(start_paused = true)]
async fn the_first_list_of_an_optional_kind_wakes_every_key_though_nothing_is_in_it() {
    let mut tasks = Tasks::new();
    let setup = Setup::new(Context::deaf(), tasks.spawner());
    let state = Mutex::default();
    let counter = Arc::new(Counter { goals: [("a", 1), ("b", 1)].into(), state, shared: false });
    let cache: Cache<VolumeSnapshot> = Cache::new();
    let mut watches = Watches::new(&setup, &counter);
    watches.optional(&cache, Scope::all(), |_, _| None);
    watches.begin().await;
    let pass = Duration::from_millis(10);
    assert!(tokio::time::timeout(pass, tasks.supervise()).await.is_err());
    assert_eq!(setup.queue.len(), 0, "nothing is known yet");
    cache.relist(Vec::new(), 1);
    assert!(tokio::time::timeout(pass, tasks.supervise()).await.is_err());
    assert_eq!(setup.queue.len(), 2);
}

/// Counts how often all its keys are looked at again, every so often.
struct Looking {
    period: Duration,
    looks: Mutex<usize>,
}

impl Controller for Looking {
    type Key = &'static str;
    type Snapshot = ();
    type Action = ();
    type Why = ();

    const NAME: &'static str = "looking";

    fn watches(&self, _watches: &mut Watches<'_, Self>) {}

    fn gather(&self, _key: &&'static str, _reserved: &Reserved, _now: Timestamp) {}

    fn decide((): &(), _now: Timestamp) -> Decision<(), ()> {
        Decision::rest(())
    }

    async fn apply(self: Arc<Self>, _key: &'static str, (): ()) -> Result<(), Error> {
        Ok(())
    }

    fn keys(&self) -> Vec<&'static str> {
        *self.looks.lock().unwrap() += 1;
        Vec::new()
    }

    fn resync(&self) -> Duration {
        self.period
    }
}

#[tokio::test(start_paused = true)]
async fn a_resync_of_no_period_never_comes() {
    for (period, is_looked) in [(Duration::from_secs(600), true), (Duration::ZERO, false)] {
        let looking = Arc::new(Looking { period, looks: Mutex::default() });
        let (context, queue) = (Context::deaf(), Queue::new(Backoff::QUEUE));
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, run(&context, Arc::clone(&looking), queue, 8)).await.is_err());
        assert_eq!(*looking.looks.lock().unwrap() > 0, is_looked, "{period:?}");
    }
}
