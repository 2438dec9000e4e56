//! Every service, hit at every moment of a claim's life.

use anyhow::Context as _;
use tokio::time::sleep;

use container_suite::machine::with_stack;
use container_suite::moments::strike;
use container_suite::stack::{APISERVER, LEASE, Stack};

fn names<'a>(services: impl Iterator<Item = &'a str>) -> Vec<String> {
    services.map(str::to_owned).collect()
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
        all_run(stack).await
    })
}

/// A leader that is stopped for longer than its lease must not act on it when it wakes.
#[test]
fn whoever_is_stopped_past_its_lease_claims_end_well_and_nothing_is_left() -> anyhow::Result<()> {
    with_stack(async |stack| {
        for service in names(stack.services().filter(|service| *service != APISERVER)) {
            strike(stack, &format!("stop-{service}"), async || {
                let process = stack.pause(&service).await?;
                // The time is the fault: long enough for the lease to run out.
                sleep(LEASE + LEASE / 4).await;
                stack.resume(process)
            })
            .await?;
        }
        all_run(stack).await
    })
}

#[test]
fn whoever_is_cut_off_from_the_network_claims_end_well_and_nothing_is_left() -> anyhow::Result<()> {
    with_stack(async |stack| {
        for service in names(stack.clients()) {
            strike(stack, &format!("cut-{service}"), async || {
                stack.cut_off(&service).await?;
                // The time is the fault: long enough for the lease to run out.
                sleep(LEASE + LEASE / 4).await;
                stack.mend(&service).await
            })
            .await?;
        }
        all_run(stack).await
    })
}
