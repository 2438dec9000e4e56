//! The files of this machine, and those it can mount, for volumes that are erased or deleted without a pod.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;

use crate::erase::{self, refuse};
use crate::nfs::{Export, Exports};
use crate::permit::Permit;

/// Where files are erased; a port, so that a test can stop it anywhere.
pub trait Disk: Send + Sync + 'static {
    /// Removes everything in the directory, not the directory.
    fn erase<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>>;

    /// Removes the directory with everything in it, or what is there instead of one; nothing there is success.
    fn remove<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>>;

    /// Removes everything in a directory that is exported over NFS, not the directory.
    fn erase_export<'a>(&'a self, export: &'a Export, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>>;

    /// Until nothing is being removed any more, also of what nobody waits for.
    fn idle(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Threads that remove files. Where nobody waits for one any more it ends before its next entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threads(TaskTracker);

impl Threads {
    pub(crate) async fn run(
        &self,
        permit: &Permit,
        work: impl FnOnce(&Permit) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (permit, _waiting) = permit.while_waited_for();
        let work = move || permit.check().and_then(|()| work(&permit));
        self.0.spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

/// The real disk.
#[derive(Debug, Clone, Default)]
pub struct LocalDisk(Threads);

impl Disk for LocalDisk {
    fn erase<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        async move {
            let directory = checked(directory)?;
            self.0.run(permit, move |permit| erase::erase(&directory, permit)).await
        }
        .boxed()
    }

    fn remove<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        async move {
            let directory = checked(directory)?;
            // Upstream's rule: what a user may name in a hostPath volume is not deleted at large.
            if !directory.starts_with("/tmp") || directory == Path::new("/tmp") {
                return Err(refuse(&directory, "only what is below /tmp is deleted"));
            }
            let remove = move |permit: &Permit| {
                match fs::symlink_metadata(&directory) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                    // A volume may be a file, a device or a link: that goes, never what it leads to.
                    Ok(found) if !found.is_dir() => return fs::remove_file(&directory),
                    _ => erase::erase(&directory, permit)?,
                }
                permit.check()?;
                fs::remove_dir(&directory)
            };
            self.0.run(permit, remove).await
        }
        .boxed()
    }

    fn erase_export<'a>(&'a self, export: &'a Export, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        async move { Exports::with(self.0.clone()).erase(export, permit).await }.boxed()
    }

    fn idle(&self) -> BoxFuture<'_, ()> {
        self.0.0.close();
        self.0.0.wait().boxed()
    }
}

pub(crate) fn checked(path: &Path) -> io::Result<PathBuf> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || path.parent().is_none() {
        return Err(refuse(path, "a volume's path must be absolute, without dots, and not the root"));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    /// A volume with as many files as are named, some of them deep.
    fn volume(files: usize) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let volume = root.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        (0..files).for_each(|n| fs::write(volume.join(format!("a/b/{n}")), "x").unwrap());
        (root, volume)
    }

    /// The files, wherever their directory is by now.
    fn left(volume: &Path) -> usize {
        let entries = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { left(&path) } else { 1 }).sum()
    }

    #[tokio::test]
    async fn a_volume_that_is_a_file_or_a_link_is_removed_and_never_what_a_link_leads_to() {
        let (root, kept) = volume(1);
        let (file, link) = (root.path().join("disk.img"), root.path().join("link"));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        for path in [&file, &link] {
            LocalDisk::default().remove(path, &Permit::always()).await.unwrap();
            assert!(fs::symlink_metadata(path).is_err());
        }
        assert_eq!(left(&kept), 1);
    }

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
        LocalDisk::default().erase(&volume, &Permit::always()).await.unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(outside.path().join("kept").is_file());
        LocalDisk::default().erase(&volume, &Permit::always()).await.expect("erasing again is nothing");
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
        LocalDisk::default().erase(&volume, &Permit::always()).await.unwrap();
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
            assert!(LocalDisk::default().erase(path, &Permit::always()).await.is_err(), "{}", path.display());
        }
        for path in ["/etc", "/tmp", "/var/data"] {
            assert!(LocalDisk::default().remove(Path::new(path), &Permit::always()).await.is_err(), "{path}");
        }
        assert!(LocalDisk::default().remove(Path::new("/tmp/stowage-no-such-volume"), &Permit::always()).await.is_ok());
    }

    #[tokio::test]
    async fn a_deposed_leader_leaves_the_files_that_it_has_not_removed_yet() {
        let (_root, volume) = volume(20);
        let asked = Arc::new(AtomicUsize::new(0));
        let permit = Permit::new(move || asked.fetch_add(1, Ordering::SeqCst) < 10);
        assert!(LocalDisk::default().erase(&volume, &permit).await.is_err());
        let kept = left(&volume);
        assert!((1..20).contains(&kept), "{kept} files are left");
        let never = Permit::new(|| false);
        assert!(LocalDisk::default().remove(&volume, &never).await.is_err());
        assert_eq!(left(&volume), kept);
    }

    #[tokio::test]
    async fn erasing_ends_with_whoever_waits_for_it() {
        let (_root, volume) = volume(20);
        let disk = LocalDisk::default();
        let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, going_on) = mpsc::channel::<()>();
        let going_on = std::sync::Mutex::new(going_on);
        let asked = AtomicUsize::new(0);
        let permit = Permit::new(move || {
            if asked.fetch_add(1, Ordering::SeqCst) == 5 {
                began.send(()).unwrap();
                going_on.lock().unwrap().recv().unwrap();
            }
            true
        });
        let erasing = tokio::spawn({
            let (disk, volume) = (disk.clone(), volume.clone());
            async move { disk.erase(&volume, &permit).await }
        });
        begun.recv().await.unwrap();
        erasing.abort();
        assert!(erasing.await.unwrap_err().is_cancelled());
        assert!(disk.idle().now_or_never().is_none(), "the thread has not ended");
        go_on.send(()).unwrap();
        disk.idle().await;
        assert!(left(&volume) > 10, "{} files are left", left(&volume));
    }
}
