//! The crash sweep: each life of a sort is recorded once, then played again with a service stopped at each of its points.

mod case;
mod players;
mod recording;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use stowage_testing::tell;

use crate::life::{Life, Script};

pub use case::{Case, Twist};
pub use recording::Recording;

/// The variable that names the one case to play.
pub const CASE: &str = "STOWAGE_CASE";

/// The variable that asks for all cases of every life, which takes some minutes.
pub const FULL: &str = "STOWAGE_FULL";

/// How many failing cases are shown in full.
const SHOWN: usize = 3;

/// What was swept.
#[derive(Default)]
struct Swept<L> {
    points: usize,
    cases: usize,
    looks: u64,
    failed: Vec<(Case<L>, String)>,
}

/// Sweeps every life of the sort, or plays the case that the environment asks for, and says what failed. `name` is that of
/// the test's file; fewer cases than `least` are a failure too: then a sweep has lost what it is about.
pub fn sweep_all<L: Life>(name: &str, seed: u64, least: usize) -> Result<(), String> {
    log();
    if let Ok(text) = std::env::var(CASE) {
        let case: Case<L> = text.parse().map_err(|error| format!("{CASE}: {error}"))?;
        return record(seed, case.kind)?.run(&case).map(drop).map_err(|wrong| format!("{case}\n{wrong}"));
    }
    let (begin, full) = (Instant::now(), std::env::var_os(FULL).is_some());
    let mut all = Swept { points: 0, cases: 0, looks: 0, failed: Vec::new() };
    for kind in L::ALL.iter().copied() {
        let swept = sweep(seed, kind, full)?;
        if swept.cases == 0 {
            return Err(format!("{kind:?}: nothing was swept"));
        }
        all.points += swept.points;
        all.cases += swept.cases;
        all.looks += swept.looks;
        all.failed.extend(swept.failed);
    }
    let Swept { points, cases, looks, failed } = all;
    let (bad, took) = (failed.len(), begin.elapsed());
    tell(&format!(
        "{name}: {points} points, {cases} cases swept in {took:.1?}, {bad} failed; the invariants held at {looks} looks"
    ));
    for (case, wrong) in failed.iter().take(SHOWN) {
        tell(&format!("{case}\n{wrong}"));
        tell(&format!(
            "replay: {CASE}={case} RUST_LOG=debug cargo test -p simulation-suite --test {name} -- --nocapture\n"
        ));
    }
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let names: Vec<String> = failed.iter().map(|(case, wrong)| format!("{case}: {}", first_line(wrong))).collect();
    match failed.is_empty() {
        false => Err(format!("{bad} of {cases} cases failed:\n{}", names.join("\n"))),
        true if cases < least => Err(format!("only {cases} cases were swept, and there were {least} at least before")),
        true => Ok(()),
    }
}

fn record<L: Life>(seed: u64, kind: L) -> Result<Recording<L>, String> {
    Recording::make(Script::plain(seed, kind)).map_err(|wrong| format!("{kind:?} without faults: {wrong}"))
}

fn sweep<L: Life>(seed: u64, kind: L, full: bool) -> Result<Swept<L>, String> {
    let begin = Instant::now();
    let recording = Arc::new(record(seed, kind)?);
    let cases = recording.cases(full);
    let results = recording.sweep(&cases);
    let mut of_service: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, point) in recording.points() {
        *of_service.entry(&point.service).or_default() += 1;
    }
    let points = of_service.values().sum();
    let slowest = results.iter().filter_map(|result| result.as_ref().ok()).max();
    let slowest = slowest.copied().unwrap_or(Duration::ZERO);
    let failed = cases.iter().zip(results).filter_map(|(case, result)| Some((case.clone(), result.err()?)));
    let failed: Vec<(Case<L>, String)> = failed.collect();
    let (some, bad, took) = (cases.len(), failed.len(), begin.elapsed());
    tell(&format!(
        "{kind:?}: {points} points {of_service:?}, {some} cases swept in {took:.1?}, {bad} failed, the slowest took \
         {slowest:.1?} of virtual time"
    ));
    Ok(Swept { points, cases: cases.len(), looks: recording.looks(), failed })
}

/// Logs as RUST_LOG says.
fn log() {
    let filter: Targets = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let lines = fmt::layer().without_time().with_test_writer().with_filter(filter);
    let _ = tracing_subscriber::registry().with(lines).try_init();
}
