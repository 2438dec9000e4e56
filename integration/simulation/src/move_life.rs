//! The life of a claim whose pod moves to another node: the volume may be on one of them at a time.

use std::time::Duration;

use stowage_model::claim::Claim;
use stowage_model::object::kinds;
use stowage_testing::{Hang, Step, World};

use crate::claim_life::{CLAIM, POD, is_all_gone, is_running, not_mounted};
use crate::life::{self, LIMIT, Life, Report, Sample};
use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, NODE, OTHER_NODE, Pipeline, on};

/// The pod that takes the place of the first one.
const NEXT: &str = "next";

/// How long the first of the node's calls take that give the volume back.
const SLOW: Duration = Duration::from_secs(2);

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The pod ends as pods do, and its successor waits on the other node meanwhile.
    Moved,
    /// The pod is deleted by force: nobody but its node knows that the volume is still mounted there.
    Forced,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[Self::Moved, Self::Forced];

    fn sweeps(self, service: &str) -> bool {
        let managers = [NODE, OTHER_NODE].map(|node| on("volume-manager", node));
        matches!(service, "attach-detach-controller" | "attacher") || managers.iter().any(|name| name == service)
    }

    fn options(self) -> pipeline::Options {
        pipeline::Options { nodes: &[NODE, OTHER_NODE], ..pipeline::Options::default() }
    }

    fn sample(self) -> Sample {
        // What breaks A1 and A2 the driver remembers, so not every case is watched.
        Sample { every: 6, ..Sample::WORST }
    }

    async fn live(world: &World, script: &Script, report: &mut Report) -> Result<(), Hang> {
        Stage { world, script }.live(report).await
    }
}

type Script = life::Script<Kind>;

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
}

impl Stage<'_> {
    async fn live(&self, report: &mut Report) -> Result<(), Hang> {
        let (world, admin, kind) = (self.world, self.world.admin(), self.script.kind);
        let made = "the manifests of a life are valid";
        admin.create(kinds::CSI_DRIVER, manifests::csi_driver()).await.expect(made);
        admin.create(kinds::STORAGE_CLASS, manifests::class(Binding::Immediate)).await.expect(made);
        // So that there is a time in which the volume is unwanted and still mounted, whoever crashes.
        for rpc in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            world.driver().script(rpc, [Step::Slow(SLOW)]);
        }
        self.script.arm(world, move |world| async move {
            match is_moved(&world) {
                false => move_pod(&world, kind).await,
                true => end(&world).await,
            }
        });
        let pipeline = Pipeline::start(world, self.script.options);
        pipeline.ready(LIMIT).await?;
        // Until here it is the life of any claim.
        report.own.start = world.trace().len();
        admin.create(kinds::CLAIM, manifests::claim(CLAIM, "1Gi")).await.expect(made);
        admin.create(kinds::POD, manifests::pod_on(POD, CLAIM, NODE)).await.expect(made);
        report.asked = world.trace().len();

        world.until("the pod Running", LIMIT, || is_moved(world) || is_running(world, POD)).await?;
        if !is_moved(world) {
            report.wrong.extend(not_mounted(world));
            move_pod(world, kind).await;
        }
        world.until("its successor Running", LIMIT, || is_ending(world) || is_running(world, NEXT)).await?;
        if !is_ending(world) {
            report.wrong.extend(not_mounted(world));
            report.wrong.extend(not_moved(world));
        }
        report.deleted = world.trace().len();
        end(world).await;
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        report.end(world, self.script, &pipeline).await;
        Ok(())
    }
}

/// Deletes the pod, and makes its successor on the other node without waiting for its end.
async fn move_pod(world: &World, kind: Kind) {
    let admin = world.admin();
    let deleted = match kind {
        Kind::Moved => admin.delete(kinds::POD, &key(POD)).await,
        Kind::Forced => admin.delete_at_once(kinds::POD, &key(POD)).await,
    };
    deleted.expect("a pod can be deleted");
    let made = admin.create(kinds::POD, manifests::pod_on(NEXT, CLAIM, OTHER_NODE)).await;
    // The fault may be at this very moment, and make it too.
    assert!(made.is_ok() || is_moved(world), "{made:?}");
}

async fn end(world: &World) {
    world.admin().delete(kinds::POD, &key(NEXT)).await.expect("a pod can be deleted");
    world.admin().delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
}

fn is_moved(world: &World) -> bool {
    world.admin().exists(kinds::POD, &key(NEXT)) || is_ending(world)
}

/// Whether everything was deleted at the fault.
fn is_ending(world: &World) -> bool {
    let claim: Option<Claim> = world.admin().get(&key(CLAIM));
    claim.is_none_or(|claim| claim.meta.is_deleting())
}

/// What is wrong where the volume should be on the other node alone.
fn not_moved(world: &World) -> Option<String> {
    let driver = world.driver().snapshot();
    let right = driver.attached.values().all(|nodes| nodes.iter().eq([OTHER_NODE]))
        && driver.published.keys().all(|(node, _)| node == OTHER_NODE);
    (!right).then(|| format!("the pod runs on {OTHER_NODE}, but the driver has {driver:?}"))
}
