//! snapshot-controller, snapshotter and provisioner stopped at every point of a snapshot's lives, in every way.

use simulation_suite::snapshot_life::Kind;
use simulation_suite::sweep::sweep_all;

const SEED: u64 = 3;

#[test]
fn every_life_of_a_snapshot_survives_every_crash() {
    sweep_all::<Kind>("snapshot_crashes", SEED, 500).unwrap_or_else(|wrong| panic!("{wrong}"));
}
