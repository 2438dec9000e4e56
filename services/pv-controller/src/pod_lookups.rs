//! Fresh looks at the pods of a namespace, before its claims are let go.
//!
//! They are shared: of many claims that are deleted at once each needs one that began after it
//! was decided on, and none needs its own. Nobody waits for them: they are operations, whose end wakes the claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;

use stowage_model::object::Key;
use stowage_model::{Claim, Pod};
use stowage_runtime::api::Api;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Error;
use stowage_runtime::tasks::Spawner;

use crate::decide::status;

/// Namespaces looked at side by side: each look is a list of pods in memory.
const PARALLEL: usize = 8;

/// Between looks at a namespace that fail.
const AGAIN: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(60) };

/// A pod may use the claim, which is kept.
#[derive(Debug, thiserror::Error)]
#[error("the claim is kept: pod {0}, which may use it, cannot be read")]
struct UnreadablePod(Key);

/// The pods of a namespace at one moment.
#[derive(Default)]
pub struct Pods {
    readable: Vec<Arc<Pod>>,
    others: Vec<Value>,
}

impl Pods {
    /// What keeps the claim from going, or may do so.
    pub fn hold(&self, claim: &Claim) -> Result<(), Error> {
        if self.readable.iter().any(|pod| status::holds(pod, claim)) {
            return Err(Error::Stale("who uses the claim"));
        }
        match self.others.iter().find(|pod| may_use(pod, &claim.meta.name)) {
            Some(pod) => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                Err(Error::other(UnreadablePod(Key::namespaced(claim.meta.namespace.clone(), name))))
            }
            None => Ok(()),
        }
    }
}

/// Whether a pod that cannot be read names the claim, or says in a form that nobody knows what it uses.
fn may_use(pod: &Value, claim: &str) -> bool {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let volumes = match &pod["spec"] {
        Value::Null => return false,
        Value::Object(spec) => spec.get("volumes").unwrap_or(&Value::Null),
        _ => return true,
    };
    match volumes {
        Value::Null => false,
        Value::Array(volumes) => volumes.iter().any(|volume| match &volume["persistentVolumeClaim"] {
            _ if !volume.is_object() => true,
            Value::Null => volume["name"].as_str().is_some_and(|volume| format!("{name}-{volume}") == claim),
            source => source["claimName"].as_str().is_none_or(|named| named == claim),
        }),
        _ => true,
    }
}

/// Where a claim's lookup stands.
enum Lookup {
    Asked,
    UnderWay,
    Done(Arc<Pods>),
}

#[derive(Default)]
struct State {
    /// With the revision of the claim that it was asked for.
    claims: BTreeMap<Key, (u64, Lookup)>,
    /// Namespaces that are looked at, each by one task.
    busy: BTreeSet<String>,
}

impl State {
    fn of<'a>(&'a mut self, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a mut Lookup)> {
        let from = Key::namespaced(namespace, "");
        let together = self.claims.range_mut(from..).take_while(move |(key, _)| key.namespace == namespace);
        together.map(|(key, (_, look))| (key, look))
    }
}

struct Inner {
    api: Api,
    cache: Cache<Pod>,
    state: Mutex<State>,
    turns: Semaphore,
    wake: Box<dyn Fn(Key) + Send + Sync>,
}

/// The lookups that claims on their way out have asked for.
#[derive(Clone)]
pub struct PodLookups {
    inner: Arc<Inner>,
    spawner: Spawner,
}

impl PodLookups {
    /// `wake` is called with each claim whose look has ended.
    pub fn new(api: Api, cache: Cache<Pod>, spawner: Spawner, wake: impl Fn(Key) + Send + Sync + 'static) -> Self {
        let (state, turns) = (Mutex::default(), Semaphore::new(PARALLEL));
        Self { inner: Arc::new(Inner { api, cache, state, turns, wake: Box::new(wake) }), spawner }
    }

    /// Asks for a look at all pods of the claim's namespace that begins after this.
    pub fn ask(&self, claim: &Key, revision: u64) {
        let mut state = self.inner.lock();
        state.claims.entry(claim.clone()).or_insert((revision, Lookup::Asked));
        if state.busy.insert(claim.namespace.clone()) {
            self.spawner.spawn(Arc::clone(&self.inner).look(claim.namespace.clone()));
        }
    }

