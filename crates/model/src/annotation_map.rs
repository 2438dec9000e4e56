//! The annotations of an object, kept small: one allocation for all of them, and none for what this project knows.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::text::Text;

/// A copy of the whole object as `kubectl apply` last sent it: bulky, and nobody decides on it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotations by key, except the bulky `last-applied-configuration`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Annotations(Box<[(Text, Text)]>);

impl Annotations {
    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(present, _)| (**present).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Adds or replaces one.
    pub fn insert(&mut self, key: String, value: String) {
        let mut entries = std::mem::take(&mut self.0).into_vec();
        entries.push((key.into(), value.into()));
        *self = Self::sorted(entries);
    }

    /// Of two values under one key the later counts, as in any map.
    fn sorted(mut entries: Vec<(Text, Text)>) -> Self {
        entries.reverse();
        entries.sort_by(|(a, _), (b, _)| (**a).cmp(b));
        entries.dedup_by(|(later, _), (kept, _)| later == kept);
        Self(entries.into_boxed_slice())
    }
}

impl fmt::Debug for Annotations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(String, String)> for Annotations {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(entries: I) -> Self {
        Self::sorted(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Text>()? {
                    if key == *LAST_APPLIED {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((key, map.next_value()?));
                    }
                }
                Ok(Annotations::sorted(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Annotations {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn values_are_found_by_key_whatever_their_order_and_escapes() {
        let found = read(r#"{ "z": "1", "pv.kubernetes.io/bind-completed": "yes", "a": "x\ny", "m": "" }"#);
        assert_eq!(found.get("pv.kubernetes.io/bind-completed"), Some("yes"));
        assert_eq!((found.get("a"), found.get("m"), found.get("z")), (Some("x\ny"), Some(""), Some("1")));
        assert_eq!(found.get("b"), None);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "m", "pv.kubernetes.io/bind-completed", "z"]);
    }

    #[test]
    fn of_two_values_under_one_key_the_later_counts() {
        assert_eq!(read(r#"{ "a": "1", "b": "2", "a": "3" }"#).get("a"), Some("3"));
        let mut found = read(r#"{ "a": "1" }"#);
        found.insert("a".to_owned(), "2".to_owned());
        found.insert("b".to_owned(), "yes".to_owned());
        assert_eq!(found, read(r#"{ "b": "yes", "a": "2" }"#));
    }

    #[test]
    fn the_copy_of_the_whole_object_is_not_kept() {
        let found = read(r#"{ "kubectl.kubernetes.io/last-applied-configuration": "{...}", "a": "1" }"#);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn a_value_that_is_no_string_is_refused() {
        assert!(serde_json::from_str::<Annotations>(r#"{ "a": 1 }"#).is_err());
    }
}
