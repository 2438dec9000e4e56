use std::ffi::OsString;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::linux::{apart, blocking};
use crate::{
    Counting, LinuxMounter, MountOptions, Packer, Result, Share, ShareEntry, Target, Targets, archive, copy_tree,
    network, share,
};

/// A network file system where it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkMount {
    /// Server and path.
    pub source: String,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// The part of the port that mounts network file systems and works below their roots.
///
/// A way leads from the root of a share, by plain names and past no link; what is not there is an answer.
#[async_trait]
pub trait Shares: Targets {
    /// Makes a directory of this name in one that nobody else can write in, which is made too.
    async fn make_private(&self, directory: &Path, name: &str) -> Result<Target>;

    /// What `make_private` left in a directory.
    async fn private_places(&self, directory: &Path) -> Result<Vec<PathBuf>>;

    /// Mounts a network file system at a private place.
    async fn mount_network(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()>;

    /// The network file system that is mounted at a target; `None` if it is something else. Asks no server.
    async fn network_at(&self, target: &Target) -> Result<Option<NetworkMount>>;

    /// Removes the topmost mount at a target; with force, requests that wait for its server are given up.
    async fn unmount_network(&self, target: &Target, force: bool) -> Result<()>;

    /// Takes whatever is mounted at a private place away, and the place itself.
    async fn discard(&self, target: &Target) -> Result<()>;

    /// Holds the directory that is seen at a target as the root of a share.
    async fn share(&self, target: &Target) -> Result<Share>;

    /// What a way leads to; a link at its end is not followed.
    async fn look_in(&self, share: &Share, way: &Path) -> Result<Option<ShareEntry>>;

    /// The names in a directory.
    async fn list_in(&self, share: &Share, way: &Path) -> Result<Option<Vec<OsString>>>;

    /// Makes a directory and what is missing on the way to it, with all permissions that the umask leaves.
    async fn make_dirs_in(&self, share: &Share, way: &Path) -> Result<()>;

    /// Gives a directory these permission bits, if it has others.
    async fn set_mode_in(&self, share: &Share, way: &Path, mode: u32) -> Result<()>;

    /// Removes a file, or a directory with all that is in it.
    async fn remove_in(&self, share: &Share, way: &Path) -> Result<()>;

    /// Removes a directory if it is empty; whether it is gone.
    async fn remove_empty_in(&self, share: &Share, way: &Path) -> Result<bool>;

    /// Gives a file or directory another name; an empty directory of that name is replaced.
    async fn rename_in(&self, share: &Share, from: &Path, to: &Path) -> Result<()>;

    /// Brings all that was written to a share to its server.
    async fn flush_share(&self, share: &Share) -> Result<()>;

    /// Copies what is in one directory into another, with links, owners, modes and times.
    async fn copy_tree_in(&self, from: &Share, source: &Path, to: &Share, target: &Path) -> Result<()>;

    /// Packs a directory into a tar archive.
    async fn pack_in(&self, from: (&Share, &Path), to: (&Share, &Path), compress: bool, packer: Packer) -> Result<()>;

    /// Whether a tar archive, compressed or not, is there to its end; one that cannot be read is an error.
    async fn is_whole_archive(&self, share: &Share, archive: &Path) -> Result<bool>;

    /// Unpacks a tar archive, compressed or not, into a directory.
    async fn unpack_in(&self, from: &Share, archive: &Path, to: &Share, target: &Path) -> Result<()>;
}

/// Runs a function of one way on a blocking thread.
async fn on<T: Send + 'static>(share: &Share, way: &Path, call: fn(&Share, &Path) -> Result<T>) -> Result<T> {
    let (share, way) = (share.clone(), way.to_owned());
    blocking(move || call(&share, &way)).await
}

#[async_trait]
impl Shares for LinuxMounter {
    async fn make_private(&self, directory: &Path, name: &str) -> Result<Target> {
        let (directory, name) = (directory.to_owned(), name.to_owned());
        blocking(move || network::make_private(&directory, &name)).await
    }

    async fn private_places(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        let directory = directory.to_owned();
        blocking(move || network::private_places(&directory)).await
    }

    async fn mount_network(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
        let (source, target) = (source.to_owned(), target.clone());
        let (fs_type, options) = (fs_type.to_owned(), options.clone());
        apart(move || network::mount(&source, &target, &fs_type, &options)).await
    }

    async fn network_at(&self, target: &Target) -> Result<Option<NetworkMount>> {
        let target = target.clone();
        blocking(move || network::source_at(&target)).await
    }

    async fn unmount_network(&self, target: &Target, force: bool) -> Result<()> {
        let target = target.clone();
        apart(move || network::unmount(&target, force)).await
    }

    async fn discard(&self, target: &Target) -> Result<()> {
        let target = target.clone();
        blocking(move || network::discard(&target)).await
    }

    async fn share(&self, target: &Target) -> Result<Share> {
        let target = target.clone();
        blocking(move || share::open(&target)).await
    }

    async fn look_in(&self, share: &Share, way: &Path) -> Result<Option<ShareEntry>> {
        on(share, way, share::look).await
    }

    async fn list_in(&self, share: &Share, way: &Path) -> Result<Option<Vec<OsString>>> {
        on(share, way, share::list).await
    }

