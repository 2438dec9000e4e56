//! What is shown in place of a secret. build.rs writes `Debug` for every message with a `csi_secret` field and wraps
//! those fields in [`Redacted`].

use std::{collections::BTreeMap, fmt};

/// The text the original sidecars print too, so that log searches keep working.
pub(crate) const STRIPPED: &str = "***stripped***";

/// Shows only whether there is anything: "no secret was sent" is the question asked most often of a log.
pub(crate) struct Redacted<'a>(pub &'a BTreeMap<String, String>);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("{}") } else { f.write_str(STRIPPED) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
