//! The crash sweep over lives of some sort: one service is stopped at each of its points, in every way.

use std::fmt::{self, Debug};
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stowage_testing::{Fault, Mode, Point, World};

use crate::block_on;
use crate::pipeline::Options;
use crate::sweep::{CASE, DOWNTIME, compare, play_all};

/// How many failing cases are shown in full.
const SHOWN: usize = 3;

/// A sort of lives.
pub trait Life: Copy + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// Whom the sweep stops; everybody else has a sweep of their own.
    fn swept(self) -> &'static [&'static str];

    /// How the pipeline is for it.
    fn options(self) -> Options;

    /// Plays it and checks the invariants after every change; a hang ends it early and is among what is wrong.
    fn play(world: &World, script: &Script<Self>) -> impl Future<Output = Report>;
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
}

impl<L: Life> Script<L> {
    /// A life without faults.
    pub fn plain(seed: u64, kind: L) -> Self {
        Self { seed, kind, options: kind.options(), fault: None, delete: false }
    }
}

/// How a life went.
#[derive(Debug, Default)]
pub struct Report {
    /// Everything the services did.
    pub trace: Vec<Point>,
    /// How many points there were when it could be deleted.
    pub asked: usize,
    /// How many points there were when the deletion began.
    pub deleted: usize,
    /// Virtual time from the beginning to the end.
    pub took: Duration,
    /// How often the invariants were looked at.
    pub looks: u64,
    /// Services that gave up by themselves, and why.
    pub ends: Vec<String>,
    /// What was found wrong.
    pub wrong: Vec<String>,
}

/// What else happens at the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// Nothing; a stopped service comes back at once.
    None,
    /// What it is about is deleted; a stopped service comes back at once.
    Deleted,
    /// The same, and a stopped service comes back when everybody else is done.
    DeletedLateRestart,
}

impl Twist {
    const ALL: [Self; 3] = [Self::None, Self::Deleted, Self::DeletedLateRestart];

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "alone",
            Self::Deleted => "deleted",
            Self::DeletedLateRestart => "deleted-late-restart",
        }
    }
}

/// One life with one fault; written as `Online/resizer:3:before/deleted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case<L> {
    pub kind: L,
    pub fault: Fault,
    pub twist: Twist,
}

impl<L: Life> fmt::Display for Case<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}/{}", self.kind, self.fault, self.twist.as_str())
    }
}

impl<L: Life> FromStr for Case<L> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let twists = Twist::ALL.map(Twist::as_str).join(", ");
            let lives: Vec<String> = L::ALL.iter().map(|kind| format!("{kind:?}")).collect();
            let lives = lives.join(", ");
            format!(
                "{text:?} is no case; write LIFE/SERVICE:NUMBER:MODE/TWIST with a life of {lives} and a twist of {twists}"
            )
        };
        let parts: Vec<&str> = text.split('/').collect();
        let [kind, fault, twist] = parts[..] else { return Err(wrong()) };
        Ok(Self {
            kind: L::ALL.iter().copied().find(|known| format!("{known:?}") == kind).ok_or_else(wrong)?,
            fault: fault.parse().map_err(|error: <Fault as FromStr>::Err| error.to_string())?,
            twist: Twist::ALL.into_iter().find(|known| known.as_str() == twist).ok_or_else(wrong)?,
        })
    }
}

/// A life without faults, to which every life with one is compared.
pub struct Recording<L> {
    script: Script<L>,
    report: Report,
    /// How often the invariants were looked at, over all lives played.
    looks: AtomicU64,
}

impl<L: Life> Recording<L> {
    /// Plays the life once.
    pub fn make(seed: u64, kind: L) -> Result<Self, String> {
        let script = Script::plain(seed, kind);
        let report = block_on(async { L::play(&World::new(seed), &script).await });
        let looks = AtomicU64::new(report.looks);
        if report.wrong.is_empty() { Ok(Self { script, report, looks }) } else { Err(report.wrong.join("\n")) }
    }

    /// What those who are swept did, in order.
    pub fn points(&self) -> impl Iterator<Item = (usize, &Point)> {
        let swept = self.script.kind.swept();
        self.report.trace.iter().enumerate().filter(move |(_, point)| swept.contains(&point.service.as_str()))
    }