    async fn make_dirs_in(&self, share: &Share, way: &Path) -> Result<()> {
        on(share, way, share::make_dirs).await
    }

    async fn set_mode_in(&self, share: &Share, way: &Path, mode: u32) -> Result<()> {
        let (share, way) = (share.clone(), way.to_owned());
        blocking(move || share::set_mode(&share, &way, mode)).await
    }

    async fn remove_in(&self, share: &Share, way: &Path) -> Result<()> {
        on(share, way, share::remove).await
    }

    async fn remove_empty_in(&self, share: &Share, way: &Path) -> Result<bool> {
        on(share, way, share::remove_empty).await
    }

    async fn rename_in(&self, share: &Share, from: &Path, to: &Path) -> Result<()> {
        let (share, from, to) = (share.clone(), from.to_owned(), to.to_owned());
        blocking(move || share::rename(&share, &from, &to)).await
    }

    async fn flush_share(&self, share: &Share) -> Result<()> {
        let share = share.clone();
        blocking(move || share::flush(&share)).await
    }

    async fn copy_tree_in(&self, from: &Share, source: &Path, to: &Share, target: &Path) -> Result<()> {
        let (from, source, to, target) = (from.clone(), source.to_owned(), to.clone(), target.to_owned());
        blocking(move || copy_tree::copy(&from, &source, &to, &target)).await
    }

    async fn pack_in(&self, from: (&Share, &Path), to: (&Share, &Path), compress: bool, packer: Packer) -> Result<()> {
        let (from, source, to, path) = (from.0.clone(), from.1.to_owned(), to.0.clone(), to.1.to_owned());
        blocking(move || archive::pack(&from, &source, &to, &path, compress, packer)).await
    }

    async fn is_whole_archive(&self, share: &Share, archive: &Path) -> Result<bool> {
        on(share, archive, archive::is_whole).await
    }

    async fn unpack_in(&self, from: &Share, archive: &Path, to: &Share, target: &Path) -> Result<()> {
        let (from, path, to, target) = (from.clone(), archive.to_owned(), to.clone(), target.to_owned());
        blocking(move || archive::unpack(&from, &path, &to, &target)).await
    }
}

#[async_trait]
impl Shares for Counting {
    async fn make_private(&self, directory: &Path, name: &str) -> Result<Target> {
        self.change("make_private", &directory.join(name), self.inner().make_private(directory, name)).await
    }

    async fn private_places(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        self.look()?.private_places(directory).await
    }

    async fn mount_network(&self, source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
        let mount = self.inner().mount_network(source, target, fs_type, options);
        self.change("mount_network", target.path(), mount).await
    }

    async fn network_at(&self, target: &Target) -> Result<Option<NetworkMount>> {
        self.look()?.network_at(target).await
    }

    async fn unmount_network(&self, target: &Target, force: bool) -> Result<()> {
        self.change("unmount_network", target.path(), self.inner().unmount_network(target, force)).await
    }

    async fn discard(&self, target: &Target) -> Result<()> {
        self.change("discard", target.path(), self.inner().discard(target)).await
    }

    async fn share(&self, target: &Target) -> Result<Share> {
        self.look()?.share(target).await
    }

    async fn look_in(&self, share: &Share, way: &Path) -> Result<Option<ShareEntry>> {
        self.look()?.look_in(share, way).await
    }

    async fn list_in(&self, share: &Share, way: &Path) -> Result<Option<Vec<OsString>>> {
        self.look()?.list_in(share, way).await
    }

    async fn make_dirs_in(&self, share: &Share, way: &Path) -> Result<()> {
        self.change("make_dirs", way, self.inner().make_dirs_in(share, way)).await
    }

    async fn set_mode_in(&self, share: &Share, way: &Path, mode: u32) -> Result<()> {
        self.change("set_mode", way, self.inner().set_mode_in(share, way, mode)).await
    }

    async fn remove_in(&self, share: &Share, way: &Path) -> Result<()> {
        self.change("remove", way, self.inner().remove_in(share, way)).await
    }

    async fn remove_empty_in(&self, share: &Share, way: &Path) -> Result<bool> {
        self.change("remove_empty", way, self.inner().remove_empty_in(share, way)).await
    }

    async fn rename_in(&self, share: &Share, from: &Path, to: &Path) -> Result<()> {
        self.change("rename", to, self.inner().rename_in(share, from, to)).await
    }

    async fn flush_share(&self, share: &Share) -> Result<()> {
        self.change("flush", &share.path(Path::new("")), self.inner().flush_share(share)).await
    }

    async fn copy_tree_in(&self, from: &Share, source: &Path, to: &Share, target: &Path) -> Result<()> {
        self.change("copy_tree", target, self.inner().copy_tree_in(from, source, to, target)).await
    }

    async fn pack_in(&self, from: (&Share, &Path), to: (&Share, &Path), compress: bool, packer: Packer) -> Result<()> {
        self.change("pack", to.1, self.inner().pack_in(from, to, compress, packer)).await
    }

    async fn is_whole_archive(&self, share: &Share, archive: &Path) -> Result<bool> {
        self.look()?.is_whole_archive(share, archive).await
    }

    async fn unpack_in(&self, from: &Share, archive: &Path, to: &Share, target: &Path) -> Result<()> {
        self.change("unpack", target, self.inner().unpack_in(from, archive, to, target)).await
    }
}
