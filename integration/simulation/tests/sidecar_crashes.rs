//! Sidecars stopped at every point of what the life of an ordinary claim does not ask them for, in every way.

use simulation_suite::sidecar_life::Kind;
use simulation_suite::sweep::sweep_all;

const SEED: u64 = 7;

#[test]
fn room_classes_lists_and_volumes_that_go_first_survive_every_crash() {
    sweep_all::<Kind>("sidecar_crashes", SEED, 200).unwrap_or_else(|wrong| panic!("{wrong}"));
}