    /// How often the invariants were looked at.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Every way at every point, alone, and with the claim deleted there while it waits.
    pub fn cases(&self) -> Vec<Case<L>> {
        let mut cases = Vec::new();
        for (index, point) in self.points() {
            let is_asking = (self.report.asked..self.report.deleted).contains(&index);
            for mode in Mode::ALL {
                let fault = Fault { service: point.service.clone(), number: point.number, mode };
                let twists = match (is_asking, mode.stops()) {
                    (false, _) => &[Twist::None][..],
                    (true, false) => &[Twist::None, Twist::Deleted],
                    (true, true) => &Twist::ALL,
                };
                let case = |twist: &Twist| Case { kind: self.script.kind, fault: fault.clone(), twist: *twist };
                cases.extend(twists.iter().map(case));
            }
        }
        cases
    }

    /// Plays the life with one fault; says how long it took in virtual time, or everything that is wrong with it.
    pub fn run(&self, case: &Case<L>) -> Result<Duration, String> {
        let late = case.twist == Twist::DeletedLateRestart;
        let downtime = if late { DOWNTIME } else { Duration::ZERO };
        let script = Script {
            fault: Some(case.fault.clone()),
            delete: case.twist != Twist::None,
            options: Options { downtime, ..self.script.options },
            ..self.script.clone()
        };
        let report = block_on(async { L::play(&World::new(script.seed), &script).await });
        self.looks.fetch_add(report.looks, Ordering::Relaxed);
        let mut wrong = report.wrong;
        wrong.extend(compare(&self.report.trace, &case.fault, &report.trace).err());
        // A sidecar whose driver does not answer while it starts gives up, as the originals do, and is started again.
        let excused = |end: &String| !case.fault.mode.stops() && end.starts_with(&case.fault.service);
        wrong
            .extend(report.ends.into_iter().enumerate().filter(|(n, end)| *n > 0 || !excused(end)).map(|(_, end)| end));
        if wrong.is_empty() { Ok(report.took) } else { Err(wrong.join("\n")) }
    }

    /// Plays all cases on all cores.
    pub fn sweep(self: &Arc<Self>, cases: &[Case<L>]) -> Vec<Result<Duration, String>> {
        let recording = Arc::clone(self);
        play_all(cases, move |case| recording.run(case))
    }
}

/// Sweeps every life of the sort, or plays the case that the environment asks for, and says what failed, or how many cases
/// there were. `tell` shows the numbers, `name` is that of the test's file.
pub fn sweep_all<L: Life>(name: &str, seed: u64, tell: impl Fn(&str)) -> Result<usize, String> {
    let record = |kind| Recording::<L>::make(seed, kind).map_err(|wrong| format!("{kind:?} without faults: {wrong}"));
    if let Ok(text) = std::env::var(CASE) {
        let case: Case<L> = text.parse().map_err(|error| format!("{CASE}: {error}"))?;
        record(case.kind)?.run(&case).map_err(|wrong| format!("{case}\n{wrong}"))?;
        return Ok(usize::MAX);
    }
    let begin = Instant::now();
    let (mut points, mut cases, mut looks, mut failed) = (0, 0, 0, Vec::new());
    for kind in L::ALL.iter().copied() {
        let recording = Arc::new(record(kind)?);
        let swept = recording.cases();
        let results = recording.sweep(&swept);
        let wrong = swept.iter().zip(results).filter_map(|(case, result)| Some((case.clone(), result.err()?)));
        let wrong: Vec<(Case<L>, String)> = wrong.collect();
        let (some, all) = (recording.points().count(), swept.len());
        tell(&format!("{kind:?}: {some} points, {all} cases swept, {} failed", wrong.len()));
        points += some;
        cases += all;
        looks += recording.looks();
        failed.extend(wrong);
    }
    let (bad, took) = (failed.len(), begin.elapsed());
    tell(&format!(
        "{name}: {points} points, {cases} cases swept in {took:.1?}, {bad} failed; the invariants held at {looks} looks"
    ));
    for (case, wrong) in failed.iter().take(SHOWN) {
        tell(&format!("{case}\n{wrong}"));
        tell(&format!(
            "replay: {CASE}={case} RUST_LOG=debug cargo test -p simulation-suite --test {name} -- --nocapture\n"
        ));
    }
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let names: Vec<String> = failed.iter().map(|(case, wrong)| format!("{case}: {}", first_line(wrong))).collect();
    match failed.is_empty() {
        true => Ok(cases),
        false => Err(format!("{bad} of {cases} cases failed:\n{}", names.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth_life::Kind;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in ["Online/resizer:3:before/alone", "TakenBack/resizer:7:answer-lost/deleted-late-restart"] {
            assert_eq!(text.parse::<Case<Kind>>().unwrap().to_string(), text);
        }
        for text in ["Sometimes/resizer:3:before/alone", "Online/resizer:3:before/maybe", "Online"] {
            assert!(text.parse::<Case<Kind>>().is_err());
        }
    }
}
