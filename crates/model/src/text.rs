//! Texts that are on thousands of objects, such as keys of annotations and finalizers, kept small.

use std::fmt;
use std::ops::Deref;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::{annotations, finalizers};

/// What is on claims and volumes of any cluster, so that each of them is in memory once.
const KNOWN: [&str; 20] = [
    annotations::BIND_COMPLETED,
    annotations::BOUND_BY_CONTROLLER,
    annotations::PROVISIONED_BY,
    annotations::MIGRATED_TO,
    annotations::STORAGE_PROVISIONER,
    annotations::BETA_STORAGE_PROVISIONER,
    annotations::SELECTED_NODE,
    annotations::BETA_STORAGE_CLASS,
    annotations::STORAGE_RESIZER,
    annotations::DELETION_SECRET_NAME,
    annotations::DELETION_SECRET_NAMESPACE,
    annotations::CREATED_BY,
    finalizers::CLAIM_PROTECTION,
    finalizers::VOLUME_PROTECTION,
    finalizers::PROVISIONER,
    finalizers::SNAPSHOT_CONTENT_BOUND,
    finalizers::SNAPSHOT_BOUND,
    "yes",
    "true",
    "",
];

/// A text in two words that takes no other memory where this project knows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(Kept);

#[derive(Clone, PartialEq, Eq)]
enum Kept {
    /// Its place in [`KNOWN`].
    Known(u8),
    /// None of those.
    Other(Box<str>),
}

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Kept::Known(at) => KNOWN[usize::from(*at)],
            Kept::Other(text) => text,
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(match (0_u8..).zip(KNOWN).find(|(_, known)| *known == text) {
            Some((at, _)) => Kept::Known(at),
            None => Kept::Other(text.into()),
        })
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

/// Without a copy where the text is known.
impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Letters;

        impl Visitor<'_> for Letters {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }

        deserializer.deserialize_str(Letters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_takes_two_words() {
        assert_eq!(size_of::<Text>(), 2 * size_of::<usize>());
    }

    #[test]
    fn a_known_text_and_another_are_read_compared_and_written_alike() {
        for word in ["kubernetes.io/pv-protection", "", "example.com/held", "a\nb"] {
            let json = serde_json::to_string(word).unwrap();
            let text: Text = serde_json::from_str(&json).unwrap();
            assert_eq!(text, word);
            assert_eq!(text, Text::from(word.to_owned()));
            assert_ne!(text, "other");
            assert_eq!(serde_json::to_string(&text).unwrap(), json);
            assert_eq!(format!("{text} {text:?}"), format!("{word} {word:?}"));
        }
        assert!(serde_json::from_str::<Text>("1").is_err());
    }
}
