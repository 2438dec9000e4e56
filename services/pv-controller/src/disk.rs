//! The files of this machine, and those it can mount, for volumes that are erased or deleted without a pod.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::nfs::{Export, Exports};

/// Where files are erased; a port, so that a test can stop it anywhere.
pub trait Disk: Send + Sync + 'static {
    /// Removes everything in the directory, not the directory.
    fn erase<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<()>>;

    /// Removes the directory with everything in it; one that is not there is success.
    fn remove<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<()>>;

    /// Removes everything in a directory that is exported over NFS, not the directory.
    fn erase_export<'a>(&'a self, export: &'a Export) -> BoxFuture<'a, io::Result<()>>;
}

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn erase<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        async move {
            let directory = checked(directory)?;
            run(move || erase(&directory)).await
        }
        .boxed()
    }

    fn remove<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        async move {
            let directory = checked(directory)?;
            // Upstream's rule: what a user may name in a hostPath volume is not deleted at large.
            if !directory.starts_with("/tmp") || directory == Path::new("/tmp") {
                return Err(refuse(&directory, "only directories below /tmp are deleted"));
            }
            run(move || match is_plain_directory(&directory) {
                Ok(()) => fs::remove_dir_all(&directory),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            })
            .await
        }
        .boxed()
    }

    fn erase_export<'a>(&'a self, export: &'a Export) -> BoxFuture<'a, io::Result<()>> {
        async move { Exports::default().erase(export).await }.boxed()
    }
}

pub(crate) async fn run(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn refuse(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", path.display()))
}

pub(crate) fn checked(path: &Path) -> io::Result<PathBuf> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || path.parent().is_none() {
        return Err(refuse(path, "a volume's path must be absolute, without dots, and not the root"));
    }
    Ok(path.to_owned())
}

fn is_plain_directory(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) => return Err(io::Error::new(error.kind(), format!("{} on this machine: {error}", path.display()))),
    };
    if kind.is_dir() { Ok(()) } else { Err(refuse(path, "not a directory, or a link to one")) }
}

/// Links are removed, never followed. Begun again after a crash it removes what is left.
pub(crate) fn erase(directory: &Path) -> io::Result<()> {
    is_plain_directory(directory)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(_) => Err(refuse(directory, "something was put in while it was erased")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn erasing_leaves_an_empty_directory_and_what_links_point_to() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let volume = root.path().join("volume");
        fs::create_dir_all(volume.join("a/b/c")).unwrap();
        fs::write(volume.join("a/b/file"), "secret").unwrap();
        fs::write(volume.join(".hidden"), "secret").unwrap();
        std::os::unix::fs::symlink(outside.path(), volume.join("link")).unwrap();
        LocalDisk.erase(&volume).await.unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(outside.path().join("kept").is_file());
        LocalDisk.erase(&volume).await.expect("erasing again is nothing");
    }

    #[tokio::test]
    async fn a_half_erased_directory_is_finished() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        fs::create_dir_all(volume.join("a")).unwrap();
        for n in 0..20 {
            fs::write(volume.join(format!("a/{n}")), "x").unwrap();
        }
        // A crash midway: part of one directory is gone already.
        for n in 0..10 {
            fs::remove_file(volume.join(format!("a/{n}"))).unwrap();
        }
        LocalDisk.erase(&volume).await.unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn paths_that_could_be_anything_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path(), &link).unwrap();
        for path in
            [Path::new("/"), Path::new("relative"), Path::new("/tmp/../etc"), &link, &root.path().join("missing")]
        {
            assert!(LocalDisk.erase(path).await.is_err(), "{}", path.display());
        }
        for path in ["/etc", "/tmp", "/var/data"] {
            assert!(LocalDisk.remove(Path::new(path)).await.is_err(), "{path}");
        }
        assert!(LocalDisk.remove(Path::new("/tmp/stowage-no-such-volume")).await.is_ok());
    }
}
