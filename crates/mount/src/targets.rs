use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::linux::blocking;
use crate::{
    Counting, DeviceNumber, LinuxMounter, MountOptions, Place, Result, Target, Usage, bind, files, filesystem, freeze,
    target,
};

/// The part of the port that works at places a caller has named, who may not be the only one to change what leads there.
///
/// A mount that would be somewhere else than at its target's path when the call returns is taken away again.
#[async_trait]
pub trait Targets: Send + Sync {
    /// Where a path leads: links followed as far as it exists, but for its last name, which is left as it is.
    async fn locate(&self, path: &Path) -> Result<PathBuf>;

    /// Goes once to the directory a path is in, past no link, and holds it; `None` if it is not there. The path is one that
    /// `locate` gave.
    async fn hold(&self, path: &Path) -> Result<Option<Target>>;

    /// The same, after making the directories that are missing, mode 0750.
    async fn make_and_hold(&self, path: &Path) -> Result<Target>;

    /// Holds the directory that stands at a target, for a name in it; `None` if there is nothing.
    async fn enter(&self, target: &Target, name: &str) -> Result<Option<Target>>;

    /// What is seen at a target, a link not followed, and whether it is a mount.
    async fn look_at(&self, target: &Target) -> Result<Option<Place>>;

    /// How full the file system at a target is.
    async fn usage_at(&self, target: &Target) -> Result<Usage>;

    /// The block device of the btrfs mounted at a target, which its files do not tell; `None` if it is not btrfs.
    async fn btrfs_device(&self, target: &Target) -> Result<Option<DeviceNumber>>;

    /// Makes a directory, mode 0750; one that is there is good.
    async fn make_dir_at(&self, target: &Target) -> Result<()>;

    /// Makes an empty file where there is none, mode 0600: the place a device node is bound to.
    async fn make_file_at(&self, target: &Target) -> Result<()>;

    /// Removes an empty directory; refuses one that is a mount point.
    async fn remove_dir_at(&self, target: &Target) -> Result<()>;

    /// Removes a file.
    async fn remove_file_at(&self, target: &Target) -> Result<()>;

    /// Mounts a file system at a directory, above whatever is mounted there.
    async fn mount_at(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()>;

    /// Shows a file or directory at a target, without what is mounted below it. The source's path is one that nobody else can
    /// change.
    async fn bind_at(&self, source: &Path, target: &Target, options: &MountOptions) -> Result<()>;

    /// Shows at a target what was seen at another; fails if that is no longer there.
    async fn bind_seen_at(&self, source: &Target, seen: &Place, target: &Target, options: &MountOptions) -> Result<()>;

    /// Removes the topmost mount at a target; fails if it is busy.
    async fn unmount_at(&self, target: &Target) -> Result<()>;

    /// Brings the file system that was seen at a target to a clean state on its device and lets no more writes through.
    /// Lasts, also beyond this process, until `thaw`.
    async fn freeze(&self, target: &Target, seen: &Place) -> Result<()>;

    /// Lets writes through again; succeeds if they were.
    async fn thaw(&self, target: &Target, seen: &Place) -> Result<()>;
}

/// Runs a function of one target on a blocking thread.
async fn on<T: Send + 'static>(target: &Target, call: fn(&Target) -> Result<T>) -> Result<T> {
    let target = target.clone();
    blocking(move || call(&target)).await
}

#[async_trait]
impl Targets for LinuxMounter {
    async fn locate(&self, path: &Path) -> Result<PathBuf> {
        let path = path.to_owned();
        blocking(move || files::locate(&path)).await
    }

    async fn hold(&self, path: &Path) -> Result<Option<Target>> {
        let path = path.to_owned();
        blocking(move || target::hold(&path)).await
    }

    async fn make_and_hold(&self, path: &Path) -> Result<Target> {
        let path = path.to_owned();
        blocking(move || target::make_and_hold(&path)).await
    }

    async fn enter(&self, target: &Target, name: &str) -> Result<Option<Target>> {
        let (target, name) = (target.clone(), name.to_owned());
        blocking(move || target::enter_target(&target, name.as_ref())).await
    }

    async fn look_at(&self, target: &Target) -> Result<Option<Place>> {
        on(target, target::look).await
    }

    async fn usage_at(&self, target: &Target) -> Result<Usage> {
        on(target, target::usage).await
    }

    async fn btrfs_device(&self, target: &Target) -> Result<Option<DeviceNumber>> {
        on(target, filesystem::btrfs_device).await
    }

