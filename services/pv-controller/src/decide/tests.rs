//! The reference's scenario tables, by id: what is written with which bodies, in which order, and everything told.

mod expect;
mod fixtures;
mod interleavings;
mod invariants;
mod matching;
mod metadata;
mod ours;
mod protection;
mod provision;
mod random;
mod set01_to_03;
mod set04;
mod set05_to_10;
mod set13_14;
mod world;

/// One test per row: a world, the keys that are synced, and everything that must happen. An empty list means nothing.
/// `then` says what remains to be written, where the row is about a part only and another life decides on everything.
macro_rules! scenarios {
    ($($name:ident: $sync:ident $world:expr => $expected:expr $(, then $later:expr)?;)*) => {$(
        #[test]
        fn $name() {
            let mut world: World = $world;
            let expected: Vec<String> = $expected;
            let later: Vec<Vec<String>> = vec![$($later)?];
            assert_eq!(world.with_another_life(World::$sync), (expected, later.concat()));
        }
    )*};
}

use scenarios;
