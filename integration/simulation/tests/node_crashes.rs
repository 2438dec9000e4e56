//! Provisioners and resizers that run on every node stopped at every point of what they do there, in every way.

use simulation_suite::node_life::Kind;
use simulation_suite::sweep::sweep_all;

const SEED: u64 = 13;

#[test]
fn a_local_volume_is_made_once_and_on_one_node_whoever_crashes() {
    sweep_all::<Kind>("node_crashes", SEED, 100).unwrap_or_else(|wrong| panic!("{wrong}"));
}
