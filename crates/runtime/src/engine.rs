//! Decide, then apply: the one loop every controller runs, and the rooms that every controller has.
//!
//! `gather`, `decide` and `note` of a key happen on one task over caches that only move between decisions; applying is
//! concurrent. An action names the objects it touches: disjoint ones run side by side, and a key whose objects are busy
//! waits for them.

mod busy;
mod error;
mod objects;
mod quiet;
mod serve;
mod watches;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;

use stowage_model::object::ObjectId;

use crate::context::{Context, Stop};
use crate::queue::Queue;

pub use busy::Reserved;
pub use error::{Error, Retry};
pub use objects::Objects;
pub use quiet::assert_quiet;
pub use serve::{Setup, serve, serve_with};
pub use watches::{Watches, subscribe};

use busy::Parked;

/// Every decision is taken again this often, unless a controller says otherwise.
const RESYNC: Duration = Duration::from_secs(600);

/// A stale view is decided on again at once this often in a row, then with backoff.
const IMMEDIATE_RETRIES: u32 = 5;

/// Writes under way when the service stops are waited for so long: a server that asks to wait may ask for more, and who
/// stops us kills us in the end, before the lease is given back.
const DRAIN: Duration = Duration::from_secs(10);

/// What must happen next, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<A, W> {
    /// Carried out in this order, where the first failure ends the round, or side by side.
    pub actions: Vec<A>,
    /// Whether the actions are carried out side by side: then one in trouble does not hold up the others.
    pub side_by_side: bool,
    /// When to decide again even if nothing happens.
    pub wake_at: Option<Timestamp>,
    /// An object with a pending action whose end must be known first: the key is decided on again after it.
    pub after: Option<ObjectId>,
    /// Whether something that was begun for this key is under way: nothing has succeeded yet, so its backoff stays.
    pub is_half_way: bool,
    /// The reason, as a type.
    pub why: W,
}

impl<A, W> Decision<A, W> {
    /// Nothing to do.
    pub fn rest(why: W) -> Self {
        Self::act(Vec::new(), why)
    }

    /// Nothing to do until a moment.
    pub fn wait_until(at: Timestamp, why: W) -> Self {
        Self { wake_at: Some(at), ..Self::rest(why) }
    }

    /// Nothing to do before the action under way on this object has ended.
    pub fn wait_for(busy: ObjectId, why: W) -> Self {
        Self { after: Some(busy), ..Self::rest(why) }
    }

    /// Nothing to do before what was begun for this key has ended, which wakes it.
    pub fn wait_half_way(why: W) -> Self {
        Self { is_half_way: true, ..Self::rest(why) }
    }

    /// The same decision in terms of a wider action type.
    pub fn map<B>(self, f: impl FnMut(A) -> B) -> Decision<B, W> {
        let Self { actions, side_by_side, wake_at, after, is_half_way, why } = self;
        let actions = actions.into_iter().map(f).collect();
        Decision { actions, side_by_side, wake_at, after, is_half_way, why }
    }

    /// Do these, in order.
    pub fn act(actions: impl Into<Vec<A>>, why: W) -> Self {
        let actions = actions.into();
        Self { actions, side_by_side: false, wake_at: None, after: None, is_half_way: false, why }
    }

    /// Do these, side by side.
    pub fn together(actions: impl Into<Vec<A>>, why: W) -> Self {
        Self { side_by_side: true, ..Self::act(actions, why) }
    }
}

