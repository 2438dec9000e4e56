//! The driver whose pools belong to one node each: a provisioner beside it on every node, nothing to attach, and pods go
//! where their volumes are.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use serde_json::{Value, json};
use stowage_model::object::kinds;

use local_suite::api::Api;
use local_suite::life::{DATA_BYTES, Life, all_over};
use local_suite::objects::{LOCAL_IMMEDIATE, LOCAL_WAITING};
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

const TOPOLOGY: &str = "topology.stowage.dev/node";

fn images(pool: &Path) -> anyhow::Result<usize> {
    let mut images = 0;
    for entry in fs::read_dir(pool.join("volumes")).context("cannot list a pool")? {
        let path = entry.context("cannot list a pool")?.path();
        images += usize::from(path.extension().is_some_and(|ending| ending == "img"));
    }
    Ok(images)
}

/// The one node on which the claim's volume can be used.
async fn home(api: &Api, claim: &str) -> anyhow::Result<String> {
    let bound = |claim: Option<&Value>| claim?["spec"]["volumeName"].as_str().map(str::to_owned);
    let volume = api.until(kinds::CLAIM, claim, bound, "to be bound").await?;
    let volume = api.get(kinds::VOLUME, &volume).await?.context("a bound claim without its volume")?;
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let rule = &terms[0]["matchExpressions"][0];
    ensure!(terms.as_array().is_some_and(|terms| terms.len() == 1), "not one place: {terms}");
    ensure!(rule["key"] == TOPOLOGY && rule["operator"] == "In", "another rule than the node's: {rule}");
    let node = rule["values"].as_array().filter(|values| values.len() == 1).and_then(|values| values[0].as_str());
    node.map(str::to_owned).with_context(|| format!("not one node: {rule}"))
}

#[test]
fn every_node_makes_the_volumes_of_its_own_pods() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::local()).await?;
        let mut data = vec![0; DATA_BYTES];
        StdRng::seed_from_u64(2).fill_bytes(&mut data);
        for node in NODES {
            let life = Life { api: &stack.api, place: &stack.place, claim: format!("of-{node}") };
            let (writer, reader) = (format!("writer-{node}"), format!("reader-{node}"));
            life.begin(LOCAL_WAITING, "32Mi").await?;
            life.start(&writer, node).await?;
            life.write(&writer, node, &data).await?;
            ensure!(home(&stack.api, &life.claim).await? == node, "the volume is not on the node of its pod");
            ensure!(images(&stack.place.node_pool(node))? == 1, "the image is not in the pool of {node}");
            life.stop(&writer).await?;
            life.start(&reader, node).await?;
            life.check(&reader, node, &data).await?;
        }
        ensure!(stack.api.list(kinds::VOLUME_ATTACHMENT).await?.is_empty(), "a driver without attach was attached");
        for node in NODES {
            let life = Life { api: &stack.api, place: &stack.place, claim: format!("of-{node}") };
            life.stop(&format!("reader-{node}")).await?;
            life.end().await?;
        }
        all_over(&stack.api).await?;
        leftovers::none(&root).await?;
        stack.all_run()?;
        stack.stop().await
    })
}

#[test]
fn a_claim_that_binds_at_once_has_one_volume_and_its_pod_goes_there() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::local()).await?;
        let life = Life { api: &stack.api, place: &stack.place, claim: "now".to_owned() };
        life.begin(LOCAL_IMMEDIATE, "32Mi").await?;
        let home = home(&stack.api, "now").await?;
        let elsewhere = NODES.into_iter().find(|node| *node != home).context("both nodes are the volume's")?;
        life.start("lost", elsewhere).await?;
        let unplaced = |pod: Option<&Value>| {
            let conditions = pod?["status"]["conditions"].as_array()?;
            let refused = |one: &&Value| one["type"] == "PodScheduled" && one["status"] == "False";
            conditions.iter().find(refused)?["reason"].as_str().map(str::to_owned)
        };
        let reason = stack.api.until(kinds::POD, "lost", unplaced, "to be refused a node").await?;
        ensure!(reason == "Unschedulable", "a pod that cannot reach its volume is {reason}");
        life.stop("lost").await?;
        // Any node would do for this one.
        let mut pod = local_suite::objects::pod("free", "now", "any");
        pod["spec"]["nodeSelector"] = json!({});
        stack.api.create(kinds::POD, pod).await?;
        life.mounted("free", &home).await?;
        let pools: Vec<usize> =
            NODES.into_iter().map(|node| images(&stack.place.node_pool(node))).collect::<anyhow::Result<_>>()?;
        ensure!(pools.iter().sum::<usize>() == 1, "one claim has images in the pools: {pools:?}");
        life.stop("free").await?;
        life.end().await?;
        all_over(&stack.api).await?;
        leftovers::none(&root).await?;
        stack.all_run()?;
        stack.stop().await
    })
}
