//! A part of a volume at a place of its own, as a container's `subPath` asks.

mod clean;
mod prepare;

use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;

use crate::linux::blocking;
use crate::{Counting, Error, FileKind, LinuxMounter, Result};

/// A part of a volume, and where it is to be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    /// The volume's root.
    pub volume: PathBuf,
    /// The part of it, as the container names it.
    pub path: String,
    /// The place: `volume-subpaths/<volume>/<container>/<index>` in the pod's directory.
    pub target: PathBuf,
}

impl SubPath {
    /// The names that lead from the volume's root to the part; refuses a path that says that it leads out.
    pub fn names(&self) -> Result<Vec<&str>> {
        let refuse = |why| Error::RefuseSubPath { sub_path: self.path.clone(), why };
        let path = Path::new(&self.path);
        if path.is_absolute() {
            return Err(refuse("it must be relative to the volume"));
        }
        if self.path.contains('\0') {
            return Err(refuse("it must not contain a NUL byte"));
        }
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.extend(name.to_str()),
                Component::CurDir => {}
                _ => return Err(refuse("it must not contain \"..\"")),
            }
        }
        match names.is_empty() {
            true => Err(refuse("it names nothing")),
            false => Ok(names),
        }
    }
}

/// The part of the port that shows parts of volumes.
///
/// What these say to users names the sub path and never a path of the machine; the rest is the error's source, for the log.
#[async_trait]
pub trait SubPaths: Send + Sync {
    /// Makes what is missing of a sub path, with the mode of the volume's root, and shows it at its target. Links within the
    /// volume are followed, those that lead out of it are refused, also if they appear meanwhile. A target that shows the
    /// same already stays; another mount there is taken away, also one whose server is gone.
    /// Returns what kind of file is shown.
    async fn prepare_sub_path(&self, sub_path: &SubPath) -> Result<FileKind>;

    /// Takes away every mount in a directory of sub paths (a pod's `volume-subpaths`, or that of one volume), and the
    /// directory with the empty targets in it. Nothing else is removed, and no link is followed.
    async fn clean_sub_paths(&self, directory: &Path) -> Result<()>;
}

#[async_trait]
impl SubPaths for LinuxMounter {
    async fn prepare_sub_path(&self, sub_path: &SubPath) -> Result<FileKind> {
        let sub_path = sub_path.clone();
        blocking(move || prepare::prepare(&sub_path)).await
    }

    async fn clean_sub_paths(&self, directory: &Path) -> Result<()> {
        let directory = directory.to_owned();
        blocking(move || clean::clean(&directory)).await
    }
}

#[async_trait]
impl SubPaths for Counting {
    async fn prepare_sub_path(&self, sub_path: &SubPath) -> Result<FileKind> {
        self.change("prepare_sub_path", &sub_path.target, self.inner().prepare_sub_path(sub_path)).await
    }

    async fn clean_sub_paths(&self, directory: &Path) -> Result<()> {
        self.change("clean_sub_paths", directory, self.inner().clean_sub_paths(directory)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_148_a_sub_path_that_leads_out_by_its_words_is_refused_and_none_of_the_machine_is_told() {
        let sub_path = |path: &str| SubPath { volume: "/host/v".into(), path: path.into(), target: "/host/t".into() };
        for wrong in ["/etc", "..", "a/../../b", "a/..", "", ".", "a\0b"] {
            let error = sub_path(wrong).names().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && !error.contains("/host"), "{error}");
        }
        assert_eq!(sub_path("./a//b/").names().unwrap(), ["a", "b"]);
        assert_eq!(sub_path("..a/b..").names().unwrap(), ["..a", "b.."]);
    }
}
