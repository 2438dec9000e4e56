//! Secret.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// Values for a driver's eyes only.
    pub struct Secret {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What kind of values they are, as in `Opaque`.
        #[serde(rename = "type")]
        pub kind: String,
        /// The values.
        pub data: SecretData,
    }
}

/// Decoded secret values, which are never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, Vec<u8>>);

impl SecretData {
    /// One value's bytes.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The values as CSI carries them; bytes that are no text are replaced, for CSI has only text.
    pub fn to_text(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into_owned())).collect()
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, format_args!("***stripped***")))).finish()
    }
}

impl<'de> Deserialize<'de> for SecretData {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
        let decode = |(key, value): (String, Option<String>)| match STANDARD.decode(value.unwrap_or_default()) {
            Ok(bytes) => Ok((key, bytes)),
            // The decoder's own message quotes a byte of the value, so it is left out.
            Err(_) => Err(serde::de::Error::custom(format!("secret data {key:?} is not base64"))),
        };
        encoded.into_iter().map(decode).collect::<Result<_, _>>().map(Self)
    }
}

impl Projection for Secret {
    const KIND: Kind = kinds::SECRET;

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

    const PASSWORD: &str =
        r#"{"metadata":{"name":"s"},"type":"Opaque","data":{"password":"aHVudGVyMg==","empty":null}}"#;

    #[test]
    fn values_are_decoded() {
        let secret: Secret = serde_json::from_str(PASSWORD).unwrap();
        assert_eq!(secret.data.get("password"), Some(b"hunter2".as_slice()));
        assert_eq!(secret.data.to_text()["password"], "hunter2");
        assert_eq!(secret.data.get("empty"), Some(b"".as_slice()));
    }

    #[test]
    fn values_are_never_printed() {
        let secret: Secret = serde_json::from_str(PASSWORD).unwrap();
        let printed = format!("{secret:?} {secret:#?}");
        assert!(printed.contains("password"));
        assert!(!printed.contains("hunter2") && !printed.contains("104"), "{printed}");
    }

    #[test]
    fn a_value_that_is_not_base64_is_named_but_not_quoted() {
        let error = serde_json::from_str::<Secret>(r#"{"data":{"password":"hunter2!"}}"#).unwrap_err().to_string();
        assert!(error.contains("\"password\" is not base64"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
