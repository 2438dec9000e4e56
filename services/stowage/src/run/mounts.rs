//! Where claims are mounted for a command.

use std::str::FromStr;

use serde_json::{Value, json};

use super::pod::check_path;

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
        check_path(&path).map_err(|error| error.to_string())?;
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
    pub fn volume(&self, name: &str) -> Value {
        json!({ "name": name, "persistentVolumeClaim": { "claimName": self.claim } })
    }

    pub fn mount(&self, name: &str) -> Value {
        let mut mount = json!({ "name": name, "mountPath": self.path, "readOnly": self.read_only });
        if !self.part.is_empty() {
            mount["subPath"] = self.part.as_str().into();
        }
        mount
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
            ("data:/", "nothing can be mounted at \"/\""),
            ("data:/a/../b", "plain names"),
            ("data:/x:rx", "write ro"),
            ("data:/x:ro:y", "too much"),
        ] {
            let error = text.parse::<ClaimMount>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
