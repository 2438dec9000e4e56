//! The life of a claim: made, mounted for a pod, released, gone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;

use stowage_model::object::kinds;
use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_testing::{Fault, Hang, Point, Violation, World};

use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, Pipeline};

/// The claim's name.
pub const CLAIM: &str = "data";

/// The pod's name.
pub const POD: &str = "app";

/// No step of a life takes longer than this in virtual time, whatever happens; backoffs end at five minutes.
pub const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Which life is played.
#[derive(Debug, Clone)]
pub struct Script {
    pub seed: u64,
    pub binding: Binding,
    pub options: pipeline::Options,
    pub fault: Option<Fault>,
    /// Whether the claim is deleted at the fault.
    pub delete_claim: bool,
    /// Whether the invariants are checked after every change, not only at the end.
    pub watch: bool,
    /// After how much virtual time a step is said to hang.
    pub limit: Duration,
}

impl Script {
    /// A life without faults.
    pub fn plain(seed: u64, binding: Binding) -> Self {
        let options = pipeline::Options::default();
        Self { seed, binding, options, fault: None, delete_claim: false, watch: true, limit: LIMIT }
    }
}

/// How a life went.
#[derive(Debug, Default)]
pub struct Report {
    /// Everything the services did.
    pub trace: Vec<Point>,
    /// How many points there were when the claim was made.
    pub claim_made: usize,
    /// How many points there were when the claim's deletion was asked for.
    pub claim_deleted: usize,
    /// Virtual time from the beginning to the end.
    pub took: Duration,
    /// Services that gave up by themselves, and why.
    pub ends: Vec<String>,
    /// What was found wrong.
    pub wrong: Vec<String>,
}

/// Plays a life and checks the invariants; a hang ends it early and is among what is wrong.
pub async fn play(world: &World, script: &Script) -> Report {
    let mut stage = Stage { world, script, report: Report::default() };
    let broken: Arc<Mutex<BTreeSet<Violation>>> = Arc::default();
    let watcher = tokio::spawn(watch(world.clone(), Arc::clone(&broken), script.watch));
    let played = stage.play().await;
    watcher.abort();
    let mut broken = broken.lock().expect("nobody panics while holding the set").clone();
    if !script.options.journal {
        // Without a recorded intent a volume belongs to nobody until its object is made; only what stays is told then.
        broken.retain(|violation| violation.id != "P1");
    }
    stage.note(broken.into_iter().collect());
    if let Err(hang) = played {
        let observed = world.observe();
        stage.note(observed.violations_at_rest());
        stage.note(observed.leftovers());
        stage.report.wrong.insert(0, hang.to_string());
    }
    stage.report.trace = world.trace().points();
    stage.report
}

/// Wakes up after every change in any case, so that a life takes the same course whether it is watched or not.
async fn watch(world: World, broken: Arc<Mutex<BTreeSet<Violation>>>, look: bool) {
    loop {
        let seen = world.changes().count();
        if look {
            let violations = world.observe().violations();
            broken.lock().expect("nobody panics while holding the set").extend(violations);
        }
        world.changes().beyond(seen).await;
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
    report: Report,
}

impl Stage<'_> {
    async fn play(&mut self) -> Result<(), Hang> {
        let (world, admin, limit) = (self.world, self.world.admin(), self.script.limit);
        let made = "the manifests of a life are valid";
        admin.create(kinds::CSI_DRIVER, manifests::csi_driver()).await.expect(made);
        admin.create(kinds::STORAGE_CLASS, manifests::class(self.script.binding)).await.expect(made);
        self.arm();
        let pipeline = Pipeline::start(world, self.script.options);
        pipeline.ready(limit).await?;

        self.report.claim_made = world.trace().len();
        admin.create(kinds::CLAIM, manifests::claim(CLAIM, "1Gi")).await.expect(made);
        admin.create(kinds::POD, manifests::pod(POD, CLAIM)).await.expect(made);
        let gave_up = || self.script.delete_claim && !world.is_armed();
        world.until("the pod Running with its volume", limit, || gave_up() || is_running(world)).await?;
        if !gave_up() {
            self.check_mounted();
        }

        admin.delete(kinds::POD, &key(POD)).await.expect("a pod can be deleted");
        let pod_gone = || gave_up() || !admin.exists(kinds::POD, &key(POD));
        world.until("the end of the pod", limit, pod_gone).await?;
        self.report.claim_deleted = world.trace().len();
        admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        world.until("the end of everything", limit, || is_all_gone(world)).await?;
        self.report.took = world.elapsed();

        // Whoever is still down or late now comes back and must find nothing to do.
        tokio::time::sleep(self.script.options.downtime).await;
        world.settle().await;
        let observed = world.observe();
        self.note(observed.violations_at_rest());
        self.note(observed.leftovers());
        self.report.ends = pipeline.ends();
        for (service, numbers) in world.numbers() {
            if numbers.missed_wakeups > 0 {
                self.report.wrong.push(format!("{service}: {} wake-ups were missed", numbers.missed_wakeups));
            }
        }
        Ok(())
    }

    fn arm(&self) {
        let Some(fault) = self.script.fault.clone() else { return };
        let admin = self.world.admin().clone();
        let delete = move || {
            let admin = admin.clone();
            async move { admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted") }.boxed()
        };
        self.world.arm(fault, self.script.delete_claim.then(|| Arc::new(delete) as _));
    }

    fn check_mounted(&mut self) {
        let observed = self.world.observe();
        let (volumes, driver) = (observed.volumes.len(), &observed.driver);
        if (volumes, driver.volumes.len(), driver.published.len()) != (1, 1, 1) {
            self.report
                .wrong
                .push(format!("the pod runs, but there are {volumes} volumes and the driver has {driver:?}"));
        }
    }

    fn note(&mut self, violations: Vec<Violation>) {
        self.report.wrong.extend(violations.iter().map(ToString::to_string));
    }
}

fn is_running(world: &World) -> bool {
    let pod: Option<Pod> = world.admin().get(&key(POD));
    pod.is_some_and(|pod| pod.status.phase == PodPhase::Running)
}

/// Cheap looks first: this is asked after every change.
fn is_all_gone(world: &World) -> bool {
    let admin = world.admin();
    world.driver().snapshot().is_empty()
        && !admin.exists(kinds::CLAIM, &key(CLAIM))
        && admin.list_raw(kinds::VOLUME).is_empty()
        && world.observe().leftovers().is_empty()
}
