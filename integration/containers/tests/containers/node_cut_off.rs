use anyhow::{Context as _, ensure};
use http::Request;
use serde_json::{Value, json};
use stowage_model::object::kinds;
use tokio::time::sleep;

use container_suite::checker;
use container_suite::compose::Compose;
use container_suite::life::{Life, Step};
use container_suite::machine::{with_stack, with_stack_of};
use container_suite::stack::{FORCE_DETACH, NODES, Stack, until};

/// Sets the taints of a node.
async fn taint(stack: &Stack, node: &str, change: impl Fn(&mut Vec<Value>)) -> anyhow::Result<()> {
    until("the node to take its taints", async || {
        let object = stack.api.get(kinds::NODE, node).await?.context("the node is gone")?;
        let mut taints = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        change(&mut taints);
        let version = &object["metadata"]["resourceVersion"];
        let body = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        let request = Request::patch(format!("/api/v1/nodes/{node}"))
            .header("content-type", "application/merge-patch+json")
            .body(serde_json::to_vec(&body)?)?;
        match stack.client.request::<Value>(request).await {
            Ok(_) => Ok(Some(())),
            // Somebody else was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn is_ready(node: &Value) -> Option<()> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(())
}

fn is_unready(node: &Value) -> Option<()> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] != "True").then_some(())
}

/// The nodes of all attachments.
async fn attached_to(stack: &Stack) -> anyhow::Result<Vec<String>> {
    let attachments = stack.api.list(kinds::VOLUME_ATTACHMENT).await?;
    Ok(attachments.iter().filter_map(|one| one["spec"]["nodeName"].as_str()).map(str::to_owned).collect())
}

/// What an impatient user does: the pod object goes at once, and only the volume's attachment still tells of it.
async fn force_delete(stack: &Stack, pod: &str) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0");
    stack.client.request::<Value>(Request::delete(path).body(Vec::new())?).await?;
    stack.api.gone(kinds::POD, pod).await
}

/// The stack's attach-detach controller runs with --disable-force-detach-on-timeout.
#[test]
fn a_node_that_is_cut_off_keeps_its_volume_until_somebody_vouches_for_its_death() -> anyhow::Result<()> {
    with_stack(async |stack| {
        let [lost, other] = NODES;
        stack.keep_addresses().await?;
        // Two pods of the lost node: one waits for it to end it, the other is deleted by force.
        let (patient, life) = (Life::new(stack, "patient"), Life::new(stack, "held"));
        patient.up_to(Step::EndFirstPod).await?;
        life.up_to(Step::EndFirstPod).await?;
        stack.cut_off(lost).await?;
        patient.begin(Step::EndFirstPod).await?;
        patient.begin(Step::SecondPod).await?;
        force_delete(stack, &life.first_pod()).await?;
        life.begin(Step::SecondPod).await?;
        stack.api.until(kinds::NODE, lost, |node| is_unready(node?), "to be marked unready").await?;
        let message = stack.api.event(&life.second_pod(), "FailedAttachVolume").await?;
        ensure!(message.contains("cannot be attached to a second node"), "the waiting pod is told {message:?}");

        // No proof, no second attachment: the node may still write, and here it does. The time is the point: far more
        // than after which the volume would be taken from it otherwise.
        let waiting = async {
            sleep(FORCE_DETACH * 3).await;
            Ok(())
        };
        checker::watched(stack, waiting).await?;
        let nodes = attached_to(stack).await?;
        ensure!(nodes == [lost, lost], "attached to {nodes:?}");
        let pod = stack.api.get(kinds::POD, &life.second_pod()).await?.context("the second pod is gone")?;
        ensure!(pod["status"]["phase"] != "Running", "the second pod runs beside a writer");

        // An operator pulls the plug and vouches for it.
        stack.power_off(lost).await?;
        taint(stack, lost, |taints| {
            taints.push(json!({ "key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute" }));
        })
        .await?;
        patient.finish(Step::EndFirstPod).await.context("the pod of the dead node")?;
        for life in [&patient, &life] {
            life.finish(Step::SecondPod).await.with_context(|| format!("the volume on {other}"))?;
        }

        // The dead node comes back and must take nothing of the new owner's.
        stack.mend(lost).await?;
        stack.power_on(lost).await?;
        taint(stack, lost, |taints| taints.retain(|taint| taint["key"] != OUT_OF_SERVICE)).await?;
        stack.api.until(kinds::NODE, lost, |node| is_ready(node?), "to be ready again").await?;
        for life in [&patient, &life] {
            life.check(&life.second_pod(), other).await?;
        }
        checker::at_rest(stack).await?;
        for life in [&patient, &life] {
            life.after(Step::SecondPod).await?;
        }
        checker::nothing_left(stack).await
    })
}

/// What the test above would see without the flag: the time alone takes the volume from the node.
#[test]
fn without_the_flag_a_node_that_is_dead_loses_its_volume_after_a_time() -> anyhow::Result<()> {
    let mut compose = Compose::shipped()?;
    let controller = compose.services.get_mut("attach-detach-controller").context("no attach-detach-controller")?;
    controller.command.retain(|word| word != "--disable-force-detach-on-timeout");
    with_stack_of(compose, async |stack| {
        let [lost, other] = NODES;
        stack.keep_addresses().await?;
        let life = Life::new(stack, "lost");
        life.up_to(Step::EndFirstPod).await?;
        stack.cut_off(lost).await?;
        stack.power_off(lost).await?;
        force_delete(stack, &life.first_pod()).await?;
        life.begin(Step::SecondPod).await?;
        life.finish(Step::SecondPod).await.with_context(|| format!("the volume on {other}"))?;
        let nodes = attached_to(stack).await?;
        ensure!(nodes == [other], "attached to {nodes:?}");

        stack.mend(lost).await?;
        stack.power_on(lost).await?;
        stack.api.until(kinds::NODE, lost, |node| is_ready(node?), "to be ready again").await?;
        life.after(Step::SecondPod).await?;
        checker::nothing_left(stack).await
    })
}