/// A controller: what it watches, what it reads, what it thinks, what it remembers and what it does, each in a room of
/// its own. Only `note` and `apply` change anything, and `decide` has no way to.
pub trait Controller: Sized + Send + Sync + 'static {
    /// What is decided on, for example a claim.
    type Key: Ord + Hash + Clone + Debug + Send + Sync + 'static;
    /// All that one decision is made from.
    type Snapshot;
    /// One write or the start of one operation.
    type Action: Debug + Send + 'static;
    /// Why a decision was taken.
    type Why: Debug;

    /// For logs and metrics.
    const NAME: &'static str;

    /// Declares what is cached, and which change wakes which keys.
    fn watches(&self, watches: &mut Watches<'_, Self>);

    /// Reads what a decision on the key needs, and changes nothing: twice without a change gives the same.
    fn gather(&self, key: &Self::Key, reserved: &Reserved, now: Timestamp) -> Self::Snapshot;

    /// What must happen next, and why. Pure: no state, client, clock or randomness.
    fn decide(snapshot: &Self::Snapshot, now: Timestamp) -> Decision<Self::Action, Self::Why>;

    /// Remembers a decision that is about to be carried out: memory and metrics. The resync's probe skips it.
    fn note(
        &self,
        _key: &Self::Key,
        _snapshot: &Self::Snapshot,
        _decision: &Decision<Self::Action, Self::Why>,
        _now: Timestamp,
    ) {
    }

    /// Carries out one action.
    fn apply(self: Arc<Self>, key: Self::Key, action: Self::Action) -> impl Future<Output = Result<(), Error>> + Send;

    /// Called when a round has ended in which something failed, with all that did.
    fn failed(&self, _key: &Self::Key, _errors: &[Error]) {}

    /// The objects these actions write besides what the key itself serialises.
    fn touches(&self, _key: &Self::Key, _actions: &[Self::Action]) -> Vec<ObjectId> {
        Vec::new()
    }

    /// The object that the key stands for, if it is one: while another key's action on it is under way, it is not
    /// decided on.
    fn subject(_key: &Self::Key) -> Option<ObjectId> {
        None
    }

    /// The name of the work queue that the original has for such a key, for its metrics.
    fn queue_name(_key: &Self::Key) -> &'static str {
        Self::NAME
    }

    /// What the names of all its queues begin with: some originals name theirs after the driver.
    fn queue_prefix(&self) -> String {
        String::new()
    }

    /// Whether an action is work: what only tells people something need not be announced by an event, nor be told
    /// because a resync looked.
    fn is_work(_action: &Self::Action) -> bool {
        true
    }

    /// Every key there is, for the resync.
    fn keys(&self) -> Vec<Self::Key>;

    /// How often every decision is taken again, as a net under missed events; zero for never.
    fn resync(&self) -> Duration {
        RESYNC
    }

    /// Called once, when all that is watched is known and nothing is decided yet.
    fn begin(&self) {}

    /// Called once after a shutdown, when nothing is being carried out any more; who stops us does not wait for long.
    fn end(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

struct Round<K> {
    key: K,
    touched: Vec<ObjectId>,
    /// Of actions side by side there may be several.
    failed: Vec<Error>,
}

/// Runs a controller until shutdown, then waits for the actions under way, but not for ever.
pub async fn run<C: Controller>(
    context: &Context,
    controller: Arc<C>,
    queue: Queue<C::Key>,
    parallel: usize,
) -> Result<(), Stop> {
    let decisions = context.metrics.decisions(C::NAME);
    let missed = context.metrics.missed_wakeups(C::NAME);
    queue.measure(&context.metrics, controller.queue_prefix(), C::queue_name);
    let mut reserved = Reserved::default();
    let mut parked: Parked<C::Key> = Parked::default();
    let mut stale: BTreeMap<C::Key, u32> = BTreeMap::new();
    let mut rounds = FuturesUnordered::new();
    let pause = || {
        let period = controller.resync();
        let sleep = (!period.is_zero()).then(|| tokio::time::sleep(context.random.jitter(period, 0.2)));
        async move {
            match sleep {
                Some(sleep) => sleep.await,
                None => std::future::pending().await,
            }
        }
    };
    let mut resync = Box::pin(pause());
    let mut stopping = pin!(context.shutdown.requested());
    // Kept while rounds end, with the timer of whatever is delayed.
    let mut next = pin!(queue.next());
    loop {
        // What has ended comes before what is to begin: it frees objects, and its answers are in the caches that the next
        // key is decided on. The resync comes last, for it only looks for what was missed.
        tokio::select! {
            biased;
            () = &mut stopping => break,
            Some(round) = rounds.next() => {
                let Round { key, touched, failed }: Round<C::Key> = round;
                if !failed.is_empty() {
                    controller.failed(&key, &failed);
                }
                touched.iter().for_each(|id| reserved.remove(id));
                // Before those that waited for its objects: what is begun is finished first.
                settle(&queue, &mut stale, key, &failed)?;
                for id in &touched {
                    parked.take(id).for_each(|waiting| queue.add(waiting));
                }
            }
            key = &mut next, if rounds.len() < parallel => {
                next.set(queue.next());
                if let Some(busy) = C::subject(&key).filter(|subject| reserved.contains(subject)) {
                    parked.insert(busy, key.clone());
                    queue.done(&key);
                    continue;
                }
                decisions.inc();
                let now = context.clock.now();
                let snapshot = controller.gather(&key, &reserved, now);
                let decision = C::decide(&snapshot, now);
                // Before the actions begin, for the end of one may already ask for what is remembered here.
                controller.note(&key, &snapshot, &decision, now);
                drop(snapshot);
                tracing::debug!(controller = C::NAME, ?key, why = ?decision.why, actions = ?decision.actions, "decided");
                if let Some(at) = decision.wake_at {
                    queue.add_after(key.clone(), until(now, at));
                }
                if let Some(busy) = decision.after.filter(|busy| reserved.contains(busy)) {
                    parked.insert(busy, key.clone());
                }
                if decision.actions.is_empty() {
                    if !decision.is_half_way {
                        queue.forget(&key);
                        stale.remove(&key);
                    }
                    queue.done(&key);
                    continue;
                }
                let touched = controller.touches(&key, &decision.actions);
                if let Some(busy) = reserved.overlaps(&touched) {
                    parked.insert(busy, key.clone());
                    queue.done(&key);
                    continue;
                }
                // Before any other key is gathered: from here on nobody decides on these objects until the round has ended.
                touched.iter().for_each(|id| reserved.insert(id.clone()));
                let controller = Arc::clone(&controller);
                rounds.push(async move {
                    let failed = carry_out(controller, &key, decision.actions, decision.side_by_side).await;
                    Round { key, touched, failed }
                });
            }
            () = &mut resync => {
                let now = context.clock.now();
                let waiting = parked.keys();
                for key in controller.keys() {
                    if !queue.is_idle(&key) || waiting.contains(&key) {
                        continue;
                    }
                    // A probe: nothing is noted and nothing done.
                    let decision = C::decide(&controller.gather(&key, &reserved, now), now);
                    if decision.actions.iter().any(C::is_work) {
                        missed.inc();
                        tracing::warn!(controller = C::NAME, ?key, "the resync found work that no event announced");
                        queue.add(key);
                    } else if let Some(at) = decision.wake_at {
                        // Of a key whose event was missed nobody knows yet when it is to be decided on.
                        queue.add_after(key, until(now, at));
                    }
                }
                resync = Box::pin(pause());
            }
        }
    }
    // So that their answers are not lost; what came of those that are left is read at the next start.
    let drained = async { while rounds.next().await.is_some() {} };
    tokio::time::timeout(DRAIN, drained).await.map_err(|_| Stop::Undrained { what: "writes" })
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    at.duration_since(now).max(jiff::SignedDuration::ZERO).unsigned_abs().max(Duration::from_millis(1))
}

/// Carries out the actions of one decision; says what failed.
async fn carry_out<C: Controller>(
    controller: Arc<C>,
    key: &C::Key,
    actions: Vec<C::Action>,
    side_by_side: bool,
) -> Vec<Error> {
    if side_by_side {
        // All answers are waited for: a write that is dropped is a write unknown.
        let apply = |action| Arc::clone(&controller).apply(key.clone(), action);
        return join_all(actions.into_iter().map(apply)).await.into_iter().filter_map(Result::err).collect();
    }
    for action in actions {
        if let Err(error) = Arc::clone(&controller).apply(key.clone(), action).await {
            return vec![error];
        }
    }
    Vec::new()
}

fn settle<K: Ord + Hash + Clone + Debug>(
    queue: &Queue<K>,
    stale: &mut BTreeMap<K, u32>,
    key: K,
    failed: &[Error],
) -> Result<(), Stop> {
    match failed.iter().rev().max_by_key(|error| error.weight()) {
        None => {
            stale.remove(&key);
            // Deciding again gives the next step, or proves that the last one did what it should.
            queue.go_on(key.clone());
        }
        Some(error) => match error.retry() {
            Retry::Stop => return Err(Stop::Unable { reason: error.to_string() }),
            Retry::Now if is_tried_at_once(stale, &key) => {
                tracing::debug!(?key, %error, "view was stale, deciding again");
                queue.add(key.clone());
            }
            Retry::Now => {
                let delay = queue.retry(&key);
                tracing::info!(?key, %error, ?delay, "view keeps being stale");
            }
            Retry::Wait => tracing::debug!(?key, %error, "waiting"),
            Retry::Later => {
                let delay = queue.retry(&key);
                tracing::warn!(?key, %error, ?delay, "action failed");
                // What was only stale beside it does not wait for that.
                if failed.iter().any(|error| error.retry() == Retry::Now) && is_tried_at_once(stale, &key) {
                    queue.add(key.clone());
                }
            }
        },
    }
    queue.done(&key);
    Ok(())
}

fn is_tried_at_once<K: Ord + Clone>(stale: &mut BTreeMap<K, u32>, key: &K) -> bool {
    let tries = stale.entry(key.clone()).or_insert(0);
    *tries += 1;
    *tries <= IMMEDIATE_RETRIES
}

#[cfg(test)]
mod tests;
