//! A watch of exactly the objects that pods of this node name, each for as long as one of them does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use stowage_model::node_view::NodeResources;
use stowage_model::object::{Key, Projection};
use stowage_model::{ClusterTrustBundle, ConfigMap, Quantity, Secret};
use stowage_runtime::Context;
use stowage_runtime::api;
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::watch::{self, Scope};

use super::{Bundles, Objects, SourceId};

/// How long a volume waits for the first list of an object. Then it is read once, live, which says what the trouble is.
const PATIENCE: Duration = Duration::from_secs(3);

/// Called with what has changed; must not block.
type OnChange = Arc<dyn Fn(&SourceId) + Send + Sync>;

/// The objects that the pods of one node name. Only in memory, and gone when nobody names them any more.
#[derive(Clone)]
pub struct WatchedObjects(Arc<Inner>);

struct Inner {
    context: Context,
    node_name: String,
    on_change: OnChange,
    state: Mutex<State>,
    started: mpsc::UnboundedSender<Feed>,
}

#[derive(Default)]
struct State {
    /// What each pod names, by its uid.
    named: BTreeMap<String, BTreeSet<SourceId>>,
    watched: BTreeMap<SourceId, Watched>,
    /// The node's own object, from the first volume on whose size depends on it.
    node: Option<Cache<NodeResources>>,
}

struct Watched {
    /// How many pods name it.
    pods: usize,
    cache: AnyCache,
    feed: AbortHandle,
}

#[derive(Clone)]
enum AnyCache {
    ConfigMaps(Cache<ConfigMap>),
    Secrets(Cache<Secret>),
    TrustBundles(Cache<ClusterTrustBundle>),
}

type Feed = Abortable<BoxFuture<'static, ()>>;

/// What keeps the watches going; it lives as long as the service does.
pub struct Feeds(mpsc::UnboundedReceiver<Feed>);

impl Feeds {
    /// Runs the watches that are started, for ever.
    pub async fn run(mut self) {
        let mut running: FuturesUnordered<Feed> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                started = self.0.recv() => match started {
                    Some(feed) => running.push(feed),
                    None => return,
                },
                Some(Ok(()) | Err(Aborted)) = running.next() => {}
            }
        }
    }
}

impl WatchedObjects {
    /// Watches nothing yet. `on_change` hears of every object that comes, changes or goes; [`Feeds::run`] must be run.
    pub fn new(
        context: Context,
        node_name: impl Into<String>,
        on_change: impl Fn(&SourceId) + Send + Sync + 'static,
    ) -> (Self, Feeds) {
        let (started, feeds) = mpsc::unbounded_channel();
        let (node_name, on_change) = (node_name.into(), Arc::new(on_change));
        let inner = Inner { context, node_name, on_change, state: Mutex::default(), started };
        (Self(Arc::new(inner)), Feeds(feeds))
    }

    /// The pod of this uid names exactly these; nothing else of what it named before is watched for it.
    pub fn keep(&self, pod_uid: &str, sources: impl IntoIterator<Item = SourceId>) {
        let wanted: BTreeSet<SourceId> = sources.into_iter().collect();
        let mut state = self.lock();
        let before = match wanted.is_empty() {
            true => state.named.remove(pod_uid).unwrap_or_default(),
            false => state.named.insert(pod_uid.to_owned(), wanted.clone()).unwrap_or_default(),
        };
        for source in wanted.difference(&before) {
            match state.watched.get_mut(source) {
                Some(watched) => watched.pods += 1,
                None => {
                    let watched = self.start(source);
                    state.watched.insert(source.clone(), watched);
                }
            }
        }
        for source in before.difference(&wanted) {
            let Some(watched) = state.watched.get_mut(source) else { continue };
            watched.pods -= 1;
            if watched.pods == 0 {
                watched.feed.abort();
                state.watched.remove(source);
            }
        }
    }

    /// The pod of this uid is gone.
    pub fn release(&self, pod_uid: &str) {
        self.keep(pod_uid, []);
    }

    /// What is watched, and for how many pods.
    pub fn watched(&self) -> Vec<(SourceId, usize)> {
        self.lock().watched.iter().map(|(source, watched)| (source.clone(), watched.pods)).collect()
    }

    /// The uids of the pods that name it.
    pub fn pods_of(&self, source: &SourceId) -> Vec<String> {
        let state = self.lock();
        state.named.iter().filter(|(_, named)| named.contains(source)).map(|(uid, _)| uid.clone()).collect()
    }

    fn start(&self, source: &SourceId) -> Watched {
        let (cache, feed) = match source {
            SourceId::ConfigMap(key) => {
                let (cache, feed) = self.feed(source, one(key));
                (AnyCache::ConfigMaps(cache), feed)
            }
            SourceId::Secret(key) => {
                let (cache, feed) = self.feed(source, one(key));
                (AnyCache::Secrets(cache), feed)
            }
            SourceId::TrustBundle(name) => {
                let (cache, feed) = self.feed(source, one(&Key::cluster(name.as_str())));
                (AnyCache::TrustBundles(cache), feed)
            }
            SourceId::TrustBundlesOf(signer) => {
                let (cache, feed) = self.feed(source, of_signer(signer));
                (AnyCache::TrustBundles(cache), feed)
            }
        };
        let (abort, registration) = AbortHandle::new_pair();
        // Refused only when the service has ended, and with it the wish.
        let _ = self.0.started.send(Abortable::new(feed, registration));
        Watched { pods: 1, cache, feed: abort }
    }

