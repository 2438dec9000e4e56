//! `stowage drain`: empties nodes, at once or when the stack around it is told to stop.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use futures::future::try_join_all;
use serde_json::json;

use stowage_csi::UnixConnector;
use stowage_model::Node;
use stowage_model::object::Key;
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::launch::host_name;

use crate::args::Drain;

/// Nodes that were closed by a drain at shutdown, and not by a person, are opened again at the next start.
const CLOSED: &str = "stowage.dev/closed-at-shutdown";

/// Drains now, or opens the nodes, waits for a signal and drains then.
pub async fn run(options: Drain) -> anyhow::Result<()> {
    stowage_runtime::log::init(&options.log)?;
    let client = options.client.client(10).await?;
    let context = Context::real(client, Arc::new(UnixConnector), host_name());
    let signals = context.shutdown.clone().listen_to_signals();
    let work = async {
        if options.at_shutdown {
            open(&context.api, &options.nodes).await?;
            println!("the nodes are drained when this is told to stop");
            context.shutdown.requested().await;
        }
        let timeout = options.timeout.into();
        match tokio::time::timeout(timeout, drain(&context, &options.nodes, options.at_shutdown)).await {
            Ok(drained) => drained,
            Err(_) => {
                bail!("not empty after {timeout:?}: {}", occupied(&context.api, &options.nodes).await?.join("; "))
            }
        }
    };
    tokio::select! {
        biased;
        result = work => result,
        result = signals => Ok(result?),
    }
}

/// Closes the nodes, deletes their pods and waits until nothing is in use on them.
async fn drain(context: &Context, names: &[String], remember: bool) -> anyhow::Result<()> {
    let nodes = chosen(&context.api, names).await?;
    for node in nodes.iter().filter(|node| !node.spec.unschedulable) {
        let mut patch = json!({ "spec": { "unschedulable": true } });
        if remember {
            patch["metadata"]["annotations"][CLOSED] = "true".into();
        }
        change(&context.api, node, patch).await?;
    }
    try_join_all(nodes.iter().map(async |node| {
        let name = &node.meta.name;
        volume_manager::drain(context, name).await.with_context(|| format!("cannot drain node {name}"))?;
        println!("{name}: no pod, nothing mounted");
        anyhow::Ok(())
    }))
    .await?;
    Ok(())
}

/// Opens the nodes that an earlier drain at shutdown has closed.
async fn open(api: &Api, names: &[String]) -> anyhow::Result<()> {
    for node in chosen(api, names).await?.iter().filter(|node| node.meta.annotation(CLOSED).is_some()) {
        let patch = json!({ "metadata": { "annotations": { CLOSED: null } }, "spec": { "unschedulable": null } });
        change(api, node, patch).await?;
    }
    Ok(())
}

async fn change(api: &Api, node: &Node, patch: serde_json::Value) -> anyhow::Result<()> {
    let cache = Cache::<Node>::new();
    let target = Target::any_version(&node.meta);
    let changed = api.patch(&cache, &target, Part::Main, Patch::Merge(patch)).await;
    changed.with_context(|| format!("cannot change node {}", node.meta.name)).map(drop)
}

/// The nodes of these names, or all.
async fn chosen(api: &Api, names: &[String]) -> anyhow::Result<Vec<Node>> {
    if names.is_empty() {
        return api.list("", "").await.context("cannot list the nodes");
    }
    let mut nodes = Vec::new();
    for name in names {
        match api.get(&Key::cluster(name)).await.with_context(|| format!("cannot read node {name}"))? {
            Some(node) => nodes.push(node),
            None => bail!("there is no node {name}; `kubectl get nodes` lists them"),
        }
    }
    Ok(nodes)
}

/// What keeps nodes from being empty, one sentence each.
async fn occupied(api: &Api, names: &[String]) -> anyhow::Result<Vec<String>> {
    let nodes = chosen(api, names).await?;
    let busy = nodes.iter().filter(|node| !node.status.volumes_in_use.is_empty());
    let mut found: Vec<String> = busy
        .map(|node| format!("node {} has {} in use", node.meta.name, node.status.volumes_in_use.join(", ")))
        .collect();
    if found.is_empty() {
        found.push("pods are left, `kubectl get pods -A -o wide` shows them".to_owned());
    }
    Ok(found)
}
