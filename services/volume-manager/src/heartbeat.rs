//! The node's Lease, renewed on a timer: the one sign of life others may rely on.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::lease::Lease;
use stowage_model::node::Node;
use stowage_model::object::{Key as ObjectKey, kinds};
use stowage_plugins::WatchedObjects;
use stowage_runtime::Context;
use stowage_runtime::api::{self, Part, Patch, Target};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::queue::Queue;

use crate::node;
use crate::options::Options;
use crate::state::State;
use crate::watches::Key;

const NAMESPACE: &str = "kube-node-lease";

/// After a failure the lease is renewed sooner, as the kubelet does.
const RETRY: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(7) };

/// Renews the lease for ever.
pub async fn keep(context: Context, options: Options, nodes: Cache<Node>, state: Arc<State>, queue: Queue<Key>) {
    let key = ObjectKey::cluster(&options.node_name);
    let lease = Keeper { context, options, leases: Cache::new() };
    let mut failures = 0;
    loop {
        let node = nodes.get(&key);
        match lease.renew(node.as_deref()).await {
            Ok(at) => {
                failures = 0;
                let before = state.with(|states| states.report.heartbeat.replace(at));
                // After a silence whatever was not said meanwhile is said.
                let lasts = SignedDuration::try_from(lease.options.lease_duration).unwrap_or(SignedDuration::MAX);
                let was_silent = before.is_none_or(|before| at.duration_since(before) >= lasts);
                if was_silent || !node.is_some_and(|node| node.is_ready()) {
                    queue.add(Key::Node);
                }
                tokio::time::sleep(lease.options.lease_renewal).await;
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(%error, failures, "the node's lease was not renewed");
                tokio::time::sleep(RETRY.delay(failures).min(lease.options.lease_renewal)).await;
            }
        }
    }
}

/// Looks at the machine for ever; what has changed is told.
pub async fn look(options: Options, state: Arc<State>, queue: Queue<Key>, objects: WatchedObjects) {
    loop {
        tokio::time::sleep(options.node_status_update).await;
        let machine = options.machine.look().await;
        let before = state.with(|states| std::mem::replace(&mut states.report.machine, machine.clone()));
        if before != machine {
            objects.node_has(node::allocatable_of(&options, &machine));
            queue.add(Key::Node);
        }
    }
}

struct Keeper {
    context: Context,
    options: Options,
    /// Only what our own writes answered: nobody else writes this lease.
    leases: Cache<Lease>,
}

impl Keeper {
    async fn renew(&self, node: Option<&Node>) -> Result<Timestamp, api::Error> {
        let api = &self.context.api;
        let key = ObjectKey::namespaced(NAMESPACE, &self.options.node_name);
        let known = match self.leases.get(&key) {
            Some(lease) => Some(lease),
            None => api.refresh(&self.leases, &key).await?,
        };
        let now = self.context.clock.now();
        let body = self.body(node, now);
        match known {
            Some(lease) => {
                let target = Target::any_version(&lease.meta);
                api.patch(&self.leases, &target, Part::Main, Patch::Merge(body)).await?;
            }
            None => match api.create(&self.leases, body.clone()).await {
                Err(error) if error.is_not_found() => {
                    // A server without the usual namespaces: make ours, whoever else may be doing the same.
                    let _ = api.create_raw(kinds::NAMESPACE, json!({ "metadata": { "name": NAMESPACE } })).await;
                    api.create(&self.leases, body).await?;
                }
                other => {
                    other?;
                }
            },
        }
        Ok(now)
    }

    fn body(&self, node: Option<&Node>, now: Timestamp) -> Value {
        let name = &self.options.node_name;
        let mut body = json!({
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": self.options.lease_duration.as_secs(),
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
            },
        });
        if let Some(node) = node {
            let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.meta.uid });
            body["metadata"]["ownerReferences"] = json!([owner]);
        }
        body
    }
}
