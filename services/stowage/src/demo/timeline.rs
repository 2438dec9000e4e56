//! Where the time went: phases that follow each other without a gap, and the driver's share of each.

use std::time::Duration;

use tokio::time::Instant;

use crate::calls::Call;

/// Phases by their ends; the first begins with the timeline.
#[derive(Debug, Clone)]
pub struct Timeline {
    start: Instant,
    ends: Vec<(String, Instant)>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// What happened.
    pub name: String,
    /// How long it took.
    pub took: Duration,
    /// How much of that a driver call was under way.
    pub driver: Duration,
}

impl Timeline {
    /// Begins now.
    pub fn start(start: Instant) -> Self {
        Self { start, ends: Vec::new() }
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.start
    }

    /// Ends a phase; observers may report out of order, a phase never ends before the one before it.
    pub fn mark(&mut self, name: impl Into<String>, at: Instant) {
        let last = self.ends.last().map_or(self.start, |(_, at)| *at);
        self.ends.push((name.into(), at.max(last)));
    }

    /// The phases, with the driver's part of each.
    pub fn phases(&self, calls: &[Call]) -> Vec<Phase> {
        let mut from = self.start;
        let phase = |(name, to): &(String, Instant)| {
            let driver = covered(calls, from, *to);
            let phase = Phase { name: name.clone(), took: *to - from, driver };
            from = *to;
            phase
        };
        self.ends.iter().map(phase).collect()
    }

    /// From the start to the end of the last phase.
    pub fn wall(&self) -> Duration {
        self.ends.last().map_or(Duration::ZERO, |(_, at)| *at - self.start)
    }
}

/// How long at least one call was under way between two moments.
fn covered(calls: &[Call], from: Instant, to: Instant) -> Duration {
    let mut spans: Vec<(Instant, Instant)> =
        calls.iter().map(|call| (call.from.max(from), call.to.min(to))).filter(|(start, end)| start < end).collect();
    spans.sort();
    let mut total = Duration::ZERO;
    let mut reached = from;
    for (start, end) in spans {
        let start = start.max(reached);
        if end > start {
            total += end - start;
            reached = end;
        }
    }
    total
}

/// The table as text; its last line is the sum, which is the wall time.
pub fn table(phases: &[Phase]) -> String {
    let width = phases.iter().map(|phase| phase.name.chars().count()).max().unwrap_or(0).max(5);
    let mut lines = vec![format!("{:<width$}  {:>10}  {:>10}  {:>10}", "phase", "ms", "driver", "ours")];
    let mut row = |name: &str, took: Duration, driver: Duration| {
        lines.push(format!(
            "{name:<width$}  {:>10.1}  {:>10.1}  {:>10.1}",
            millis(took),
            millis(driver),
            millis(took.saturating_sub(driver))
        ));
    };
    for phase in phases {
        row(&phase.name, phase.took, phase.driver);
    }
    let took = phases.iter().map(|phase| phase.took).sum();
    let driver = phases.iter().map(|phase| phase.driver).sum();
    row("sum", took, driver);
    lines.join("\n")
}

/// Milliseconds with a fraction.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(start: Instant, from: u64, to: u64) -> Call {
        let at = |ms| start + Duration::from_millis(ms);
        Call { method: "CreateVolume".into(), from: at(from), to: at(to) }
    }

    #[test]
    fn the_phases_add_up_to_the_wall_time() {
        let start = Instant::now();
        let mut timeline = Timeline::start(start);
        for (name, ms) in [("a", 5), ("late report", 3), ("c", 20)] {
            timeline.mark(name, start + Duration::from_millis(ms));
        }
        let phases = timeline.phases(&[]);
        assert_eq!(phases.iter().map(|phase| phase.took).sum::<Duration>(), timeline.wall());
        assert_eq!(timeline.wall(), Duration::from_millis(20));
    }

    #[test]
    fn overlapping_calls_count_once_and_only_inside_their_phase() {
        let start = Instant::now();
        let mut timeline = Timeline::start(start);
        timeline.mark("a", start + Duration::from_millis(10));
        timeline.mark("b", start + Duration::from_millis(30));
        let calls = [call(start, 5, 15), call(start, 8, 12), call(start, 25, 40)];
        let driver: Vec<u128> = timeline.phases(&calls).iter().map(|phase| phase.driver.as_millis()).collect();
        assert_eq!(driver, [5, 10]);
    }
}
