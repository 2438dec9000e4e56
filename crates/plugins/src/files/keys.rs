//! Keys of an object as files.

use stowage_model::volume_source::KeyToPath;
use stowage_model::{ConfigMap, Secret};

use crate::atomic_writer::{FileProjection, Payload};

/// An object that has values by key.
pub trait Keyed {
    /// One value.
    fn value(&self, key: &str) -> Option<&[u8]>;

    /// All keys.
    fn all_keys(&self) -> Vec<&str>;
}

impl Keyed for ConfigMap {
    fn value(&self, key: &str) -> Option<&[u8]> {
        self.get(key)
    }

    fn all_keys(&self) -> Vec<&str> {
        self.keys().collect()
    }
}

impl Keyed for Secret {
    fn value(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key)
    }

    fn all_keys(&self) -> Vec<&str> {
        self.data.keys().collect()
    }
}

/// Adds the keys that are asked for, or all of them where none is; what is wrong is said for each key.
pub fn add(
    payload: &mut Payload,
    object: &dyn Keyed,
    items: &[KeyToPath],
    default_mode: u32,
    optional: bool,
) -> Result<(), String> {
    let file = |data: &[u8], mode| FileProjection { data: data.to_vec(), mode, uid: None };
    if items.is_empty() {
        for key in object.all_keys() {
            let data = object.value(key).unwrap_or_default();
            payload.insert(key.to_owned(), file(data, default_mode));
        }
        return Ok(());
    }
    let mut missing = Vec::new();
    for item in items {
        match object.value(&item.key) {
            Some(data) => {
                payload.insert(item.path.clone(), file(data, item.mode.unwrap_or(default_mode)));
            }
            None if optional => {}
            None => missing.push(format!("{:?}", item.key)),
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("has no key {}; add it, take it from items, or set optional: true", missing.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map() -> ConfigMap {
        serde_json::from_value(json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "/w==" } })).unwrap()
    }

    fn added(items: serde_json::Value, optional: bool) -> Result<Vec<(String, Vec<u8>, u32)>, String> {
        let items: Vec<KeyToPath> = serde_json::from_value(items).unwrap();
        let mut payload = Payload::new();
        add(&mut payload, &map(), &items, 0o644, optional)?;
        Ok(payload.into_iter().map(|(path, file)| (path, file.data, file.mode)).collect())
    }

    fn one(path: &str, data: &[u8], mode: u32) -> (String, Vec<u8>, u32) {
        (path.to_owned(), data.to_vec(), mode)
    }

    #[test]
    fn row_134_all_keys_mapped_keys_sub_directories_and_modes() {
        let all = [one("a", b"1", 0o644), one("b", b"2", 0o644), one("c", &[0xff], 0o644)];
        assert_eq!(added(json!([]), false).unwrap(), all);
        let items = json!([{ "key": "a", "path": "x/y/a" }, { "key": "c", "path": "c", "mode": 0o400 }]);
        assert_eq!(added(items, false).unwrap(), [one("c", &[0xff], 0o400), one("x/y/a", b"1", 0o644)]);
    }

    #[test]
    fn row_134_a_missing_key_is_named_unless_it_is_optional() {
        let items =
            json!([{ "key": "a", "path": "a" }, { "key": "gone", "path": "g" }, { "key": "left", "path": "l" }]);
        let error = added(items.clone(), false).unwrap_err();
        assert!(error.contains("\"gone\", \"left\"") && error.contains("optional: true"), "{error}");
        assert_eq!(added(items, true).unwrap(), [one("a", b"1", 0o644)]);
    }
}
