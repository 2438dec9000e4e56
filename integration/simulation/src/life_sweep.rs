//! The crash sweep over the lives of a claim that grows and changes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stowage_testing::{Fault, Mode, Point, World};

use crate::block_on;
use crate::growth_life::{Kind, Report, Script, play};
use crate::pipeline::Options;
use crate::sweep::{DOWNTIME, compare, play_all};

/// What else happens at the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// Nothing; a stopped service comes back at once.
    None,
    /// The claim is deleted; a stopped service comes back at once.
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
pub struct Case {
    pub kind: Kind,
    pub fault: Fault,
    pub twist: Twist,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}/{}", self.kind, self.fault, self.twist.as_str())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let twists = Twist::ALL.map(Twist::as_str).join(", ");
            let lives = Kind::ALL.map(|kind| format!("{kind:?}")).join(", ");
            format!(
                "{text:?} is no case; write LIFE/SERVICE:NUMBER:MODE/TWIST with a life of {lives} and a twist of {twists}"
            )
        };
        let parts: Vec<&str> = text.split('/').collect();
        let [kind, fault, twist] = parts[..] else { return Err(wrong()) };
        Ok(Self {
            kind: Kind::ALL.into_iter().find(|known| format!("{known:?}") == kind).ok_or_else(wrong)?,
            fault: fault.parse().map_err(|error: <Fault as FromStr>::Err| error.to_string())?,
            twist: Twist::ALL.into_iter().find(|known| known.as_str() == twist).ok_or_else(wrong)?,
        })
    }
}

/// A life without faults, to which every life with one is compared.
pub struct Recording {
    script: Script,
    report: Report,
    /// How often R1 was looked at, over all lives played.
    looks: AtomicU64,
}

impl Recording {
    /// Plays the life once.
    pub fn make(seed: u64, kind: Kind) -> Result<Self, String> {
        let script = Script::plain(seed, kind);
        let report = block_on(async { play(&World::new(seed), &script).await });
        let looks = AtomicU64::new(report.looks);
        if report.wrong.is_empty() { Ok(Self { script, report, looks }) } else { Err(report.wrong.join("\n")) }
    }

    /// What the resizer did, in order: everybody else has a sweep of their own.
    pub fn points(&self) -> impl Iterator<Item = (usize, &Point)> {
        self.report.trace.iter().enumerate().filter(|(_, point)| point.service == "resizer")
    }

    /// How often R1 was looked at.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Every way at every point, alone, and with the claim deleted there while it waits.
    pub fn cases(&self) -> Vec<Case> {
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
    pub fn run(&self, case: &Case) -> Result<Duration, String> {
        let late = case.twist == Twist::DeletedLateRestart;
        let downtime = if late { DOWNTIME } else { Duration::ZERO };
        let script = Script {
            fault: Some(case.fault.clone()),
            delete: case.twist != Twist::None,
            options: Options { downtime, ..self.script.options },
            ..self.script.clone()
        };
        let report = block_on(async { play(&World::new(script.seed), &script).await });
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
    pub fn sweep(self: &Arc<Self>, cases: &[Case]) -> Vec<Result<Duration, String>> {
        let recording = Arc::clone(self);
        play_all(cases, move |case| recording.run(case))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in ["Online/resizer:3:before/alone", "TakenBack/resizer:7:answer-lost/deleted-late-restart"] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        for text in ["Sometimes/resizer:3:before/alone", "Online/resizer:3:before/maybe", "Online"] {
            assert!(text.parse::<Case>().is_err());
        }
    }
}