    /// Whether a lookup that was asked for has not ended.
    pub fn is_pending(&self, claim: &Key) -> bool {
        matches!(self.inner.lock().claims.get(claim), Some((_, Lookup::Asked | Lookup::UnderWay)))
    }

    /// What was seen for this version of the claim; it serves for one action.
    pub fn take(&self, claim: &Key, revision: u64) -> Option<Arc<Pods>> {
        let mut state = self.inner.lock();
        if !matches!(state.claims.get(claim), Some((_, Lookup::Done(_)))) {
            return None;
        }
        match state.claims.remove(claim) {
            Some((asked_for, Lookup::Done(pods))) if asked_for == revision => Some(pods),
            _ => None,
        }
    }

    /// The claim has no use for a look any more: a later one must not find an old one.
    pub fn forget(&self, claim: &Key) {
        self.inner.lock().claims.remove(claim);
    }
}

impl Inner {
    /// Looks at a namespace until nobody asks.
    async fn look(self: Arc<Self>, namespace: String) {
        let mut failures = 0;
        loop {
            // Never closed; without a turn there would only be more looks at once.
            let turn = self.turns.acquire().await;
            if !self.begin(&namespace) {
                return;
            }
            let found = self.api.list_all::<Pod>(&namespace, "").await;
            drop(turn);
            match found {
                Ok((readable, others)) => {
                    failures = 0;
                    self.end(&namespace, Pods { readable: readable.into_iter().map(Arc::new).collect(), others });
                }
                Err(error) => {
                    failures += 1;
                    let delay = AGAIN.delay(failures);
                    tracing::warn!(%namespace, %error, ?delay, "cannot look for pods before claims are let go");
                    self.lock().of(&namespace).for_each(|(_, look)| {
                        if matches!(look, Lookup::UnderWay) {
                            *look = Lookup::Asked;
                        }
                    });
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    fn begin(&self, namespace: &str) -> bool {
        let mut state = self.lock();
        let mut any = false;
        for (_, look) in state.of(namespace) {
            if matches!(look, Lookup::Asked) {
                *look = Lookup::UnderWay;
                any = true;
            }
        }
        if !any {
            state.busy.remove(namespace);
        }
        any
    }

    fn end(&self, namespace: &str, pods: Pods) {
        let pods = Arc::new(pods);
        pods.readable.iter().for_each(|pod| _ = self.cache.observe_shared(Arc::clone(pod)));
        let mut woken = Vec::new();
        for (claim, look) in self.lock().of(namespace) {
            if matches!(look, Lookup::UnderWay) {
                *look = Lookup::Done(Arc::clone(&pods));
                woken.push(claim.clone());
            }
        }
        woken.into_iter().for_each(|claim| (self.wake)(claim));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while holding the looks")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_cannot_be_read_holds_the_claims_that_it_names_and_no_others() {
        let claim = |name: &str| {
            let meta = json!({ "namespace": "n", "name": name, "uid": "u", "resourceVersion": "1" });
            serde_json::from_value::<Claim>(json!({ "metadata": meta })).unwrap()
        };
        let held = |pod: Value, name: &str| match (Pods { others: vec![pod], ..Pods::default() }).hold(&claim(name)) {
            Ok(()) => false,
            Err(error) => error.to_string().contains("n/p"),
        };
        let holds = |volumes: Value, name: &str| {
            let pod = json!({ "metadata": { "name": "p", "finalizers": "no list" }, "spec": { "volumes": volumes } });
            held(pod, name)
        };
        let named = json!([{ "name": "x", "persistentVolumeClaim": { "claimName": "c" } }]);
        assert!(holds(named.clone(), "c") && !holds(named, "d"));
        let made = json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": {} } }]);
        assert!(holds(made.clone(), "p-data") && !holds(made, "c"));
        assert!(holds(json!([{ "name": "x", "persistentVolumeClaim": { "claimName": 7 } }]), "c"));
        assert!(holds(json!("a form that nobody knows"), "c"));
        assert!(holds(json!(["a form that nobody knows"]), "c"));
        assert!(held(json!({ "metadata": { "name": "p" }, "spec": "a form that nobody knows" }), "c"));
        assert!(!holds(Value::Null, "c"));
    }
}
