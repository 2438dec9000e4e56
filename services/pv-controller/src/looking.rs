//! Fresh looks at the pods of a namespace, shared: of many claims that are deleted at once each needs one that began after
//! it was decided on, and none needs its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::Semaphore;

use stowage_model::volume::ClaimRef;
use stowage_model::{Claim, Pod};
use stowage_runtime::api::{self, Api};
use stowage_runtime::cache::Cache;

/// The claim that a volume refers to, as it is now. A reference without a name refers to nothing.
pub async fn claim_of(api: &Api, claims: &Cache<Claim>, held: &ClaimRef) -> Result<Option<Arc<Claim>>, api::Error> {
    if held.name.is_empty() { Ok(None) } else { api.refresh(claims, &held.key()).await }
}

type Lanes = Mutex<BTreeMap<String, Lane>>;
type Found = Result<Arc<Vec<Arc<Pod>>>, Arc<api::Error>>;
type Look = Shared<BoxFuture<'static, Found>>;

/// One namespace.
struct Lane {
    /// One look at a time.
    turn: Arc<Semaphore>,
    /// The look that has not begun yet: whoever asks now shares it.
    next: Option<Look>,
}

#[derive(Clone)]
pub struct Looking {
    api: Api,
    cache: Cache<Pod>,
    lanes: Arc<Lanes>,
}

impl Looking {
    pub fn new(api: Api, cache: Cache<Pod>) -> Self {
        Self { api, cache, lanes: Arc::default() }
    }

    /// All pods of a namespace, by a list that begins after this was asked.
    pub async fn pods(&self, namespace: &str) -> Found {
        let look = {
            let mut lanes = lock(&self.lanes);
            let new = || Lane { turn: Arc::new(Semaphore::new(1)), next: None };
            let lane = lanes.entry(namespace.to_owned()).or_insert_with(new);
            let turn = Arc::clone(&lane.turn);
            let (api, cache, lanes) = (self.api.clone(), self.cache.clone(), Arc::downgrade(&self.lanes));
            let new = || look(api, cache, lanes, namespace.to_owned(), turn).boxed().shared();
            lane.next.get_or_insert_with(new).clone()
        };
        look.await
    }
}

/// Holds the lanes loosely: it waits in one of them.
async fn look(api: Api, cache: Cache<Pod>, lanes: Weak<Lanes>, namespace: String, turn: Arc<Semaphore>) -> Found {
    // It is never closed; without a turn the look would only be one of several.
    let turn = turn.acquire().await;
    if let Some(lanes) = lanes.upgrade()
        && let Some(lane) = lock(&lanes).get_mut(&namespace)
    {
        lane.next = None;
    }
    let found = api.list::<Pod>(&namespace, "").await;
    drop(turn);
    if let Some(lanes) = lanes.upgrade() {
        let mut lanes = lock(&lanes);
        if lanes.get(&namespace).is_some_and(|lane| lane.next.is_none()) {
            lanes.remove(&namespace);
        }
    }
    let pods: Vec<Arc<Pod>> = found.map_err(Arc::new)?.into_iter().map(Arc::new).collect();
    pods.iter().for_each(|pod| _ = cache.observe_shared(Arc::clone(pod)));
    Ok(Arc::new(pods))
}

fn lock(lanes: &Lanes) -> MutexGuard<'_, BTreeMap<String, Lane>> {
    lanes.lock().expect("no code panics while holding the lanes")
}
