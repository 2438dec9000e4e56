//! Every service, hit at every moment of a claim's life.

use std::time::Duration;

use anyhow::Context as _;
use futures::future::try_join_all;
use tokio::time::sleep;

use container_suite::copies;
use container_suite::machine::with_stack;
use container_suite::moments::strike;
use container_suite::stack::{APISERVER, LEASE, Stack, until};

/// Who holds no lease is away for a moment.
const SHORT: Duration = Duration::from_secs(1);

/// They take no part in the life of a claim, so they are hit together while a snapshot is made.
const COPIERS: [&str; 2] = ["snapshot-controller", "snapshotter"];

fn names<'a>(services: impl Iterator<Item = &'a str>) -> Vec<String> {
    services.filter(|service| !COPIERS.contains(service)).map(str::to_owned).collect()
}

async fn all_run(stack: &Stack) -> anyhow::Result<()> {
    for service in stack.services() {
        stack.process(service).await.with_context(|| format!("{service} does not run in the end"))?;
    }
    Ok(())
}

#[test]
fn whoever_is_killed_claims_end_well_and_nothing_is_left() -> anyhow::Result<()> {
    with_stack(async |stack| {
        for service in names(stack.services()) {
            strike(stack, &format!("kill-{service}"), async || stack.kill(&service).await).await?;
        }
        copies::strike(stack, "kill-copiers", async || {
            try_join_all(COPIERS.map(|one| stack.kill(one))).await.map(drop)
        })
        .await?;
        all_run(stack).await
    })
}

/// Until another leads, for whoever is elected.
async fn stop(stack: &Stack, service: &str) -> anyhow::Result<()> {
    // Which of the two leads does not matter: the other takes over.
    let leader = stack.leader(service).await?;
    let process = stack.pause(&leader).await?;
    if stack.is_elected(service) {
        until(format!("{leader} to be deposed"), async || Ok((stack.leader(service).await? != leader).then_some(())))
            .await?;
    } else {
        sleep(SHORT).await;
    }
    stack.resume(process)
}

/// Past the lease of whoever has one.
async fn cut_off(stack: &Stack, services: &[&str]) -> anyhow::Result<()> {
    try_join_all(services.iter().map(|service| stack.cut_off(service))).await?;
    // The time is the fault: long enough for the lease to run out.
    sleep(LEASE + LEASE / 4).await;
    try_join_all(services.iter().map(|service| stack.mend(service))).await.map(drop)
}

/// A leader that is stopped for longer than its lease must not act on it when it wakes: a second one has it by then.
#[test]
fn whoever_is_stopped_past_its_lease_claims_end_well_and_nothing_is_left() -> anyhow::Result<()> {
    with_stack(async |stack| {
        let replicas = stack.start_replicas().await?;
        for service in names(stack.services()) {
            strike(stack, &format!("stop-{service}"), async || stop(stack, &service).await).await?;
        }
        copies::strike(stack, "stop-copiers", async || {
            try_join_all(COPIERS.map(|one| stop(stack, one))).await.map(drop)
        })
        .await?;
        all_run(stack).await?;
        for replica in replicas {
            replica.rm().await.context("cannot remove a replica")?;
        }
        Ok(())
    })
}

#[test]
fn whoever_is_cut_off_from_the_network_claims_end_well_and_nothing_is_left() -> anyhow::Result<()> {
    with_stack(async |stack| {
        stack.keep_addresses().await?;
        for service in names(stack.clients().chain([APISERVER])) {
            strike(stack, &format!("cut-{service}"), async || cut_off(stack, &[&service]).await).await?;
        }
        copies::strike(stack, "cut-copiers", async || cut_off(stack, &COPIERS).await).await?;
        all_run(stack).await
    })
}
