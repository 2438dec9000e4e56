use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::pool::is_pool_name;

/// The version of volume records this driver writes; a newer one is refused, never guessed at.
pub const RECORD_VERSION: u32 = 1;
/// Hex digits of a name's digest: 128 bits, so that two names never meet.
const DIGEST_LENGTH: usize = 32;

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

/// A volume's handle: the pool, a dot, and the digest of the name it was created under.
///
/// Made from the name, it makes CreateVolume idempotent without an index, also for two controllers at once. The
/// pool's name in it lets a call tell "this volume is gone" from "its pool is not here".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeId {
    pool: String,
    key: String,
}

impl VolumeId {
    pub fn new(pool: &str, key: &str) -> Option<Self> {
        (is_pool_name(pool) && is_key(key)).then(|| VolumeId { pool: pool.into(), key: key.into() })
    }

    /// The key of the volume that was or will be created under this name.
    pub fn key_of(name: &str) -> String {
        digest(&[name], DIGEST_LENGTH)
    }

    /// `None` if this driver has never given out such a handle.
    pub fn parse(text: &str) -> Option<Self> {
        let (pool, key) = text.split_once('.')?;
        VolumeId::new(pool, key)
    }

    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The part that names the volume's files; nothing but hex digits, so no path can hide in it.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pool, self.key)
    }
}

fn is_key(text: &str) -> bool {
    text.len() == DIGEST_LENGTH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What the pool remembers about a volume. Written by the controller only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub version: u32,
    /// The name CreateVolume was called with.
    pub name: String,
    pub capacity_bytes: u64,
    pub fs_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
}

/// Which node may use a volume, and how it proves that it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub node: String,
    pub token: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handle_comes_back_as_it_was_given_out() {
        let id = VolumeId::new("fast", &VolumeId::key_of("pvc-1")).unwrap();
        assert_eq!(VolumeId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn handles_that_would_leave_the_pool_are_not_handles() {
        let key = VolumeId::key_of("pvc-1");
        for text in ["", "fast", "fake-vol-id", "fast.", "../x", "fast.../../etc/passwd", "fast.a\0b"] {
            assert_eq!(VolumeId::parse(text), None, "{text:?}");
        }
        assert_eq!(VolumeId::parse(&format!("../{key}.{key}")), None);
        assert_eq!(VolumeId::parse(&format!("fast.{}", key.to_uppercase())), None);
    }

    #[test]
    fn parts_of_a_digest_do_not_run_into_each_other() {
        assert_ne!(digest(&["ab", "c"], 12), digest(&["a", "bc"], 12));
    }

    proptest! {
        #[test]
        fn any_text_that_parses_names_only_plain_files(text in "[a-f0-9./\\\\-]{0,60}") {
            if let Some(id) = VolumeId::parse(&text) {
                prop_assert!(!id.key().contains(['/', '.']));
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
