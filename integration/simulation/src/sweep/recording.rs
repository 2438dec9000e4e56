//! A life without faults, from which every life with one is derived and to which it is compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stowage_testing::{Fault, Mode, Point, Port, World};

use crate::block_on;
use crate::life::{Life, Report, Sample, Script, play};
use crate::pipeline::{End, Options};

use super::case::{Case, Twist};
use super::players::play_all;

/// How long a service stays down that comes back late: everybody else has done all they can by then.
const DOWNTIME: Duration = Duration::from_secs(1);

/// A life that was played without faults.
pub struct Recording<L> {
    script: Script<L>,
    report: Report,
    /// How often the invariants were looked at, over all lives played.
    looks: AtomicU64,
}

impl<L: Life> Recording<L> {
    /// Plays the life once.
    pub fn make(script: Script<L>) -> Result<Self, String> {
        let report = block_on(async { play(&World::new(script.seed), &script).await });
        let looks = AtomicU64::new(report.looks);
        if report.wrong.is_empty() { Ok(Self { script, report, looks }) } else { Err(report.wrong.join("\n")) }
    }

    /// The same recording for lives that are given up on earlier.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.script.limit = limit;
        self
    }

    /// How often the invariants were looked at.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// What the services did that are swept, in order, but for what is swept in another life.
    pub fn points(&self) -> impl Iterator<Item = (usize, &Point)> {
        let (kind, own) = (self.script.kind, self.report.own.clone());
        let points = self.report.trace.iter().enumerate();
        points.filter(move |(index, point)| own.contains(index) && kind.sweeps(&point.service))
    }

    /// Every way to stop a service at every point, alone and with a deletion there; in full, or what the life's sample has.
    pub fn cases(&self, full: bool) -> Vec<Case<L>> {
        let kind = self.script.kind;
        let sample = if full { Sample::ALL } else { kind.sample() };
        let mut cases = Vec::new();
        for (index, point) in self.points().step_by(sample.every) {
            // Earlier there is nothing to delete, later its deletion was asked for anyway.
            let is_there = (self.report.asked..self.report.deleted).contains(&index);
            for mode in modes(sample, point.port) {
                let fault = Fault { service: point.service.clone(), number: point.number, mode };
                let case = |twist: &Twist| Case { kind, fault: fault.clone(), twist: *twist };
                cases.extend(twists(is_there, mode, point.port, full).iter().map(case));
            }
        }
        cases
    }

    /// Plays the life with one fault; says how long it took in virtual time, or everything that is wrong with it.
    pub fn run(&self, case: &Case<L>) -> Result<Duration, String> {
        let downtime = if case.twist.is_late() { DOWNTIME } else { Duration::ZERO };
        let script = Script {
            fault: Some(case.fault.clone()),
            delete: case.twist.deletes(),
            options: Options { downtime, ..self.script.options },
            watch: self.script.kind.sample().watched || case.fault.mode == Mode::AnswerLost,
            ..self.script.clone()
        };
        let report = block_on(async { play(&World::new(script.seed), &script).await });
        self.looks.fetch_add(report.looks, Ordering::Relaxed);
        let mut wrong = report.wrong;
        wrong.extend(compare(&self.report.trace, &case.fault, &report.trace).err());
        let excused = self.excuses(&case.fault);
        let ends = report.ends.iter().enumerate().filter(|(n, end)| *n > 0 || !excused(end));
        wrong.extend(ends.map(|(_, end)| end.to_string()));
        if wrong.is_empty() { Ok(report.took) } else { Err(wrong.join("\n")) }
    }

    /// A sidecar whose driver does not answer while it starts gives up, as the originals do, and is started again.
    fn excuses(&self, fault: &Fault) -> impl Fn(&End) -> bool {
        let is_call =
            |point: &Point| point.service == fault.service && point.number == fault.number && point.port == Port::Csi;
        let unanswered = !fault.mode.stops() && self.report.trace.iter().any(is_call);
        let service = fault.service.clone();
        move |end| unanswered && end.gave_up && end.service == service
    }

    /// Plays cases on all cores.
    pub fn sweep(self: &Arc<Self>, cases: &[Case<L>]) -> Vec<Result<Duration, String>> {
        let recording = Arc::clone(self);
        play_all(cases, move |case| recording.run(case))
    }
}

/// Losing only the answer of a local system call is the same as being stopped after it.
fn modes(sample: Sample, port: Port) -> Vec<Mode> {
    match port {
        Port::Node => vec![Mode::Before, Mode::After],
        Port::Api | Port::Csi => sample.modes.to_vec(),
    }
}

/// Without a wish for all of them, who is stopped after its act is not also met with a deletion or come back late: it knows
/// as little as if it had lost the answer.
fn twists(is_there: bool, mode: Mode, port: Port, full: bool) -> &'static [Twist] {
    let is_worst = mode == Mode::AnswerLost || (mode == Mode::After && port == Port::Node);
    match (mode.stops(), is_there) {
        (false, false) => &[Twist::None],
        (false, true) => &[Twist::None, Twist::Deleted],
        (true, _) if mode == Mode::After && !is_worst && !full => &[Twist::None],
        (true, false) if is_worst || full => &[Twist::None, Twist::LateRestart],
        (true, false) => &[Twist::None],
        (true, true) if is_worst || full => &Twist::ALL,
        (true, true) => &[Twist::None, Twist::Deleted, Twist::DeletedLateRestart],
    }
}

/// The trace up to the fault must be the recorded one, else another point than meant was hit, or none.
fn compare(recorded: &[Point], fault: &Fault, trace: &[Point]) -> Result<(), String> {
    let at = |points: &[Point]| {
        points.iter().position(|point| point.service == fault.service && point.number == fault.number)
    };
    let (Some(end), Some(played)) = (at(recorded), at(trace)) else {
        return Err(format!("the point of {fault} was missed"));
    };
    let (recorded, played) = (&recorded[..=end], &trace[..=played]);
    match recorded.iter().zip(played).position(|(a, b)| a != b) {
        None if recorded.len() == played.len() => Ok(()),
        None => Err(format!("the point of {fault} came after {} points, not {}", played.len(), recorded.len())),
        Some(index) => {
            Err(format!("point {index} was\n  {}\nbut was recorded as\n  {}", played[index], recorded[index]))
        }
    }
}
