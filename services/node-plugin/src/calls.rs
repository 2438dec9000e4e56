//! Calls in progress: how many there may be, and that each is carried through.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::{Response, Status};

use stowage_csi::server::{self, Listener};

/// Calls to the controller that make changes at the same time: more would wait for the same disk, and each takes memory.
const MOST_CONTROLLER_CALLS: usize = 32;
/// The same for calls to the node, which have places of their own: no pod waits for somebody's long copies.
const MOST_NODE_CALLS: usize = 16;
/// Threads that wait for the kernel: one for each call.
pub const MOST_CALLS: usize = MOST_CONTROLLER_CALLS + MOST_NODE_CALLS;

/// How long the last calls may take before it is said which they are. Most take milliseconds.
const LATE: Duration = Duration::from_secs(5);

/// Which half of the driver a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Controller,
    Node,
}

pub struct Calls {
    running: TaskTracker,
    /// How many there are of which call, for those who wait for them.
    names: Names,
    controller_places: Arc<Semaphore>,
    node_places: Arc<Semaphore>,
}

impl Default for Calls {
    fn default() -> Self {
        Calls {
            running: TaskTracker::new(),
            names: Names::default(),
            controller_places: Arc::new(Semaphore::new(MOST_CONTROLLER_CALLS)),
            node_places: Arc::new(Semaphore::new(MOST_NODE_CALLS)),
        }
    }
}

#[derive(Clone, Default)]
struct Names(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Names {
    fn all(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &'static str) -> Named {
        *self.all().entry(name).or_default() += 1;
        Named { names: self.clone(), name }
    }
}

/// Taken away on drop.
struct Named {
    names: Names,
    name: &'static str,
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut names = self.names.all();
        match names.get_mut(self.name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(names.remove(self.name)),
        }
    }
}

impl Calls {
    /// Serves until `shutdown`, then waits for the calls in progress, and says which they are if they are late.
    pub async fn serve(
        &self,
        listener: Listener,
        routes: Routes,
        shutdown: BoxFuture<'static, ()>,
    ) -> Result<(), server::Error> {
        let shutdown = shutdown.shared();
        let served = async {
            let served = listener.serve(routes, shutdown.clone()).await;
            self.drain().await;
            served
        };
        let late = async {
            shutdown.clone().await;
            tokio::time::sleep(LATE).await;
            tracing::warn!(calls = self.in_progress(), "the last calls are late; is a disk or a server away?");
            std::future::pending().await
        };
        tokio::select! {
            biased;
            served = served => served,
            never = late => never,
        }
    }

    fn named(
        &self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let named = self.names.add(name);
        async move {
            let _named = named;
            work.await;
        }
    }

    /// The calls that were let in and are not done.
    fn in_progress(&self) -> String {
        let names = self.names.all();
        names.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Runs what goes on after a call was answered; the driver does not stop before its end.
    pub fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(self.named("what an answered call left to do", work));
    }

    /// The same for what a call waits for, whose caller may give up.
    pub async fn keep_and_wait(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.running.spawn(self.named("recovery of pools", work)).await {
            tracing::error!(%error, "looking after what is left was not finished");
        }
    }

    /// Waits for the calls in progress, also those whose callers have gone.
    pub async fn drain(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Runs a call to its end even if the caller gives up: half a change is worse than a late one, and the volume
    /// stays locked meanwhile.
    pub async fn finish<T, E, F>(&self, side: Side, rpc: &'static str, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        E: Into<Status> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let places = match side {
            Side::Controller => &self.controller_places,
            Side::Node => &self.node_places,
        };
        // A call that waits here has changed nothing, so its caller may give up.
        let place = places.clone().acquire_owned().await;
        let (answer, mut answered) = oneshot::channel();
        // All of one type, so that what runs them is compiled once and not for each call.
        let placed: BoxFuture<'static, ()> = Box::pin(self.named(rpc, async move {
            let _place = place;
            let _ = answer.send(call.await.map_err(Into::into));
        }));
        let unfinished = |why: &dyn Display| Status::unavailable(format!("the call did not finish: {why}; repeat it"));
        let answer = match self.running.spawn(placed).await {
            Ok(()) => answered.try_recv().unwrap_or_else(|error| Err(unfinished(&error))),
            Err(error) => Err(unfinished(&error)),
        };
        match &answer {
            Ok(_) => tracing::debug!(rpc, "done"),
            Err(status) => tracing::warn!(rpc, code = ?status.code(), message = status.message(), "refused"),
        }
        answer.map(Response::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_call_for_a_pod_waits_for_the_controllers_long_ones() {
        let calls = Arc::new(Calls::default());
        let (_forever, end) = tokio::sync::watch::channel(false);
        let copy = || {
            let (calls, mut end) = (Arc::clone(&calls), end.clone());
            tokio::spawn(async move {
                let copying = async move { end.wait_for(|ended| *ended).await.map(drop).map_err(|_| Status::ok("")) };
                calls.finish(Side::Controller, "CreateSnapshot", copying).await
            })
        };
        let copies: Vec<_> = (0..MOST_CONTROLLER_CALLS).map(|_| copy()).collect();
        while calls.controller_places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        tokio::select! {
            biased;
            _ = calls.finish(Side::Controller, "DeleteVolume", async { Ok::<_, Status>(()) }) => {
                panic!("it is one too many")
            }
            () = tokio::task::yield_now() => {}
        }
        calls.finish(Side::Node, "NodeUnpublishVolume", async { Ok::<_, Status>(()) }).await.unwrap();
        let copying = format!("CreateSnapshot: {MOST_CONTROLLER_CALLS}");
        assert_eq!(calls.in_progress(), copying, "those that wait are not in progress, and those that ended are gone");
        copies.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
