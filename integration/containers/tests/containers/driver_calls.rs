//! In the middle of a driver call: the driver is stopped, so that the call cannot end, and then one side is killed.

use anyhow::Context as _;
use stowage_model::object::kinds;

use container_suite::checker;
use container_suite::life::{Life, Step};
use container_suite::machine::with_stack;
use container_suite::stack::{DRIVER, NODES, Stack, until};

/// A call, by who makes it, who answers it, and what shows that it is under way.
struct Call {
    name: &'static str,
    caller: &'static str,
    callee: &'static str,
    step: Step,
    sign: Sign,
}

enum Sign {
    /// The intent is written before CreateVolume is called.
    Intent,
    /// What the attacher acts upon.
    Attachment,
    /// A volume is reported in use before NodeStageVolume is called.
    InUse,
    /// The pod is on its way out, and its volume unmounted by NodeUnpublishVolume.
    PodDeleting,
    /// The volume is released, and deleted by DeleteVolume.
    Released,
}

const CALLS: [Call; 5] = [
    Call { name: "create", caller: "provisioner", callee: DRIVER, step: Step::Claim, sign: Sign::Intent },
    Call { name: "attach", caller: "attacher", callee: DRIVER, step: Step::FirstPod, sign: Sign::Attachment },
    Call { name: "stage", caller: NODES[0], callee: "node-1-plugin", step: Step::FirstPod, sign: Sign::InUse },
    Call {
        name: "unpublish",
        caller: NODES[0],
        callee: "node-1-plugin",
        step: Step::EndFirstPod,
        sign: Sign::PodDeleting,
    },
    Call { name: "delete", caller: "provisioner", callee: DRIVER, step: Step::EndClaim, sign: Sign::Released },
];

async fn under_way(stack: &Stack, life: &Life<'_>, sign: &Sign) -> anyhow::Result<()> {
    let api = &stack.api;
    let claim = api.get(kinds::CLAIM, life.claim()).await?.unwrap_or_default();
    let uid = claim["metadata"]["uid"].as_str().unwrap_or_else(|| life.claim()).to_owned();
    until("the call to be under way", async || {
        let seen = match sign {
            Sign::Intent => api.list(kinds::LEASE).await?.iter().any(|lease| lease.to_string().contains(&uid)),
            Sign::Attachment => !api.list(kinds::VOLUME_ATTACHMENT).await?.is_empty(),
            Sign::InUse => {
                let node = api.get(kinds::NODE, NODES[0]).await?.unwrap_or_default();
                node["status"]["volumesInUse"].as_array().is_some_and(|volumes| !volumes.is_empty())
            }
            Sign::PodDeleting => {
                let pod = api.get(kinds::POD, &life.first_pod()).await?.unwrap_or_default();
                pod["metadata"]["deletionTimestamp"].is_string()
            }
            Sign::Released => {
                let volumes = api.list(kinds::VOLUME).await?;
                volumes.iter().any(|volume| volume["status"]["phase"] == "Released")
            }
        };
        Ok(seen.then_some(()))
    })
    .await
}

#[test]
fn a_call_that_loses_its_caller_or_its_driver_half_way_is_made_good() -> anyhow::Result<()> {
    with_stack(async |stack| {
        for call in &CALLS {
            for (killed, who) in [("caller", call.caller), ("driver", call.callee)] {
                let life = Life::new(stack, format!("{}-{killed}", call.name));
                life.up_to(call.step).await?;
                let driver = stack.pause(call.callee).await?;
                let struck = async {
                    life.begin(call.step).await?;
                    under_way(stack, &life, &call.sign).await?;
                    stack.kill(who).await
                };
                let struck = struck.await;
                if killed == "caller" {
                    stack.resume(driver)?;
                }
                struck.with_context(|| format!("{}: {killed}", call.name))?;
                life.from(call.step).await.with_context(|| format!("{}: {killed} killed", call.name))?;
                checker::nothing_left(stack).await.with_context(|| format!("{}: {killed} killed", call.name))?;
            }
        }
        Ok(())
    })
}
