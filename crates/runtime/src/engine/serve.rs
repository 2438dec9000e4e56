//! A controller's life: it is made, it looks, and only then it decides.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use super::{Controller, DRAIN, Watches, run};
use crate::backoff::Backoff;
use crate::context::{Context, Stop};
use crate::events::Recorder;
use crate::operation::{Operations, Running};
use crate::queue::Queue;
use crate::tasks::{Spawner, Tasks};

/// What a controller is made with.
pub struct Setup<K> {
    /// The world outside.
    pub context: Context,
    /// Owns the tasks that live as long as the controller.
    pub spawner: Spawner,
    /// Where keys wait for their decision.
    pub queue: Queue<K>,
    /// The operations under way.
    pub running: Running,
}

impl<K: Ord + Hash + Clone + Debug + Send + Sync + 'static> Setup<K> {
    /// An empty queue in this world.
    pub fn new(context: Context, spawner: Spawner) -> Self {
        Self::with_backoff(context, spawner, Backoff::QUEUE)
    }

    /// The same, with another wait between failed actions.
    pub fn with_backoff(context: Context, spawner: Spawner, backoff: Backoff) -> Self {
        Self { context, spawner, queue: Queue::new(backoff), running: Running::default() }
    }

    /// Operations of one sort; the end of one wakes these keys, before those that are new: what is begun is finished first.
    pub fn operations<S, R, I>(
        &self,
        backoff: Backoff,
        wakes: impl Fn(&S) -> I + Send + Sync + 'static,
    ) -> Operations<S, R>
    where
        S: Ord + Clone + Debug + Send + Sync + 'static,
        R: Clone + Send + 'static,
        I: IntoIterator<Item = K>,
    {
        let queue = self.queue.clone();
        let (running, clock) = (self.running.clone(), Arc::clone(&self.context.clock));
        let on_end = move |subject: &S| wakes(subject).into_iter().for_each(|key| queue.go_on(key));
        Operations::counted(running, self.spawner.clone(), clock, backoff, on_end)
    }

    /// Events under a component's name.
    pub fn recorder(&self, component: impl Into<String>) -> Recorder {
        self.context.recorder(component, &self.spawner)
    }
}

/// Runs a controller until shutdown: makes it, waits until all that it watches is known, then decides, `parallel` keys at a
/// time.
pub async fn serve<C: Controller>(
    context: Context,
    parallel: usize,
    make: impl AsyncFnOnce(&Setup<C::Key>) -> Result<C, Stop>,
) -> Result<(), Stop> {
    serve_with(context, parallel, Backoff::QUEUE, make).await
}

/// The same, with another wait between failed actions of a key.
pub async fn serve_with<C: Controller>(
    context: Context,
    parallel: usize,
    backoff: Backoff,
    make: impl AsyncFnOnce(&Setup<C::Key>) -> Result<C, Stop>,
) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let setup = Setup::with_backoff(context.clone(), tasks.spawner(), backoff);
    let begun = context.readiness.handle(C::NAME);
    let work = async {
        let prepared = async {
            let controller = Arc::new(make(&setup).await?);
            let mut watches = Watches::new(&setup, &controller);
            controller.watches(&mut watches);
            watches.begin().await;
            Ok::<_, Stop>(controller)
        };
        // A shutdown must not wait for a driver or an API server that never answers.
        let Some(controller) = context.unless_shutdown(prepared).await else { return Ok(()) };
        let controller = controller?;
        controller.begin();
        begun.ready();
        let written = match run(&context, Arc::clone(&controller), setup.queue.clone(), parallel).await {
            drained @ (Ok(()) | Err(Stop::Undrained { .. })) => drained,
            failed => return failed,
        };
        // Before the lease is given to somebody who would call the driver for the same volume. What is not waited for is
        // replayed by its record.
        let idle = tokio::time::timeout(DRAIN, setup.running.none());
        let (idle, ()) = tokio::join!(idle, controller.end());
        written?;
        idle.map_err(|_| Stop::Undrained { what: "driver calls" })
    };
    context.supervise(tasks, work).await
}
