//! Ids and paths from callers, read without trust. A path is read once; what is done at it is done where it led then.

use std::path::{Component, Path, PathBuf};

use stowage_mount::{FileKind, Place, Target};

use super::Error;
use crate::driver::Shared;
use crate::volume::VolumeId;

/// The kernel's limit for a path, NUL included.
const MAX_PATH: usize = 4096;
/// The kernel's limit for one name in it.
const MAX_COMPONENT: usize = 255;

/// What is missing is told before anything else is looked at.
pub fn check_fields(fields: &[(&'static str, &str)]) -> Result<(), Error> {
    let missing = fields.iter().find(|(_, text)| text.is_empty());
    missing.map_or(Ok(()), |(field, _)| Err(Error::ReadField { field }))
}

pub fn read_id(text: &str) -> Result<VolumeId, Error> {
    match text {
        "" => Err(Error::ReadField { field: "volume_id" }),
        text => VolumeId::parse(text).ok_or_else(|| Error::FindVolume { volume: text.chars().take(128).collect() }),
    }
}

/// Where a path leads that a caller wants a volume to be mounted at: below one of the target roots whatever links are
/// on the way, and not in a pool. What exists of it is spelled as the mount table does.
pub async fn read_target(shared: &Shared, field: &'static str, text: &str) -> Result<PathBuf, Error> {
    let path = read_path(field, text)?;
    let refuse = |reason| Err(Error::ReadPath { field, value: text.chars().take(MAX_COMPONENT).collect(), reason });
    let path = match shared.host.locate(&path).await {
        Err(error) if error.is_astray() => return refuse("a file or a link to nowhere is on the way"),
        other => other?,
    };
    // A root or a pool may itself be reached through links.
    for pool in &shared.pools {
        if path.starts_with(shared.follow(pool.root()).await?) {
            return refuse("it is in a pool; volumes are mounted elsewhere");
        }
    }
    for root in &shared.target_roots {
        let root = shared.follow(root).await?;
        if path.parent().is_some_and(|parent| parent.starts_with(&root)) {
            return Ok(path);
        }
    }
    let roots = shared.target_roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(Error::LeaveRoots { field, path, roots })
}

/// What is seen at a path, and where: it may not be there, nor the directory it would be in.
pub async fn hold(shared: &Shared, path: &Path) -> Result<(Option<Target>, Option<Place>), stowage_mount::Error> {
    let Some(target) = shared.host.hold(path).await? else { return Ok((None, None)) };
    let place = shared.host.look_at(&target).await?;
    Ok((Some(target), place))
}

/// A target directory that is there must be one: a link would lead the mount elsewhere.
pub fn check_directory(field: &'static str, path: &Path, place: Option<Place>) -> Result<(), Error> {
    match place.map(|place| place.kind) {
        None | Some(FileKind::Directory) => Ok(()),
        Some(_) => {
            let value = path.display().to_string();
            Err(Error::ReadPath { field, value, reason: "it is there and not a directory" })
        }
    }
}

fn read_path(field: &'static str, text: &str) -> Result<PathBuf, Error> {
    if text.is_empty() {
        return Err(Error::ReadField { field });
    }
    let refuse = |reason| Error::ReadPath { field, value: text.chars().take(MAX_COMPONENT).collect(), reason };
    plain_path(text).map_err(refuse)
}

/// A path without tricks: absolute, and no `..` that could lead elsewhere.
pub fn plain_path(text: &str) -> Result<PathBuf, &'static str> {
    if text.len() >= MAX_PATH {
        return Err("it is longer than 4095 bytes");
    }
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err("it must be absolute");
    }
    if text.contains('\0') || path.components().any(|part| !matches!(part, Component::RootDir | Component::Normal(_))) {
        return Err("it must not contain .. or a zero byte");
    }
    if path.components().any(|part| part.as_os_str().len() > MAX_COMPONENT) {
        return Err("a name in it is longer than 255 bytes");
    }
    match path.parent() {
        None => Err("the root directory cannot be a target"),
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
