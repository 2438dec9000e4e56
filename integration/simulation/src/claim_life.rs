//! The life of a claim: made, mounted for a pod, released, gone.

use stowage_model::object::kinds;
use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_testing::driver::Abilities;
use stowage_testing::{Hang, World};

use crate::life::{Life, Report, Sample, Script};
use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, Pipeline};

/// The claim's name.
pub const CLAIM: &str = "data";

/// The pod's name.
pub const POD: &str = "app";

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its volume is made once a pod that uses it has a node.
    WaitForFirstConsumer,
    /// Its volume is made at once.
    Immediate,
    /// The same as the first, and the scheduler goes by how much room the provisioner says there is.
    Counted,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[Self::WaitForFirstConsumer, Self::Immediate, Self::Counted];

    fn sweeps(self, service: &str) -> bool {
        self != Self::Counted || matches!(service, "provisioner" | "scheduler")
    }

    fn options(self) -> pipeline::Options {
        pipeline::Options { capacity: self == Self::Counted, ..pipeline::Options::default() }
    }

    fn sample(self) -> Sample {
        if self == Self::Counted { Sample::WORST } else { Sample::ALL }
    }

    async fn live(world: &World, script: &Script<Self>, report: &mut Report) -> Result<(), Hang> {
        let lived = Stage { world, script }.live(report).await;
        if script.kind != Self::WaitForFirstConsumer {
            // From here on the lives are the same.
            let points = world.trace().points();
            report.own = 0..points.iter().position(|point| point.what.contains("/binding ")).unwrap_or(usize::MAX);
        }
        lived
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script<Kind>,
}

impl Stage<'_> {
    async fn live(&self, report: &mut Report) -> Result<(), Hang> {
        let (world, admin, limit) = (self.world, self.world.admin(), self.script.limit);
        let made = "the manifests of a life are valid";
        let counted = self.script.kind == Kind::Counted;
        world.driver().enable(Abilities { capacity: counted, ..Abilities::default() });
        let mut driver = manifests::csi_driver();
        driver["spec"]["storageCapacity"] = counted.into();
        admin.create(kinds::CSI_DRIVER, driver).await.expect(made);
        let binding =
            if self.script.kind == Kind::Immediate { Binding::Immediate } else { Binding::WaitForFirstConsumer };
        admin.create(kinds::STORAGE_CLASS, manifests::class(binding)).await.expect(made);
        self.script.arm(world, |world| async move {
            world.admin().delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        });
        let pipeline = Pipeline::start(world, self.script.options);
        pipeline.ready(limit).await?;

        report.asked = world.trace().len();
        admin.create(kinds::CLAIM, manifests::claim(CLAIM, "1Gi")).await.expect(made);
        admin.create(kinds::POD, manifests::pod(POD, CLAIM)).await.expect(made);
        let gave_up = || self.script.gave_up(world);
        world.until("the pod Running with its volume", limit, || gave_up() || is_running(world, POD)).await?;
        if !gave_up() {
            report.wrong.extend(not_mounted(world));
        }

        admin.delete(kinds::POD, &key(POD)).await.expect("a pod can be deleted");
        let pod_gone = || gave_up() || !admin.exists(kinds::POD, &key(POD));
        world.until("the end of the pod", limit, pod_gone).await?;
        report.deleted = world.trace().len();
        admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        world.until("the end of everything", limit, || is_all_gone(world)).await?;
        report.end(world, self.script, &pipeline).await;
        Ok(())
    }
}

/// Whether a pod runs.
pub(crate) fn is_running(world: &World, pod: &str) -> bool {
    let pod: Option<Pod> = world.admin().get(&key(pod));
    pod.is_some_and(|pod| pod.status.phase == PodPhase::Running)
}

/// What is wrong where one pod runs with one volume.
pub(crate) fn not_mounted(world: &World) -> Option<String> {
    let observed = world.observe();
    let (volumes, driver) = (observed.volumes.len(), &observed.driver);
    let right = (volumes, driver.volumes.len(), driver.published.len()) == (1, 1, 1);
    (!right).then(|| format!("the pod runs, but there are {volumes} volumes and the driver has {driver:?}"))
}

/// Cheap looks first: this is asked after every change.
pub(crate) fn is_all_gone(world: &World) -> bool {
    let admin = world.admin();
    world.driver().snapshot().is_empty()
        && !admin.exists(kinds::CLAIM, &key(CLAIM))
        && admin.list_raw(kinds::VOLUME).is_empty()
        && world.observe().leftovers().is_empty()
}