    async fn make_dir_at(&self, target: &Target) -> Result<()> {
        on(target, target::make_dir).await
    }

    async fn make_file_at(&self, target: &Target) -> Result<()> {
        on(target, target::make_file).await
    }

    async fn remove_dir_at(&self, target: &Target) -> Result<()> {
        on(target, target::remove_dir).await
    }

    async fn remove_file_at(&self, target: &Target) -> Result<()> {
        on(target, target::remove_file).await
    }

    async fn mount_at(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
        let (source, target) = (source.to_owned(), target.clone());
        let (fs_type, options) = (fs_type.to_owned(), options.clone());
        blocking(move || bind::mount_at(&source, &target, &fs_type, &options)).await
    }

    async fn bind_at(&self, source: &Path, target: &Target, options: &MountOptions) -> Result<()> {
        let (source, target, options) = (source.to_owned(), target.clone(), options.clone());
        blocking(move || bind::bind_at(&source, &target, &options)).await
    }

    async fn bind_seen_at(&self, source: &Target, seen: &Place, target: &Target, options: &MountOptions) -> Result<()> {
        let (source, seen, target, options) = (source.clone(), *seen, target.clone(), options.clone());
        blocking(move || bind::bind_seen_at(&source, &seen, &target, &options)).await
    }

    async fn unmount_at(&self, target: &Target) -> Result<()> {
        on(target, bind::unmount_at).await
    }

    async fn freeze(&self, target: &Target, seen: &Place) -> Result<()> {
        let (target, seen) = (target.clone(), *seen);
        blocking(move || freeze::freeze(&target, &seen)).await
    }

    async fn thaw(&self, target: &Target, seen: &Place) -> Result<()> {
        let (target, seen) = (target.clone(), *seen);
        blocking(move || freeze::thaw(&target, &seen)).await
    }
}

#[async_trait]
impl Targets for Counting {
    async fn locate(&self, path: &Path) -> Result<PathBuf> {
        self.look()?.locate(path).await
    }

    async fn hold(&self, path: &Path) -> Result<Option<Target>> {
        self.look()?.hold(path).await
    }

    async fn make_and_hold(&self, path: &Path) -> Result<Target> {
        self.change("make_parents", path, self.inner().make_and_hold(path)).await
    }

    async fn enter(&self, target: &Target, name: &str) -> Result<Option<Target>> {
        self.look()?.enter(target, name).await
    }

    async fn look_at(&self, target: &Target) -> Result<Option<Place>> {
        self.look()?.look_at(target).await
    }

    async fn usage_at(&self, target: &Target) -> Result<Usage> {
        self.look()?.usage_at(target).await
    }

    async fn btrfs_device(&self, target: &Target) -> Result<Option<DeviceNumber>> {
        self.look()?.btrfs_device(target).await
    }

    async fn make_dir_at(&self, target: &Target) -> Result<()> {
        self.change("make_dir", target.path(), self.inner().make_dir_at(target)).await
    }

    async fn make_file_at(&self, target: &Target) -> Result<()> {
        self.change("make_file", target.path(), self.inner().make_file_at(target)).await
    }

    async fn remove_dir_at(&self, target: &Target) -> Result<()> {
        self.change("remove_dir", target.path(), self.inner().remove_dir_at(target)).await
    }

    async fn remove_file_at(&self, target: &Target) -> Result<()> {
        self.change("remove_file", target.path(), self.inner().remove_file_at(target)).await
    }

    async fn mount_at(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
        self.change("mount", target.path(), self.inner().mount_at(source, target, fs_type, options)).await
    }

    async fn bind_at(&self, source: &Path, target: &Target, options: &MountOptions) -> Result<()> {
        self.change("bind", target.path(), self.inner().bind_at(source, target, options)).await
    }

    async fn bind_seen_at(&self, source: &Target, seen: &Place, target: &Target, options: &MountOptions) -> Result<()> {
        self.change("bind", target.path(), self.inner().bind_seen_at(source, seen, target, options)).await
    }

    async fn unmount_at(&self, target: &Target) -> Result<()> {
        self.change("unmount", target.path(), self.inner().unmount_at(target)).await
    }

    async fn freeze(&self, target: &Target, seen: &Place) -> Result<()> {
        self.change("freeze", target.path(), self.inner().freeze(target, seen)).await
    }

    async fn thaw(&self, target: &Target, seen: &Place) -> Result<()> {
        self.change("thaw", target.path(), self.inner().thaw(target, seen)).await
    }
}