    fn feed<T: Projection>(&self, source: &SourceId, scope: Scope) -> (Cache<T>, BoxFuture<'static, ()>) {
        let cache: Cache<T> = Cache::new();
        let (on_change, changed) = (Arc::clone(&self.0.on_change), source.clone());
        cache.on_change(move |_| on_change(&changed));
        let context = &self.0.context;
        (cache.clone(), watch::feed(context.api.clone(), cache, scope, context.random.clone()))
    }

    fn node_key(&self) -> Key {
        Key::cluster(self.0.node_name.as_str())
    }

    /// The node's own object, watched from now on; none where nobody runs the feeds.
    fn node(&self) -> Option<Cache<NodeResources>> {
        let mut state = self.lock();
        if state.node.is_none() {
            let (cache, context) = (Cache::new(), &self.0.context);
            let feed = watch::feed(context.api.clone(), cache.clone(), one(&self.node_key()), context.random.clone());
            let (_, registration) = AbortHandle::new_pair();
            state.node = self.0.started.send(Abortable::new(feed, registration)).is_ok().then_some(cache);
        }
        state.node.clone()
    }

    fn cache(&self, source: &SourceId) -> Option<AnyCache> {
        self.lock().watched.get(source).map(|watched| watched.cache.clone())
    }

    async fn object<T: Projection>(&self, cache: Option<&Cache<T>>, key: &Key) -> Result<Option<Arc<T>>, api::Error> {
        match cache {
            Some(cache) if tokio::time::timeout(PATIENCE, cache.synced()).await.is_ok() => match cache.view(key) {
                View::Known(object) => Ok(Some(object)),
                View::Absent => Ok(None),
                View::Unknown => Ok(self.0.context.api.get(key).await?.map(Arc::new)),
            },
            // No pod names it, or the list does not come: what one read says is as true, only not followed.
            _ => Ok(self.0.context.api.get(key).await?.map(Arc::new)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no code panics while holding the objects")
    }
}

fn one(key: &Key) -> Scope {
    Scope {
        namespace: key.namespace.clone(),
        field_selector: format!("metadata.name={}", in_selector(&key.name)),
        ..Scope::default()
    }
}

fn of_signer(signer: &str) -> Scope {
    Scope::fields(format!("spec.signerName={}", in_selector(signer)))
}

/// A value in a field selector. Nobody has checked the names that a pod gives, and none may become a condition more.
fn in_selector(value: &str) -> String {
    value.chars().fold(String::with_capacity(value.len()), |mut text, letter| {
        if matches!(letter, '\\' | ',' | '=') {
            text.push('\\');
        }
        text.push(letter);
        text
    })
}

#[async_trait]
impl Objects for WatchedObjects {
    async fn config_map(&self, key: &Key) -> Result<Option<Arc<ConfigMap>>, api::Error> {
        match self.cache(&SourceId::ConfigMap(key.clone())) {
            Some(AnyCache::ConfigMaps(cache)) => self.object(Some(&cache), key).await,
            _ => self.object(None, key).await,
        }
    }

    async fn secret(&self, key: &Key) -> Result<Option<Arc<Secret>>, api::Error> {
        match self.cache(&SourceId::Secret(key.clone())) {
            Some(AnyCache::Secrets(cache)) => self.object(Some(&cache), key).await,
            _ => self.object(None, key).await,
        }
    }

    async fn trust_bundles(&self, wanted: &Bundles) -> Result<Vec<Arc<ClusterTrustBundle>>, api::Error> {
        let source = match wanted {
            Bundles::Named(name) => SourceId::TrustBundle(name.clone()),
            Bundles::Of(signer) => SourceId::TrustBundlesOf(signer.clone()),
        };
        let cache = match self.cache(&source) {
            Some(AnyCache::TrustBundles(cache)) => Some(cache),
            _ => None,
        };
        match (wanted, cache) {
            (Bundles::Named(name), cache) => {
                let found = self.object(cache.as_ref(), &Key::cluster(name.as_str())).await?;
                Ok(found.into_iter().collect())
            }
            (Bundles::Of(_), Some(cache)) if tokio::time::timeout(PATIENCE, cache.synced()).await.is_ok() => {
                Ok(cache.list())
            }
            (Bundles::Of(signer), _) => {
                let query = format!("fieldSelector={}", watch::escape(&of_signer(signer).field_selector));
                let listed = self.0.context.api.list::<ClusterTrustBundle>("", &query).await?;
                Ok(listed.into_iter().map(Arc::new).collect())
            }
        }
    }

    async fn allocatable(&self) -> Result<BTreeMap<String, Quantity>, api::Error> {
        let node = self.object(self.node().as_ref(), &self.node_key()).await?;
        Ok(node.map(|node| node.status.allocatable.clone()).unwrap_or_default())
    }
}
