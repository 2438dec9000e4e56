//! Those who attach and mount, on both nodes, stopped at every point of a pod's move between them, in every way.

use simulation_suite::move_life::Kind;
use simulation_suite::sweep::sweep_all;

const SEED: u64 = 9;

#[test]
fn a_pod_that_moves_to_another_node_takes_its_volume_along_whoever_crashes() {
    sweep_all::<Kind>("move_crashes", SEED, 120).unwrap_or_else(|wrong| panic!("{wrong}"));
}
