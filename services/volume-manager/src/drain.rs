//! Empties a node: every pod is deleted, and nothing is left in use.

use std::sync::Arc;
use std::time::Duration;

use stowage_model::node::Node;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::pod::Pod;
use stowage_runtime::api::{self, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

/// Before a pod that could not be deleted is tried again.
const DRAIN_RETRY: Duration = Duration::from_secs(1);

/// Deletes the pods of a node and resolves when they are gone and the node reports nothing in use.
///
/// What drivers that do not attach have mounted is not visible there: wait for [`crate::Occupancy::empty`] besides,
/// where the volume manager runs in the same process.
pub async fn drain(context: &Context, node_name: &str) -> Result<(), Stop> {
    let mut tasks = Tasks::new();
    let (changes, mut changed) = tokio::sync::watch::channel(());
    let changes = Arc::new(changes);
    let pods: Cache<Pod> = Cache::new();
    let nodes: Cache<Node> = Cache::new();
    pods.on_change({
        let changes = Arc::clone(&changes);
        move |_| changes.send_modify(|()| ())
    });
    nodes.on_change(move |_| changes.send_modify(|()| ()));
    let scope = Scope::fields(format!("spec.nodeName={node_name}"));
    let own = Scope::fields(format!("metadata.name={node_name}"));
    let spawner = tasks.spawner();
    spawner.spawn(watch::feed(context.api.clone(), pods.clone(), scope, context.random.clone()));
    spawner.spawn(watch::feed(context.api.clone(), nodes.clone(), own, context.random.clone()));
    let work = async {
        pods.synced().await;
        nodes.synced().await;
        loop {
            let mut refused = false;
            for pod in pods.list().iter().filter(|pod| !pod.meta.is_deleting()) {
                refused |= !delete(context, &pods, pod).await;
            }
            let node = nodes.get(&ObjectKey::cluster(node_name));
            if pods.is_empty() && node.is_none_or(|node| node.status.volumes_in_use.is_empty()) {
                return Ok(());
            }
            // The sender lives in the caches, so the wait cannot fail.
            let changed = changed.changed();
            match refused {
                true => drop(tokio::time::timeout(DRAIN_RETRY, changed).await),
                false => drop(changed.await),
            }
        }
    };
    tokio::select! {
        biased;
        panicked = tasks.supervise() => Err(panicked.into()),
        result = work => result,
    }
}

/// Asks for the pod's deletion; says whether the server agreed.
async fn delete(context: &Context, pods: &Cache<Pod>, pod: &Pod) -> bool {
    let deleted: Result<(), api::Error> =
        context.api.delete(pods, &Target::any_version(pod.meta()), Deletion::default()).await;
    if let Err(error) = &deleted {
        tracing::warn!(pod = %pod.key(), %error, "the pod cannot be deleted yet");
    }
    deleted.is_ok()
}
