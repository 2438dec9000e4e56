use std::fmt;

use sha2::{Digest, Sha256};

use crate::pool::is_pool_name;

/// Hex digits of a name's digest: 128 bits, so that two names never meet.
const KEY_LENGTH: usize = 32;
/// Hex digits of a node's digest: enough to tell the nodes of one cluster apart.
const PLACE_LENGTH: usize = 12;

/// The first `length` hex digits of a SHA-256.
pub fn digest(parts: &[&str], length: usize) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let mut text: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(length);
    text
}

/// What callers know a volume, a snapshot or a group by: the pool, a dot, and the digest of the name it was created
/// under; then, in the local driver, another dot and the digest of the node whose pool it is.
///
/// Made from the name, it makes creation idempotent without an index, also for two controllers at once. The pool and
/// the node in it let a call tell "this is gone" from "this is not here".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    pool: String,
    key: String,
    place: Option<String>,
}

impl Handle {
    pub fn new(pool: &str, key: &str, place: Option<&str>) -> Option<Self> {
        let good =
            is_pool_name(pool) && is_hex(key, KEY_LENGTH) && place.is_none_or(|place| is_hex(place, PLACE_LENGTH));
        good.then(|| Handle { pool: pool.into(), key: key.into(), place: place.map(Into::into) })
    }

    /// The key of what was or will be created under this name.
    pub fn key_of(name: &str) -> String {
        digest(&[name], KEY_LENGTH)
    }

    /// The key of one part of what was created under this name.
    pub fn key_of_part(name: &str, part: &str) -> String {
        digest(&[name, part], KEY_LENGTH)
    }

    /// How handles of pools that only this node sees end.
    pub fn place_of(node: &str) -> String {
        digest(&[node], PLACE_LENGTH)
    }

    /// `None` if this driver has never given out such a handle.
    pub fn parse(text: &str) -> Option<Self> {
        let (pool, rest) = text.split_once('.')?;
        match rest.split_once('.') {
            None => Handle::new(pool, rest, None),
            Some((key, place)) => Handle::new(pool, key, Some(place)),
        }
    }

    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The part that names the files; nothing but hex digits, so no path can hide in it.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pool, self.key)?;
        self.place.iter().try_for_each(|place| write!(f, ".{place}"))
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_was_given_out_and_fits_into_csis_128_bytes() {
        let (key, place) = (Handle::key_of("pvc-1"), Handle::place_of("node-1"));
        for place in [None, Some(place.as_str())] {
            let handle = Handle::new(&"p".repeat(32), &key, place).unwrap();
            assert!(handle.to_string().len() <= 128);
            assert_eq!(Handle::parse(&handle.to_string()), Some(handle));
        }
    }

    #[test]
    fn handles_that_would_leave_the_pool_are_not_handles() {
        let key = Handle::key_of("pvc-1");
        for text in ["", "fast", "fake-vol-id", "fast.", "../x", "fast.../../etc/passwd", "fast.a\0b"] {
            assert_eq!(Handle::parse(text), None, "{text:?}");
        }
        assert_eq!(Handle::parse(&format!("../{key}.{key}")), None);
        assert_eq!(Handle::parse(&format!("fast.{}", key.to_uppercase())), None);
        assert_eq!(Handle::parse(&format!("fast.{key}.../..")), None);
    }

    #[test]
    fn parts_of_a_digest_do_not_run_into_each_other() {
        assert_ne!(digest(&["ab", "c"], 12), digest(&["a", "bc"], 12));
    }

    proptest! {
        #[test]
        fn any_text_that_parses_names_only_plain_files(text in "[a-f0-9./\\\\-]{0,60}") {
            if let Some(handle) = Handle::parse(&text) {
                prop_assert!(!handle.key().contains(['/', '.']));
                prop_assert_eq!(handle.to_string(), text);
            }
        }
    }
}
