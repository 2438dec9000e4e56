//! What the services' metrics say, summed over their lives.

use std::collections::BTreeMap;

use stowage_runtime::metrics::Metrics;

/// Sums of counters over all lives of one service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Decisions taken.
    pub decisions: u64,
    /// Actions only the slow resync found.
    pub missed_wakeups: u64,
    /// Invariants the service itself found broken.
    pub invariant_violations: u64,
}

impl Numbers {
    pub(crate) fn of(lives: &[Metrics]) -> Self {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let texts: Vec<String> = lives.iter().map(Metrics::encode).collect();
        for line in texts.iter().flat_map(|text| text.lines()) {
            if let (Some((family, _)), Some((_, value))) = (line.split_once('{'), line.rsplit_once(' ')) {
                *sums.entry(family).or_insert(0) += value.parse::<u64>().unwrap_or(0);
            }
        }
        let sum = |family: &str| sums.get(family).copied().unwrap_or(0);
        Self {
            decisions: sum("stowage_decisions_total"),
            missed_wakeups: sum("stowage_missed_wakeups_total"),
            invariant_violations: sum("stowage_invariant_violations_total"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_lives_and_controllers() {
        let (first, second) = (Metrics::default(), Metrics::default());
        first.decisions("a").inc_by(3);
        first.decisions("b").inc_by(4);
        second.decisions("a").inc_by(5);
        second.missed_wakeups("a").inc();
        let numbers = Numbers::of(&[first, second]);
        assert_eq!(numbers, Numbers { decisions: 12, missed_wakeups: 1, invariant_violations: 0 });
    }
}
