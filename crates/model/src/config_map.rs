//! ConfigMap.

use std::collections::BTreeMap;

use crate::object::{Kind, Meta, Projection, kinds};
use crate::secret::SecretData;

projection! {
    /// Values for anybody's eyes.
    pub struct ConfigMap {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// Values that are text.
        pub data: BTreeMap<String, String>,
        /// Values that are bytes; no key is in both.
        pub binary_data: SecretData,
    }
}

impl ConfigMap {
    /// One value's bytes.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key).map(String::as_bytes).or_else(|| self.binary_data.get(key))
    }

    /// The keys of both kinds of values.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.data.keys().map(String::as_str).chain(self.binary_data.keys())
    }
}

impl Projection for ConfigMap {
    const KIND: Kind = kinds::CONFIG_MAP;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_found_by_their_keys() {
        let map: ConfigMap = serde_json::from_str(r#"{"data":{"a":"x","n":""},"binaryData":{"b":"AP8="}}"#).unwrap();
        assert_eq!(map.keys().collect::<Vec<_>>(), ["a", "n", "b"]);
        assert_eq!((map.get("a"), map.get("b")), (Some(b"x".as_slice()), Some([0, 255].as_slice())));
        assert_eq!(map.get("c"), None);
    }
}
