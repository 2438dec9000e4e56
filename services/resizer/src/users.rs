//! Which pods use a claim that its driver does not expand in use.
//!
//! Most drivers expand in use, and then no pod is ever looked at. The pods of a namespace are watched from the first such
//! refusal on for as long as one of its claims waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use stowage_model::object::Key;
use stowage_runtime::Context;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Setup;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Spawner;
use stowage_runtime::watch::{self, Scope};

use crate::projections::UsingPod;

/// What has ended uses nothing.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What is known about a claim's users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Nobody looks.
    Unwatched,
    /// The first list has not come yet.
    Unlisted,
    /// The names of the pods.
    Pods(Vec<String>),
}

struct Watched {
    pods: Cache<UsingPod>,
    /// Claims of the namespace that wait.
    waiting: BTreeSet<Key>,
    stop: Arc<Notify>,
}

type Namespaces = BTreeMap<String, Watched>;

/// Clones share the watches.
#[derive(Clone)]
pub struct Watching {
    context: Context,
    spawner: Spawner,
    queue: Queue<Key>,
    namespaces: Arc<Mutex<Namespaces>>,
}

impl Watching {
    pub fn new(setup: &Setup<Key>) -> Self {
        let (context, spawner) = (setup.context.clone(), setup.spawner.clone());
        Self { context, spawner, queue: setup.queue.clone(), namespaces: Arc::default() }
    }

    pub fn users(&self, claim: &Key) -> Users {
        let namespaces = self.lock();
        match namespaces.get(&claim.namespace).filter(|watched| watched.waiting.contains(claim)) {
            None => Users::Unwatched,
            Some(watched) if !watched.pods.is_synced() => Users::Unlisted,
            Some(watched) => {
                let pods = watched.pods.by_index("claim", &claim.name);
                Users::Pods(pods.iter().map(|pod| pod.meta.name.clone()).collect())
            }
        }
    }

    /// Watches the pods of the claim's namespace; whatever changes about its users wakes the claim.
    pub fn begin(&self, claim: &Key) {
        let mut namespaces = self.lock();
        if let Some(watched) = namespaces.get_mut(&claim.namespace) {
            watched.waiting.insert(claim.clone());
            return;
        }
        let pods: Cache<UsingPod> =
            Cache::indexed(&[("claim", |pod| pod.claims.iter().map(|c| c.to_string()).collect())]);
        let (namespace, queue) = (claim.namespace.clone(), self.queue.clone());
        pods.on_change(move |change| {
            let claims: BTreeSet<&str> = change.both().flat_map(|pod| pod.claims.iter().map(|name| &**name)).collect();
            claims.into_iter().for_each(|name| queue.add(Key::namespaced(namespace.as_str(), name)));
        });
        let scope = Scope { field_selector: NOT_ENDED.into(), ..Scope::namespace(claim.namespace.as_str()) };
        let feed = watch::feed(self.context.api.clone(), pods.clone(), scope, self.context.random.clone());
        let (stop, listed, watching) = (Arc::new(Notify::new()), pods.clone(), self.clone());
        let (stopped, namespace) = (Arc::clone(&stop), claim.namespace.clone());
        self.spawner.spawn(async move {
            let announced = async {
                listed.synced().await;
                let waiting = watching.lock().get(&namespace).map(|watched| watched.waiting.clone());
                waiting.into_iter().flatten().for_each(|claim| watching.queue.add(claim));
            };
            tokio::select! {
                biased;
                () = stopped.notified() => {}
                ((), ()) = async { tokio::join!(feed, announced) } => {}
            }
        });
        let waiting = BTreeSet::from([claim.clone()]);
        namespaces.insert(claim.namespace.clone(), Watched { pods, waiting, stop });
    }

    /// The claim does not wait any more; the last one of its namespace ends the watch.
    pub fn end(&self, claim: &Key) {
        let mut namespaces = self.lock();
        if let Some(watched) = namespaces.get_mut(&claim.namespace) {
            watched.waiting.remove(claim);
            if watched.waiting.is_empty() {
                watched.stop.notify_one();
                namespaces.remove(&claim.namespace);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Namespaces> {
        self.namespaces.lock().expect("no code panics while holding the watches")
    }
}
