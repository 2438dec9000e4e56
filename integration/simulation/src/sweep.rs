//! The crash sweep: a life is recorded once, then played again with a service stopped at each of its points.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use stowage_testing::{Fault, Mode, Point, Port, World};

use crate::block_on;
use crate::life::{Report, Script, play};
use crate::manifests::Binding;
use crate::pipeline::Options;

/// The variable that names the one case to run.
pub const CASE: &str = "STOWAGE_CASE";

/// One life with one fault; written as `Immediate/attacher:3:before` or `Immediate/attacher:3:before/claim-deleted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub binding: Binding,
    pub fault: Fault,
    /// Whether the claim is deleted at the fault.
    pub delete_claim: bool,
}

const DELETED: &str = "claim-deleted";

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.binding.as_str(), self.fault)?;
        if self.delete_claim { write!(f, "/{DELETED}") } else { Ok(()) }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (binding, fault, delete_claim) = match parts[..] {
            [binding, fault] => (binding, fault, false),
            [binding, fault, DELETED] => (binding, fault, true),
            _ => return Err(format!("{text:?} is no case; write BINDING/FAULT or BINDING/FAULT/{DELETED}")),
        };
        let known = [Binding::WaitForFirstConsumer, Binding::Immediate];
        let binding = known.into_iter().find(|known| known.as_str() == binding);
        Ok(Self {
            binding: binding.ok_or_else(|| format!("{text:?} begins with no binding mode"))?,
            fault: fault.parse().map_err(|error: <Fault as FromStr>::Err| error.to_string())?,
            delete_claim,
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
                for delete_claim in if has_claim { &[false, true][..] } else { &[false] } {
                    let binding = self.script.binding;
                    cases.push(Case { binding, fault: fault.clone(), delete_claim: *delete_claim });
                }
            }
        }
        cases
    }

    /// Plays the life with one fault; says everything that is wrong with it.
    pub fn run(&self, case: &Case) -> Result<(), String> {
        let script =
            Script { fault: Some(case.fault.clone()), delete_claim: case.delete_claim, ..self.script.clone() };
        let report = block_on(async { play(&World::new(script.seed), &script).await });
        let mut wrong = report.wrong;
        if let Err(missed) = self.compare(&case.fault, &report.trace) {
            wrong.push(missed);
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// The trace up to the fault must be the recorded one, else another point than meant was hit, or none.
    fn compare(&self, fault: &Fault, trace: &[Point]) -> Result<(), String> {
        let at = |points: &[Point]| {
            points.iter().position(|point| point.service == fault.service && point.number == fault.number)
        };
        let (Some(recorded), Some(played)) = (at(self.points()), at(trace)) else {
            return Err(format!("the point of {fault} was missed"));
        };
        let (recorded, played) = (&self.points()[..=recorded], &trace[..=played]);
        match recorded.iter().zip(played).position(|(a, b)| a != b) {
            None if recorded.len() == played.len() => Ok(()),
            None => Err(format!("the point of {fault} came after {} points, not {}", played.len(), recorded.len())),
            Some(index) => Err(format!("point {index} was\n  {}\nbut was recorded as\n  {}", played[index], recorded[index])),
        }
    }

    /// Plays all cases on all cores and returns those that went wrong, in order.
    pub fn sweep(&self, cases: &[Case]) -> Vec<(Case, String)> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(Vec::new());
        let work = || {
            while let Some((index, case)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                cases.get(index).map(|case| (index, case))
            } {
                if let Err(wrong) = self.run(case) {
                    failed.lock().expect("nobody panics while holding the list").push((index, case.clone(), wrong));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
                scope.spawn(work);
            }
        });
        let mut failed = failed.into_inner().expect("nobody panicked while holding the list");
        failed.sort_by_key(|(index, _, _)| *index);
        failed.into_iter().map(|(_, case, wrong)| (case, wrong)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in ["Immediate/attacher:3:before", "WaitForFirstConsumer/provisioner:7:answer-lost/claim-deleted"] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        assert!("Sometimes/attacher:3:before".parse::<Case>().is_err());
        assert!("Immediate/attacher:3:before/maybe".parse::<Case>().is_err());
    }
}
