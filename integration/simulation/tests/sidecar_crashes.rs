//! Sidecars stopped at every point of what the life of an ordinary claim does not ask them for, in every way.

use std::io::{self, Write as _};

use simulation_suite::life_sweep::sweep_all;
use simulation_suite::sidecar_life::Kind;

const SEED: u64 = 7;

#[test]
fn room_classes_lists_and_volumes_that_go_first_survive_every_crash() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_test_writer().try_init();
    // Written past the test harness, which shows what a passing test prints to nobody.
    let tell = |line: &str| drop(writeln!(io::stderr(), "{line}"));
    let cases = sweep_all::<Kind>("sidecar_crashes", SEED, tell).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(cases > 200, "only {cases} cases");
}
