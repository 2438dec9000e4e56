//! Every service stopped at every point of a claim's life, in every way, with and without the claim deleted there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use simulation_suite::manifests::Binding;
use simulation_suite::pipeline::Options;
use simulation_suite::sweep::{CASE, Case, Recording};
use stowage_testing::Point;

const SEED: u64 = 1;

/// How many failing cases are shown in full.
const SHOWN: usize = 3;

fn record(binding: Binding, options: Options) -> Recording {
    Recording::make(SEED, binding, options).unwrap_or_else(|wrong| panic!("the life without faults: {wrong}"))
}

/// The case the environment asks for; logs as RUST_LOG says.
fn asked_for() -> Option<Case> {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_test_writer().try_init();
    let text = std::env::var(CASE).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{CASE}: {error}")))
}

/// Sweeps the points before the first that has these words, or all.
fn sweep(binding: Binding, until: Option<&str>) {
    let recording = Arc::new(record(binding, Options::default()));
    if let Some(case) = asked_for() {
        if case.binding == binding {
            recording.run(&case).unwrap_or_else(|wrong| panic!("{case}\n{wrong}"));
        }
        return;
    }
    let begin = Instant::now();
    let points = recording.points();
    let end = until.and_then(|words| points.iter().position(|point| point.what.contains(words)));
    let points = &points[..end.unwrap_or(points.len())];
    let swept = |case: &Case| {
        points.iter().any(|point| point.service == case.fault.service && point.number == case.fault.number)
    };
    let cases: Vec<Case> = recording.cases().into_iter().filter(swept).collect();
    let results = recording.sweep(&cases);
    let mut per_service: BTreeMap<&str, usize> = BTreeMap::new();
    for point in points {
        *per_service.entry(&point.service).or_default() += 1;
    }
    let failed: Vec<(&Case, &String)> =
        cases.iter().zip(&results).filter_map(|(case, result)| Some((case, result.as_ref().err()?))).collect();
    let (all, bad, took) = (cases.len(), failed.len(), begin.elapsed());
    println!("{}: {} points, {all} cases swept in {took:.1?}, {bad} failed", binding.as_str(), points.len());
    println!("  points: {per_service:?}");
    let slowest = cases.iter().zip(&results).max_by_key(|(_, result)| result.as_ref().ok().copied());
    if let Some((case, Ok(took))) = slowest {
        println!("  slowest in virtual time: {case} took {took:?}");
    }
    for (case, wrong) in failed.iter().take(SHOWN) {
        println!("{case}\n{wrong}");
        println!(
            "replay: {CASE}={case} RUST_LOG=debug cargo test -p simulation-suite --test crash_sweep -- --nocapture\n"
        );
    }
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let names: Vec<String> = failed.iter().map(|(case, wrong)| format!("{case}: {}", first_line(wrong))).collect();
    assert!(failed.is_empty(), "{bad} of {all} cases failed:\n{}", names.join("\n"));
}

#[test]
fn a_claim_that_waits_for_its_consumer_survives_every_crash() {
    sweep(Binding::WaitForFirstConsumer, None);
}

#[test]
fn a_claim_that_binds_at_once_survives_every_crash() {
    // From here on the two lives are the same.
    sweep(Binding::Immediate, Some("/binding "));
}

#[test]
fn without_the_intent_record_the_sweep_leaks() {
    let recording = record(Binding::Immediate, Options { journal: false, ..Options::default() });
    // A leak shows as a hang; these lives need no backoff longer than a few seconds.
    let recording = Arc::new(recording.with_limit(Duration::from_secs(30)));
    let is_create = |point: &&Point| point.what.contains("/CreateVolume ");
    let create = recording.points().iter().find(is_create).map(|point| point.number).expect("a volume is made");
    let around = |case: &Case| case.fault.service == "provisioner" && case.fault.number.abs_diff(create) <= 1;
    let cases: Vec<Case> = recording.cases().into_iter().filter(around).collect();
    let results = recording.sweep(&cases);
    let leaks: Vec<String> = cases
        .iter()
        .zip(&results)
        .filter(|(_, result)| result.as_ref().is_err_and(|wrong| wrong.contains("in the driver is left")))
        .map(|(case, _)| case.to_string())
        .collect();
    println!("{} of {} cases leak without the intent record: {leaks:#?}", leaks.len(), cases.len());
    assert!(!leaks.is_empty(), "the sweep does not find the leak that the intent record prevents");
}
