//! The controller against the embedded API server; the test plays the user, the administrator and the snapshotter.

// Helpers of a test are a test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod life {
    pub mod crashes;
    pub mod group;
    pub mod rights;
    pub mod single;
    pub mod stage;
    pub mod stuck;
}
