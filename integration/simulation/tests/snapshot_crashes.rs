//! snapshot-controller, snapshotter and provisioner stopped at every point of a snapshot's lives, in every way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Instant;

use simulation_suite::snapshot_life::Kind;
use simulation_suite::snapshot_sweep::{Case, FULL, Recording};
use simulation_suite::sweep::CASE;

const SEED: u64 = 3;

/// How many failing cases are shown in full.
const SHOWN: usize = 3;

/// Written past the test harness, which shows what a passing test prints to nobody.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn record(kind: Kind) -> Recording {
    Recording::make(SEED, kind).unwrap_or_else(|wrong| panic!("{kind:?} without faults: {wrong}"))
}

/// The case the environment asks for; logs as RUST_LOG says.
fn asked_for() -> Option<Case> {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_test_writer().try_init();
    let text = std::env::var(CASE).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{CASE}: {error}")))
}

#[test]
fn every_life_of_a_snapshot_survives_every_crash() {
    if let Some(case) = asked_for() {
        record(case.kind).run(&case).unwrap_or_else(|wrong| panic!("{case}\n{wrong}"));
        return;
    }
    let (begin, full) = (Instant::now(), std::env::var_os(FULL).is_some());
    let (mut points, mut cases, mut failed) = (0, 0, Vec::new());
    for kind in Kind::ALL {
        let began = Instant::now();
        let recording = Arc::new(record(kind));
        let swept = recording.cases(full);
        let results = recording.sweep(&swept);
        let wrong = swept.iter().zip(results).filter_map(|(case, result)| Some((case.clone(), result.err()?)));
        let wrong: Vec<(Case, String)> = wrong.collect();
        let (some, all, took) = (recording.points().count(), swept.len(), began.elapsed());
        tell(&format!("{kind:?}: {some} points, {all} cases swept in {took:.1?}, {} failed", wrong.len()));
        points += some;
        cases += all;
        failed.extend(wrong);
    }
    let (bad, took) = (failed.len(), begin.elapsed());
    tell(&format!("snapshots: {points} points, {cases} cases swept in {took:.1?}, {bad} failed"));
    for (case, wrong) in failed.iter().take(SHOWN) {
        tell(&format!("{case}\n{wrong}"));
        tell(&format!(
            "replay: {CASE}={case} RUST_LOG=debug cargo test -p simulation-suite --test snapshot_crashes -- --nocapture\n"
        ));
    }
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let names: Vec<String> = failed.iter().map(|(case, wrong)| format!("{case}: {}", first_line(wrong))).collect();
    assert!(failed.is_empty(), "{bad} of {cases} cases failed:\n{}", names.join("\n"));
}
