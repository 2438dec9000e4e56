//! The resizer stopped at every point of the lives of a claim that grows and changes, in every way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Instant;

use simulation_suite::block_on;
use simulation_suite::growth_life::{Kind, Script, play};
use simulation_suite::growth_sweep::{Case, Recording};
use simulation_suite::sweep::CASE;
use stowage_testing::World;

const SEED: u64 = 5;

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
fn every_life_of_a_claim_that_grows_or_changes_survives_every_crash() {
    if let Some(case) = asked_for() {
        record(case.kind).run(&case).unwrap_or_else(|wrong| panic!("{case}\n{wrong}"));
        return;
    }
    let begin = Instant::now();
    let (mut points, mut cases, mut looks, mut failed) = (0, 0, 0, Vec::new());
    for kind in Kind::ALL {
        let recording = Arc::new(record(kind));
        let swept = recording.cases();
        let results = recording.sweep(&swept);
        let wrong = swept.iter().zip(results).filter_map(|(case, result)| Some((case.clone(), result.err()?)));
        let wrong: Vec<(Case, String)> = wrong.collect();
        let (some, all) = (recording.points().count(), swept.len());
        tell(&format!("{kind:?}: {some} points, {all} cases swept, {} failed", wrong.len()));
        points += some;
        cases += all;
        looks += recording.looks();
        failed.extend(wrong);
    }
    let (bad, took) = (failed.len(), begin.elapsed());
    tell(&format!(
        "growth: {points} points, {cases} cases swept in {took:.1?}, {bad} failed; R1 held at {looks} looks"
    ));
    for (case, wrong) in failed.iter().take(SHOWN) {
        tell(&format!("{case}\n{wrong}"));
        tell(&format!(
            "replay: {CASE}={case} RUST_LOG=debug cargo test -p simulation-suite --test growth_crashes -- --nocapture\n"
        ));
    }
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let names: Vec<String> = failed.iter().map(|(case, wrong)| format!("{case}: {}", first_line(wrong))).collect();
    assert!(failed.is_empty(), "{bad} of {cases} cases failed:\n{}", names.join("\n"));
    assert!(cases > 300, "only {cases} cases");
}

#[test]
fn the_resizer_asks_for_no_more_than_its_row_in_the_docs() {
    let page = include_str!("../../../docs/rights.md");
    let row = |resource: &str| page.lines().find(|line| line.starts_with(&format!("| resizer | {resource} |")));
    let mut used = BTreeSet::new();
    for kind in Kind::ALL {
        block_on(async {
            let world = World::new(SEED);
            let report = play(&world, &Script::plain(SEED, kind)).await;
            assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
            used.extend(world.trace().rights().into_iter().filter(|(service, _)| service == "resizer"));
        });
    }
    assert!(used.len() > 8, "{used:?}");
    for (_, right) in used {
        let words: Vec<&str> = row(&right.resource).unwrap_or_default().split_whitespace().collect();
        assert!(words.contains(&right.verb), "{} {} is not in docs/rights.md", right.verb, right.resource);
    }
}
