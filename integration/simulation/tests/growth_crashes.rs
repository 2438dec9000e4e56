//! The resizer stopped at every point of the lives of a claim that grows and changes, in every way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;

use simulation_suite::block_on;
use simulation_suite::growth_life::Kind;
use simulation_suite::life::{Life, Script, play};
use simulation_suite::sweep::sweep_all;
use stowage_testing::World;

const SEED: u64 = 5;

#[test]
fn every_life_of_a_claim_that_grows_or_changes_survives_every_crash() {
    sweep_all::<Kind>("growth_crashes", SEED, 600).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn the_resizer_asks_for_no_more_than_its_row_in_the_docs() {
    let page = include_str!("../../../docs/rights.md");
    let row = |resource: &str| page.lines().find(|line| line.starts_with(&format!("| resizer | {resource} |")));
    let mut used = BTreeSet::new();
    for kind in Kind::ALL {
        block_on(async {
            let world = World::new(SEED);
            let report = play(&world, &Script::plain(SEED, *kind)).await;
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
