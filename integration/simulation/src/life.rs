//! What all lives have in common: how one is played, and what is found.

use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use stowage_testing::{Fault, Hang, Mode, Point, Violation, World};

use crate::pipeline::{End, Options, Pipeline};
use crate::witness::Witness;

/// No step of a life takes longer than this in virtual time, whatever happens; backoffs end at five minutes.
pub const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A sort of lives.
pub trait Life: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// Whether this service is stopped in the sweep; if not, it has a sweep of its own.
    fn sweeps(self, service: &str) -> bool;

    /// How the pipeline is for it.
    fn options(self) -> Options;

    /// Which cases are played where not all are asked for.
    fn sample(self) -> Sample {
        Sample::ALL
    }

    /// Lives it. A hang ends it early.
    fn live(world: &World, script: &Script<Self>, report: &mut Report) -> impl Future<Output = Result<(), Hang>>;
}

/// A part of all cases.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// In which ways a service is stopped.
    pub modes: &'static [Mode],
    /// At every how manieth point.
    pub every: usize,
    /// Whether the invariants are looked at after every change in every case, not only in the worst way.
    pub watched: bool,
}

impl Sample {
    /// Every way at every point. Looking after every change costs more than the life itself, so only the worst way is
    /// watched all along.
    pub const ALL: Self = Self { modes: &Mode::ALL, every: 1, watched: false };

    /// For a life of which most is done in another one too: the two ways that lose the most.
    pub const WORST: Self = Self { modes: &[Mode::Before, Mode::AnswerLost], every: 2, watched: false };
}

/// How a life is played.
#[derive(Debug, Clone)]
pub struct Script<L> {
    pub seed: u64,
    pub kind: L,
    pub options: Options,
    pub fault: Option<Fault>,
    /// Whether what the life is about is deleted at the fault.
    pub delete: bool,
    /// Whether the invariants are checked after every change, not only at the end.
    pub watch: bool,
    /// After how much virtual time a step is said to hang.
    pub limit: Duration,
}

impl<L: Life> Script<L> {
    /// A life without faults.
    pub fn plain(seed: u64, kind: L) -> Self {
        Self { seed, kind, options: kind.options(), fault: None, delete: false, watch: true, limit: LIMIT }
    }

    /// Whether what it is about was deleted at the fault, so that nobody waits for it.
    pub fn gave_up(&self, world: &World) -> bool {
        self.delete && !world.is_armed()
    }

    /// Lets the fault happen at its point, if there is one; what it is about is deleted there if that is asked for.
    pub fn arm<F>(&self, world: &World, delete: impl Fn(World) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(fault) = self.fault.clone() else { return };
        let doomed = world.clone();
        let at_fault = move || delete(doomed.clone()).boxed();
        world.arm(fault, self.delete.then(|| Arc::new(at_fault) as _));
    }
}

/// How a life went.
#[derive(Debug)]
pub struct Report {
    /// Everything the services did.
    pub trace: Vec<Point>,
    /// The points that are in no other life.
    pub own: Range<usize>,
    /// How many points there were when it could be deleted.
    pub asked: usize,
    /// How many points there were when the deletion began.
    pub deleted: usize,
    /// Virtual time from the beginning to the end.
    pub took: Duration,
    /// How often the invariants were looked at.
    pub looks: u64,
    /// Services that gave up by themselves, and why.
    pub ends: Vec<End>,
    /// What was found wrong.
    pub wrong: Vec<String>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            trace: Vec::new(),
            own: 0..usize::MAX,
            asked: 0,
            deleted: 0,
            took: Duration::ZERO,
            looks: 0,
            ends: Vec::new(),
            wrong: Vec::new(),
        }
    }
}

impl Report {
    /// Adds what was found wrong.
    pub fn note(&mut self, violations: impl IntoIterator<Item = Violation>) {
        self.wrong.extend(violations.into_iter().map(|violation| violation.to_string()));
    }

    /// The end, once everything was deleted: whoever is still down or late now comes back and must find nothing to do.
    pub async fn end<L>(&mut self, world: &World, script: &Script<L>, pipeline: &Pipeline) {
        self.took = world.elapsed();
        tokio::time::sleep(script.options.downtime).await;
        world.settle().await;
        let observed = world.observe();
        self.note(observed.violations_at_rest());
        self.note(observed.leftovers());
        self.ends = pipeline.ends();
        for (service, numbers) in world.numbers() {
            if numbers.missed_wakeups > 0 {
                self.wrong.push(format!("{service}: {} wake-ups were missed", numbers.missed_wakeups));
            }
        }
    }
}

/// Plays a life and checks the invariants; a hang is among what is wrong.
pub async fn play<L: Life>(world: &World, script: &Script<L>) -> Report {
    let mut report = Report::default();
    let witness = Witness::begin(world, script.watch);
    let lived = L::live(world, script, &mut report).await;
    let (looks, mut broken) = witness.end();
    report.looks = looks;
    if !script.options.journal {
        // Without a recorded intent a volume belongs to nobody until its object is made; only what stays is told then.
        broken.retain(|violation| violation.id != "P1");
    }
    report.note(broken);
    if let Err(hang) = lived {
        let observed = world.observe();
        report.note(observed.violations_at_rest());
        report.note(observed.leftovers());
        report.wrong.insert(0, hang.to_string());
    }
    report.trace = world.trace().points();
    report
}
