//! The name of an image: where it comes from, its tag, its digest.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use stowage_mount::Digest;

const LATEST: &str = "latest";

/// The longest that registries take.
const LONGEST: usize = 4096;

/// `registry.example/team/name:tag@sha256:…`, of which only the name is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// As it was written.
    text: String,
    pub repository: String,
    tag: Option<String>,
    pub digest: Option<Digest>,
}

impl Reference {
    /// The tag it stands for; where a digest says which image it is, none need fit.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(LATEST)
    }

    /// Whether it may be another image tomorrow.
    pub fn is_latest(&self) -> bool {
        self.digest.is_none() && self.tag() == LATEST
    }

    /// Where its layout may be, below the directory of images: by its whole name, or by the last part of it.
    pub fn places(&self) -> Vec<PathBuf> {
        let last = self.repository.rsplit('/').next().unwrap_or(&self.repository);
        let mut places: Vec<PathBuf> = Vec::new();
        for name in [self.repository.as_str(), last] {
            for place in [PathBuf::from(name), PathBuf::from(format!("{name}.tar"))] {
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places
    }

    /// Whether an annotation in an index names it: by its tag alone, or in full, as tools differ.
    pub fn is_named(&self, annotation: &str) -> bool {
        let full = format!("{}:{}", self.repository, self.tag());
        annotation == self.tag() || annotation == full || annotation == normal(&full) || annotation == self.text
    }
}

/// A name without a registry is one of Docker's hub, and one without a team of its library.
fn normal(full: &str) -> String {
    match full.split_once('/') {
        None => format!("docker.io/library/{full}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => full.to_owned(),
        Some(_) => format!("docker.io/{full}"),
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("image.reference {text:?} {why}; write for example registry.example/team/name:v1");
        if text.is_empty() || text.len() > LONGEST {
            return Err(wrong("is no name"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|error: String| wrong(&error))?)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag.to_owned())),
            _ => (rest, None),
        };
        let parts: Vec<&str> = repository.split('/').collect();
        let has_registry = parts.len() > 1;
        for (at, part) in parts.iter().enumerate() {
            let may_be_host = at == 0 && has_registry;
            if !is_part(part, may_be_host) {
                return Err(wrong(&format!("has {part:?} in its name")));
            }
        }
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("has a tag that is none"));
        }
        Ok(Self { text: text.to_owned(), repository: repository.to_owned(), tag, digest })
    }
}

/// Letters and digits with single marks between them: never empty, never `..`.
fn is_part(part: &str, may_be_host: bool) -> bool {
    let is_edge =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || (may_be_host && byte.is_ascii_uppercase());
    let is_inner = |byte: u8| is_edge(byte) || b"._-".contains(&byte) || (may_be_host && byte == b':');
    let bytes = part.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return false };
    is_edge(first) && is_edge(last) && bytes.iter().all(|byte| is_inner(*byte)) && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = tag.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|byte| is_word(*byte))
        && bytes.iter().all(|byte| is_word(*byte) || b".-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Reference {
        text.parse().unwrap()
    }

    #[test]
    fn a_reference_has_a_name_and_perhaps_a_tag_and_a_digest() {
        let digest = Digest::of(b"x");
        let full = of(&format!("localhost:5000/team/app:v1@{digest}"));
        assert_eq!(
            (full.repository.as_str(), full.tag(), full.digest.as_ref()),
            ("localhost:5000/team/app", "v1", Some(&digest))
        );
        assert_eq!((of("localhost:5000/app").tag(), of("app").repository.as_str()), ("latest", "app"));
        assert!(of("app").is_latest() && of("app:latest").is_latest());
        assert!(!of("app:v1").is_latest() && !of(&format!("app@{digest}")).is_latest());
    }

    #[test]
    fn what_is_no_reference_or_would_be_another_path_is_refused() {
        let long = "a".repeat(5000);
        for wrong in [
            "",
            "/",
            "a/",
            "/a",
            "../a",
            "a/../b",
            "a/..",
            "A",
            "a b",
            "a:",
            "a:b/",
            "a:-x",
            "a@sha256:1",
            "a\0",
            ".a",
            "a//b",
            "a:..",
            "a/.b",
            "a..b",
            &long,
            "a/B",
        ] {
            assert!(wrong.parse::<Reference>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_layout_is_found_by_the_whole_name_or_its_last_part() {
        let places = of("registry.example/team/app:v1").places();
        let expected = ["registry.example/team/app", "registry.example/team/app.tar", "app", "app.tar"];
        assert_eq!(places, expected.map(PathBuf::from));
        assert_eq!(of("app").places(), ["app", "app.tar"].map(PathBuf::from));
    }

    #[test]
    fn indexes_name_images_by_tag_or_in_full() {
        for name in ["v1", "team/app:v1", "docker.io/team/app:v1"] {
            assert!(of("team/app:v1").is_named(name), "{name}");
        }
        assert!(of("app").is_named("docker.io/library/app:latest"));
        assert!(!of("team/app:v1").is_named("v2") && !of("r.example/app:v1").is_named("docker.io/r.example/app:v1"));
    }
}
