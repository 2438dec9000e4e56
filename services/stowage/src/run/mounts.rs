//! Where claims are mounted for a command.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use serde_json::{Value, json};

use volume_manager::api::ContainerMount;

/// A claim, or a part of it, and where the command sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimMount {
    pub claim: String,
    /// A path inside the volume; empty for all of it.
    pub part: String,
    pub path: String,
    pub read_only: bool,
}

impl FromStr for ClaimMount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split(':');
        let source = fields.next().unwrap_or_default();
        let (claim, part) = source.split_once('/').unwrap_or((source, ""));
        if claim.is_empty() {
            return Err("the claim has no name; write NAME[/PART][:PATH[:ro]]".to_owned());
        }
        let path = fields.next().map_or_else(|| format!("/mnt/{claim}"), str::to_owned);
        if !path.starts_with('/') {
            return Err(format!("path {path:?} must be absolute"));
        }
        let read_only = match fields.next() {
            None | Some("rw") => false,
            Some("ro") => true,
            Some(other) => return Err(format!("{other:?} after the path; write ro or nothing")),
        };
        match fields.next() {
            Some(rest) => Err(format!("{rest:?} is too much; write NAME[/PART][:PATH[:ro]]")),
            None => Ok(Self { claim: claim.to_owned(), part: part.to_owned(), path, read_only }),
        }
    }
}

impl ClaimMount {
    pub fn volume(&self, index: usize) -> Value {
        json!({ "name": format!("v{index}"), "persistentVolumeClaim": { "claimName": self.claim } })
    }

    pub fn mount(&self, index: usize) -> Value {
        let mut mount = json!({ "name": format!("v{index}"), "mountPath": self.path, "readOnly": self.read_only });
        if !self.part.is_empty() {
            mount["subPath"] = self.part.as_str().into();
        }
        mount
    }
}

/// Makes the directories to mount at that do not exist; returns them, outermost first.
pub fn make_targets(mounts: &[ContainerMount]) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for mount in mounts {
        let path = Path::new(&mount.path);
        let missing: Vec<&Path> = path.ancestors().take_while(|path| matches!(path.try_exists(), Ok(false))).collect();
        for directory in missing.into_iter().rev() {
            fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
            made.push(directory.to_owned());
        }
    }
    Ok(made)
}

/// Removes what was made, unless somebody has put something there.
pub fn remove_targets(made: &[PathBuf]) {
    for directory in made.iter().rev() {
        if let Err(error) = fs::remove_dir(directory) {
            tracing::debug!(path = %directory.display(), %error, "the directory stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String, String, bool) {
        let mount: ClaimMount = text.parse().unwrap();
        (mount.claim, mount.part, mount.path, mount.read_only)
    }

    #[test]
    fn a_claim_is_named_with_its_part_its_path_and_whether_it_is_only_read() {
        assert_eq!(parsed("data"), ("data".into(), String::new(), "/mnt/data".into(), false));
        assert_eq!(parsed("data:/srv:ro"), ("data".into(), String::new(), "/srv".into(), true));
        assert_eq!(parsed("data/a/b:/srv"), ("data".into(), "a/b".into(), "/srv".into(), false));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_way_out() {
        for (text, says) in [
            ("", "no name"),
            (":/x", "no name"),
            ("data:x", "must be absolute"),
            ("data:/x:rx", "write ro"),
            ("data:/x:ro:y", "too much"),
        ] {
            let error = text.parse::<ClaimMount>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
