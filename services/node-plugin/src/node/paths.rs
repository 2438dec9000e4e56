//! Ids and paths from callers, read without trust.

use std::path::{Component, Path, PathBuf};

use super::Error;
use crate::volume::VolumeId;

/// The kernel's limit for a path, NUL included.
const MAX_PATH: usize = 4096;
/// The kernel's limit for one name in it.
const MAX_COMPONENT: usize = 255;

pub fn read_id(text: &str) -> Result<VolumeId, Error> {
    match text {
        "" => Err(Error::ReadField { field: "volume_id" }),
        text => VolumeId::parse(text).ok_or_else(|| Error::FindVolume { volume: text.chars().take(128).collect() }),
    }
}

/// A path without tricks: absolute, and no `..` that could lead elsewhere.
pub fn read_path(field: &'static str, text: &str) -> Result<PathBuf, Error> {
    if text.is_empty() {
        return Err(Error::ReadField { field });
    }
    let refuse = |reason| Err(Error::ReadPath { field, value: text.chars().take(MAX_COMPONENT).collect(), reason });
    if text.len() >= MAX_PATH {
        return refuse("it is longer than 4095 bytes");
    }
    let path = Path::new(text);
    if !path.is_absolute() {
        return refuse("it must be absolute");
    }
    if text.contains('\0') || path.components().any(|part| !matches!(part, Component::RootDir | Component::Normal(_))) {
        return refuse("it must not contain .. or a zero byte");
    }
    if path.components().any(|part| part.as_os_str().len() > MAX_COMPONENT) {
        return refuse("a name in it is longer than 255 bytes");
    }
    match path.parent() {
        None => refuse("the root directory cannot be a target"),
        Some(_) => Ok(path.components().collect()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_with_tricks_are_refused_by_field_and_value() {
        let (long, wide) = (format!("/{}", "a/".repeat(3000)), format!("/{}", "a".repeat(256)));
        for bad in ["relative", "/", "/a/../b", "/a\0b", &long, &wide] {
            let message = read_path("target_path", bad).unwrap_err().to_string();
            assert!(message.contains("target_path"), "{message}");
        }
        assert_eq!(read_path("target_path", "/a//b/").unwrap(), Path::new("/a/b"));
        assert!(read_path("target_path", &format!("/{}", "a/".repeat(128))).is_ok(), "CSI promises 128 bytes");
    }

    proptest! {
        #[test]
        fn a_path_that_is_accepted_stays_below_the_root_it_names(text in "[/a.\\x00é]{0,40}") {
            if let Ok(path) = read_path("target_path", &text) {
                prop_assert!(path.components().all(|part| !matches!(part, Component::ParentDir | Component::CurDir)));
                prop_assert!(path.is_absolute() && path.parent().is_some());
            }
        }
    }
}
