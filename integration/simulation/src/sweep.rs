//! The crash sweep: a life is recorded once, then played again with a service stopped at each of its points.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use stowage_testing::{Fault, Mode, Point, Port, World};

use crate::block_on;
use crate::life::{Report, Script, play};
use crate::manifests::Binding;
use crate::pipeline::Options;

/// The variable that names the one case to run.
pub const CASE: &str = "STOWAGE_CASE";

/// How long a service stays down that comes back late: everybody else has done all they can by then.
pub(crate) const DOWNTIME: Duration = Duration::from_secs(1);

/// Real time without any case ending after which the ones that run will not end: a case takes about a second, on a busy
/// machine many.
const CIRCLING: Duration = Duration::from_secs(300);

/// What else happens at the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// Nothing; a stopped service comes back at once.
    None,
    /// The claim is deleted; a stopped service comes back at once.
    ClaimDeleted,
    /// The claim is deleted, and a stopped service comes back when everybody else is done.
    ClaimDeletedLateRestart,
}

impl Twist {
    const ALL: [Self; 3] = [Self::None, Self::ClaimDeleted, Self::ClaimDeletedLateRestart];

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "alone",
            Self::ClaimDeleted => "claim-deleted",
            Self::ClaimDeletedLateRestart => "claim-deleted-late-restart",
        }
    }
}

/// One life with one fault; written as `Immediate/attacher:3:before/claim-deleted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub binding: Binding,
    pub fault: Fault,
    pub twist: Twist,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.binding.as_str(), self.fault, self.twist.as_str())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let twists = Twist::ALL.map(Twist::as_str).join(", ");
            format!("{text:?} is no case; write BINDING/SERVICE:NUMBER:MODE/TWIST with a twist of {twists}")
        };
        let parts: Vec<&str> = text.split('/').collect();
        let [binding, fault, twist] = parts[..] else { return Err(wrong()) };
        let bindings = [Binding::WaitForFirstConsumer, Binding::Immediate];
        Ok(Self {
            binding: bindings.into_iter().find(|known| known.as_str() == binding).ok_or_else(wrong)?,
            fault: fault.parse().map_err(|error: <Fault as FromStr>::Err| error.to_string())?,
            twist: Twist::ALL.into_iter().find(|known| known.as_str() == twist).ok_or_else(wrong)?,
        })
    }
}

/// A life without faults, to which every life with one is compared.
pub struct Recording {
    script: Script,
    report: Report,
}

impl Recording {
    /// Plays the life once.
    pub fn make(seed: u64, binding: Binding, options: Options) -> Result<Self, String> {
        let script = Script { options, ..Script::plain(seed, binding) };
        let report = block_on(async { play(&World::new(seed), &script).await });
        if report.wrong.is_empty() { Ok(Self { script, report }) } else { Err(report.wrong.join("\n")) }
    }

    /// The same recording for lives that are given up on earlier.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.script.limit = limit;
        self
    }

    /// What happened, in order.
    pub fn points(&self) -> &[Point] {
        &self.report.trace
    }

    /// Every way to stop a service at every point, alone and with the claim deleted there.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (index, point) in self.points().iter().enumerate() {
            // Losing only the answer of a local system call is the same as being stopped after it.
            let modes = match point.port {
                Port::Node => &[Mode::Before, Mode::After][..],
                Port::Api | Port::Csi => &Mode::ALL[..],
            };
            // Earlier there is no claim to delete, later its deletion was asked for anyway.
            let has_claim = (self.report.claim_made..self.report.claim_deleted).contains(&index);
            for mode in modes {
                let fault = Fault { service: point.service.clone(), number: point.number, mode: *mode };
                let twists = match (has_claim, mode.stops()) {
                    (false, _) => &[Twist::None][..],
                    (true, false) => &[Twist::None, Twist::ClaimDeleted],
                    (true, true) => &Twist::ALL,
                };
                let case = |twist: &Twist| Case { binding: self.script.binding, fault: fault.clone(), twist: *twist };
                cases.extend(twists.iter().map(case));
            }
        }
        cases
    }

    /// Plays the life with one fault; says how long it took in virtual time, or everything that is wrong with it.
    pub fn run(&self, case: &Case) -> Result<Duration, String> {
        let late = case.twist == Twist::ClaimDeletedLateRestart;
        let downtime = if late { DOWNTIME } else { Duration::ZERO };
        let script = Script {
            fault: Some(case.fault.clone()),
            delete_claim: case.twist != Twist::None,
            options: Options { downtime, ..self.script.options },
            // Looking after every change costs more than the life itself, so only the worst way is watched all along.
            watch: case.fault.mode == Mode::AnswerLost,
            ..self.script.clone()
        };
        let report = block_on(async { play(&World::new(script.seed), &script).await });
        let mut wrong = report.wrong;
        if let Err(missed) = compare(self.points(), &case.fault, &report.trace) {
            wrong.push(missed);
        }
        // A sidecar whose driver does not answer while it starts gives up, as the originals do, and is started again.
        let excused = |end: &String| !case.fault.mode.stops() && end.starts_with(&case.fault.service);
        wrong
            .extend(report.ends.into_iter().enumerate().filter(|(n, end)| *n > 0 || !excused(end)).map(|(_, end)| end));
        if wrong.is_empty() { Ok(report.took) } else { Err(wrong.join("\n")) }
    }

    /// Plays all cases on all cores.
    pub fn sweep(self: &Arc<Self>, cases: &[Case]) -> Vec<Result<Duration, String>> {
        let recording = Arc::clone(self);
        play_all(cases, move |case| recording.run(case))
    }
}

/// The trace up to the fault must be the recorded one, else another point than meant was hit, or none.
pub(crate) fn compare(recorded: &[Point], fault: &Fault, trace: &[Point]) -> Result<(), String> {
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

/// Plays cases on all cores; one that goes round in circles without virtual time passing is a failure too.
pub(crate) fn play_all<C>(
    cases: &[C],
    run: impl Fn(&C) -> Result<Duration, String> + Send + Sync + 'static,
) -> Vec<Result<Duration, String>>
where
    C: Clone + fmt::Display + Send + 'static,
{
    let (next, run) = (Arc::new(AtomicUsize::new(0)), Arc::new(run));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
        let (cases, next, run, sender) = (cases.to_vec(), Arc::clone(&next), Arc::clone(&run), sender.clone());
        // Not joined: nobody can stop a thread that goes round in circles.
        thread::spawn(move || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(index) else { return };
                let begin = Instant::now();
                let result = run(case);
                let (took, wrong) = (begin.elapsed(), result.as_ref().err().and_then(|wrong| wrong.lines().next()));
                tracing::info!(%case, ?took, wrong, "played");
                if sender.send((index, result)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut results = BTreeMap::new();
    while let Ok((index, result)) = receiver.recv_timeout(CIRCLING) {
        results.insert(index, result);
    }
    let circling = || Err(format!("still running after {CIRCLING:?}: somebody goes round in circles"));
    let begun = next.load(Ordering::Relaxed).min(cases.len());
    (0..cases.len())
        .map(|index| match results.remove(&index) {
            Some(result) => result,
            None if index < begun => circling(),
            None => Err("not played, because another case never ended".to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in
            ["Immediate/attacher:3:before/alone", "WaitForFirstConsumer/provisioner:7:answer-lost/claim-deleted"]
        {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        for text in ["Sometimes/attacher:3:before/alone", "Immediate/attacher:3:before/maybe", "Immediate"] {
            assert!(text.parse::<Case>().is_err());
        }
    }
}
