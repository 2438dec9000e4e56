//! For tests of controllers: reading is only reading.

use std::fmt::Debug;

use jiff::Timestamp;

use super::{Controller, Reserved};

/// Looks at every key as the resync's probe does. Panics if gathering again gives another snapshot, or deciding another
/// decision, although nothing has happened in between.
pub fn assert_quiet<C: Controller>(controller: &C, now: Timestamp)
where
    C::Snapshot: PartialEq + Debug,
    C::Action: PartialEq,
    C::Why: PartialEq,
{
    let reserved = Reserved::default();
    for key in controller.keys() {
        let before = controller.gather(&key, &reserved, now);
        let decision = C::decide(&before, now);
        let after = controller.gather(&key, &reserved, now);
        assert_eq!(before, after, "gathering {key:?} changed something");
        assert_eq!(decision, C::decide(&after, now), "deciding on {key:?} is not a function of its snapshot");
    }
}
