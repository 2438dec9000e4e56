//! How often anything is told about one object, as client-go has it: 25 at once, then one in five minutes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::ObjectRef;

/// What may be told about one object at once.
const BURST: i64 = 25;

/// After that, one in so many seconds.
const REFILL_SECONDS: i64 = 300;

/// Objects remembered; with more the count begins anew, which only means that more is told.
const OBJECTS: usize = 1 << 16;

/// When each object's account is full again, by a hash of the object: two that share one would share their account, and less
/// be told. Only looked up, so that the order of a hash map reaches nobody.
#[derive(Clone, Default)]
pub(super) struct Limit(Arc<Mutex<HashMap<u64, Timestamp>>>);

impl Limit {
    /// Takes one from the object's account; says whether there was one.
    pub(super) fn admits(&self, about: &ObjectRef, now: Timestamp) -> bool {
        let mut full_at = self.0.lock().expect("no code panics while holding the accounts");
        if full_at.len() >= OBJECTS {
            full_at.retain(|_, full_at| now < *full_at);
            if full_at.len() >= OBJECTS {
                full_at.clear();
            }
        }
        let object = hash(about);
        let longest = SignedDuration::from_secs(BURST * REFILL_SECONDS);
        let before = full_at.get(&object).copied().unwrap_or(now).max(now);
        // A clock that was set back must not silence anybody for long.
        let before = if before.duration_since(now) > longest { now } else { before };
        let after = before.saturating_add(SignedDuration::from_secs(REFILL_SECONDS)).unwrap_or(Timestamp::MAX);
        let admitted = after.duration_since(now) <= longest;
        if admitted {
            full_at.insert(object, after);
        }
        admitted
    }
}

/// By its uid, or by its name where that is not known.
fn hash(about: &ObjectRef) -> u64 {
    let mut hasher = DefaultHasher::new();
    if about.uid.is_empty() {
        about.key.hash(&mut hasher)
    } else {
        about.uid.hash(&mut hasher)
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use stowage_model::object::{Key, kinds};

    use super::*;

    #[test]
    fn an_object_has_its_burst_and_then_one_event_in_five_minutes() {
        let (limit, begin) = (Limit::default(), Timestamp::UNIX_EPOCH);
        let about = |uid: &str| ObjectRef { kind: kinds::CLAIM, key: Key::namespaced("n", "c"), uid: uid.into() };
        let admitted = |uid: &str, seconds: i64, times: usize| {
            let now = begin + SignedDuration::from_secs(seconds);
            (0..times).filter(|_| limit.admits(&about(uid), now)).count()
        };
        assert_eq!(admitted("a", 0, 40), 25);
        assert_eq!(admitted("b", 0, 1), 1, "another object has an account of its own");
        assert_eq!(admitted("a", 299, 9), 0);
        assert_eq!(admitted("a", 300, 9), 1);
        assert_eq!(admitted("a", 300 * 40, 40), 25);
        assert_eq!(admitted("a", 0, 40), 25, "the clock was set back");
    }
}
