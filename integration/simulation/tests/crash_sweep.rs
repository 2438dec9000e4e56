//! Every service stopped at every point of a claim's life, in every way, with and without the claim deleted there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::sync::Arc;
use std::time::Duration;

use simulation_suite::claim_life::Kind;
use simulation_suite::life::Script;
use simulation_suite::pipeline::Options;
use simulation_suite::sweep::{Case, Recording, sweep_all};
use stowage_testing::tell;

const SEED: u64 = 1;

#[test]
fn every_life_of_a_claim_survives_every_crash() {
    sweep_all::<Kind>("crash_sweep", SEED, 900).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn without_the_intent_record_the_sweep_leaks() {
    let options = Options { journal: false, ..Options::default() };
    let recording = Recording::make(Script { options, ..Script::plain(SEED, Kind::Immediate) });
    let recording = recording.unwrap_or_else(|wrong| panic!("the life without faults: {wrong}"));
    // A leak shows as a hang; these lives need no backoff longer than a few seconds.
    let recording = Arc::new(recording.with_limit(Duration::from_secs(30)));
    let create = recording.points().find(|(_, point)| point.what.contains("/CreateVolume "));
    let create = create.map(|(_, point)| point.number).expect("a volume is made");
    let around = |case: &Case<Kind>| case.fault.service == "provisioner" && case.fault.number.abs_diff(create) <= 1;
    let cases: Vec<Case<Kind>> = recording.cases(false).into_iter().filter(around).collect();
    let results = recording.sweep(&cases);
    let leaks: Vec<String> = cases
        .iter()
        .zip(&results)
        .filter(|(_, result)| result.as_ref().is_err_and(|wrong| wrong.contains("in the driver is left")))
        .map(|(case, _)| case.to_string())
        .collect();
    tell(&format!("{} of {} cases leak without the intent record", leaks.len(), cases.len()));
    assert!(!leaks.is_empty(), "the sweep does not find the leak that the intent record prevents");
}
