//! What benchmarks share: a server with claims, a client that counts, a user with many requests in flight, and words of the
//! command line. Unlike the rest of this crate, they run in real time on real sockets.

mod bound;
mod counting;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::task::JoinHandle;

use stowage_model::object::Projection;
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

pub use bound::BoundClaims;
pub use counting::{Counted, Counting, Counts};

/// Requests in flight, of the user and of the bare server.
pub const IN_FLIGHT: usize = 64;

/// Aborts its task when dropped.
pub struct Running(pub JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does something for each number, [`IN_FLIGHT`] at once.
pub async fn each<F: Future<Output = ()> + Send + 'static>(count: usize, act: impl Fn(usize) -> F) {
    let tasks = futures::stream::iter(0..count).map(|n| {
        let task = tokio::spawn(act(n));
        async move { task.await.expect("what a benchmark does for one object does not panic") }
    });
    tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
}

/// Every object of a kind as a user sees it, from now on.
pub async fn watch<T: Projection>(user: &Api) -> (Cache<T>, Running) {
    let cache = Cache::new();
    let fed = watch::feed(user.clone(), cache.clone(), Scope::all(), Random::from_os());
    let running = Running(tokio::spawn(fed));
    cache.synced().await;
    (cache, running)
}

/// Waits until so many objects are as wanted, or have been.
pub async fn until<T: Projection>(objects: &Cache<T>, count: usize, is_so: fn(&T) -> bool) {
    let (sender, mut seen) = tokio::sync::watch::channel(BTreeSet::new());
    objects.on_change(move |change| {
        if change.after.is_some_and(|object| is_so(object)) {
            sender.send_if_modified(|seen| seen.insert(change.key.clone()));
        }
    });
    // Those that were so before anybody listened.
    objects.replay();
    seen.wait_for(|seen| seen.len() >= count).await.expect("the cache outlives its watch");
}

/// Until none of them has asked for anything for a while: the one place where a benchmark has to wait by the clock.
pub async fn quiet(counts: &[Arc<Counts>]) {
    let all = || counts.iter().map(|of| of.all()).sum();
    let mut last: u64 = u64::MAX;
    while last != all() {
        last = all();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

/// The median.
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What follows this flag on the command line.
pub fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).map(String::as_str)
}

/// The numbers that follow this flag, separated by commas.
///
/// # Panics
/// If one of them is no number.
pub fn numbers(words: &[String], flag: &str, default: &str) -> Vec<usize> {
    let number = |text: &str| text.parse().expect("what is asked for is numbers with commas between them");
    value(words, flag).unwrap_or(default).split(',').map(number).collect()
}
