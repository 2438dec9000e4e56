//! The paths that files of a volume may have.

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, FileProjection, Payload};

/// Of one name, as file systems have it, in bytes.
const MAX_NAME: usize = 255;
/// Of a path, as the kernel has it, in bytes.
const MAX_PATH: usize = 4096;
/// How much of a wrong path is told.
const TOLD: usize = 80;

/// A payload whose paths have been looked at.
pub(super) struct Clean<'a> {
    pub(super) files: BTreeMap<String, &'a FileProjection>,
    /// The directories they are in, each before those in it.
    pub(super) directories: BTreeSet<String>,
    /// The names in the volume's root, each with its owner.
    pub(super) names: BTreeMap<String, Option<u32>>,
}

pub(super) fn clean(payload: &Payload) -> Result<Clean<'_>, Error> {
    let mut clean = Clean { files: BTreeMap::new(), directories: BTreeSet::new(), names: BTreeMap::new() };
    for (given, file) in payload {
        let parts = parts(given)?;
        let path = parts.join("/");
        for end in 1..parts.len() {
            clean.directories.insert(parts[..end].join("/"));
        }
        if let Some(first) = parts.first() {
            clean.names.insert((*first).to_owned(), file.uid.filter(|_| parts.len() == 1));
        }
        if clean.files.insert(path.clone(), file).is_some() {
            return Err(Error::Clash { one: told(given), other: told(&path) });
        }
    }
    match clean.files.keys().find(|path| clean.directories.contains(*path)) {
        None => Ok(clean),
        Some(path) => {
            let inner = clean.files.keys().find(|inner| inner.starts_with(&format!("{path}/")));
            Err(Error::Clash { one: told(path), other: inner.map_or_else(String::new, |inner| told(inner)) })
        }
    }
}

/// The names of a path, without those that mean nothing.
fn parts(path: &str) -> Result<Vec<&str>, Error> {
    let refuse = |why| Err(Error::Path { path: told(path), why });
    if path.is_empty() {
        return refuse("it is empty");
    }
    if path.starts_with('/') {
        return refuse("it must be relative to the volume");
    }
    if path.len() > MAX_PATH {
        return refuse("it is longer than 4096 bytes");
    }
    if path.contains('\0') {
        return refuse("it must not contain a NUL byte");
    }
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return refuse("it must not contain \"..\"");
    }
    if parts.iter().any(|part| part.len() > MAX_NAME) {
        return refuse("one of its names is longer than 255 bytes");
    }
    match parts.first() {
        None => refuse("it names nothing"),
        Some(first) if first.starts_with("..") => refuse("it must not start with \"..\""),
        Some(_) => Ok(parts),
    }
}

fn told(path: &str) -> String {
    match path.char_indices().nth(TOLD) {
        None => path.to_owned(),
        Some((end, _)) => format!("{}...", &path[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(paths: &[&str]) -> Payload {
        let file = FileProjection { data: Vec::new(), mode: 0o644, uid: Some(5) };
        paths.iter().map(|path| ((*path).to_owned(), file.clone())).collect()
    }

    #[test]
    fn row_140_paths_that_are_absolute_empty_too_long_or_lead_out_are_refused() {
        let (long, longer) = ("x".repeat(256), "x/".repeat(2049));
        let megabyte = "é".repeat(1 << 19);
        for (path, why) in [
            ("", "empty"),
            ("/etc/passwd", "relative"),
            ("..", "\"..\""),
            ("a/..", "\"..\""),
            ("a/../../b", "\"..\""),
            ("..data", "start"),
            ("..hidden/a", "start"),
            (".", "nothing"),
            ("./", "nothing"),
            ("a\0b", "NUL"),
            (&long, "255"),
            (&longer, "4096"),
            (&megabyte, "4096"),
        ] {
            let error = clean(&payload(&[path])).err().unwrap().to_string();
            assert!(error.contains(why) && error.len() < 300, "{error}");
        }
    }

    #[test]
    fn row_140_paths_are_cleaned_and_two_that_are_one_are_refused() {
        let paths = payload(&["./a//b/c", "a/d", ".hidden", "e", "a/..f", "-", "a b\n"]);
        let clean_paths = clean(&paths).unwrap();
        assert_eq!(
            clean_paths.files.keys().collect::<Vec<_>>(),
            ["-", ".hidden", "a b\n", "a/..f", "a/b/c", "a/d", "e"]
        );
        assert_eq!(clean_paths.directories.iter().collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!((clean_paths.names["a"], clean_paths.names["e"]), (None, Some(5)));
        for twice in [["a", "./a"], ["a", "a/b"], ["a/b/c", "a//b"]] {
            assert!(matches!(clean(&payload(&twice)), Err(Error::Clash { .. })), "{twice:?}");
        }
    }
}
