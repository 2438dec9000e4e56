//! In the middle of driver calls: of each call of a claim's life one is in flight, done by the driver and not yet heard of
//! by its caller, when somebody is killed, stopped or cut off.

use anyhow::Context as _;
use futures::future::try_join_all;
use tokio::time::sleep;

use container_suite::checker;
use container_suite::compose::Compose;
use container_suite::life::{Life, Step};
use container_suite::machine::with_stack_of;
use container_suite::stack::{APISERVER, DRIVER, LEASE, NODES, Stack};

/// The calls with the step they belong to and whose driver is called. Of each one answer is kept back and no more, so
/// that the next claim gets past it to the call after it. What has the shortest deadline comes last.
const CALLS: [(&str, Step, Callee); 8] = [
    ("NodeUnpublishVolume", Step::EndFirstPod, Callee::Node),
    ("NodeUnstageVolume", Step::EndFirstPod, Callee::Node),
    ("ControllerUnpublishVolume", Step::EndFirstPod, Callee::Controller),
    ("ControllerPublishVolume", Step::FirstPod, Callee::Controller),
    ("NodeStageVolume", Step::FirstPod, Callee::Node),
    ("NodePublishVolume", Step::FirstPod, Callee::Node),
    ("DeleteVolume", Step::EndClaim, Callee::Controller),
    ("CreateVolume", Step::Claim, Callee::Controller),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Callee {
    Controller,
    Node,
}

/// Brings one claim into the middle of each call, lets the fault strike, and lives on.
async fn strike(
    stack: &Stack,
    name: &str,
    node: &'static str,
    fault: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let plugin = format!("{node}-plugin");
    let relay = |callee| stack.relay(if callee == Callee::Controller { DRIVER } else { &plugin });
    let lives = CALLS.map(|(call, step, callee)| {
        let life = Life::new(stack, format!("{name}-{}", call.to_lowercase()));
        (call, step, callee, if node == NODES[0] { life } else { life.reversed() })
    });
    let struck = async {
        try_join_all(lives.iter().map(|(_, step, _, life)| life.up_to(*step))).await?;
        for callee in [Callee::Controller, Callee::Node] {
            let calls: Vec<&str> = CALLS.iter().filter(|call| call.2 == callee).map(|call| call.0).collect();
            relay(callee)?.keep(&calls);
        }
        for (call, step, callee, life) in &lives {
            life.begin(*step).await?;
            relay(*callee)?.in_flight(call).await?;
        }
        fault().await.context("the fault itself")?;
        relay(Callee::Controller)?.release();
        relay(Callee::Node)?.release();
        try_join_all(lives.iter().map(|(_, step, _, life)| life.between(*step, Step::SecondPod))).await?;
        checker::at_rest(stack).await.context("with volumes in use")?;
        try_join_all(lives.iter().map(|(_, step, _, life)| life.after((*step).max(Step::SecondPod)))).await?;
        checker::nothing_left(stack).await
    };
    checker::watched(stack, struck).await.with_context(|| format!("{name}, in the middle of calls"))
}

/// All who make these calls in lives that begin on this node.
fn callers(node: &'static str) -> [&'static str; 3] {
    ["provisioner", "attacher", node]
}

async fn kill(stack: &Stack, services: &[&str]) -> anyhow::Result<()> {
    try_join_all(services.iter().map(|service| stack.kill(service))).await.map(drop)
}

#[test]
fn calls_whose_callers_drivers_or_server_go_half_way_are_made_good() -> anyhow::Result<()> {
    with_stack_of(Compose::shipped()?.relayed(), async |stack| {
        let [one, two] = NODES;
        stack.keep_addresses().await?;
        for (node, plugin) in [(one, "node-1-plugin"), (two, "node-2-plugin")] {
            strike(stack, &format!("callers-{node}"), node, async || kill(stack, &callers(node)).await).await?;
            strike(stack, &format!("drivers-{node}"), node, async || kill(stack, &[DRIVER, plugin]).await).await?;
        }
        strike(stack, "server", one, async || kill(stack, &[APISERVER]).await).await?;
        strike(stack, "stopped", two, async || {
            let stopped = try_join_all(callers(two).iter().map(|service| stack.pause(service))).await?;
            // The time is the fault: long enough for the leases to run out.
            sleep(LEASE + LEASE / 4).await;
            stopped.into_iter().try_for_each(|process| stack.resume(process))
        })
        .await?;
        strike(stack, "cut-off", one, async || {
            try_join_all(callers(one).iter().map(|service| stack.cut_off(service))).await?;
            sleep(LEASE + LEASE / 4).await;
            try_join_all(callers(one).iter().map(|service| stack.mend(service))).await.map(drop)
        })
        .await
    })
}
