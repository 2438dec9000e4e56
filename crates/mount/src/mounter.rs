use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::{
    Devices, DirEntry, FileInfo, Folders, Measures, MountOptions, MountTable, Orphans, Ownership, Result, SubPaths,
    Usage,
};

/// Whether a bind mount lets writes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Writes reach the source.
    ReadWrite,
    /// Writes through this mount are refused from its first moment on.
    ReadOnly,
}

/// The port to the mounts, directories and small files of one machine.
///
/// Paths are absolute. A missing file is an answer, not an error, and undoing what is not there succeeds.
#[async_trait]
pub trait Mounter: Ownership + SubPaths + Orphans + Devices + Folders + Measures {
    /// The mount table of this moment.
    async fn mounts(&self) -> Result<MountTable>;

    /// The path as the mount table spells it: links in the parent followed, the last component left as it is;
    /// `None` if the parent does not exist.
    async fn resolve(&self, path: &Path) -> Result<Option<PathBuf>>;

    /// Mounts a file system at an existing directory, above whatever is mounted there.
    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()>;

    /// Shows the directory or file `source` at the existing `target`, above whatever is mounted there; mounts below
    /// `source` do not come along.
    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<()>;

    /// Removes the topmost mount at exactly `target`; fails if it is busy.
    async fn unmount(&self, target: &Path) -> Result<()>;

    /// The same, whoever is in it: it is gone for all who come now, and for good when the last has left.
    async fn unmount_lazily(&self, target: &Path) -> Result<()>;

    /// The same as `unmount`, and does not wait for a server that does not answer; what was not written there is lost.
    async fn unmount_by_force(&self, target: &Path) -> Result<()>;

    /// Changes options of the mount at exactly `target` and of its file system; those that are not named stay.
    async fn remount(&self, target: &Path, options: &MountOptions) -> Result<()>;

    /// Whether this machine labels files for SELinux.
    async fn selinux(&self) -> Result<bool>;

    /// Makes the directory and its missing parents, mode 0750.
    async fn create_dir(&self, path: &Path) -> Result<()>;

    /// The same, and gives the directory exactly this mode, whether it was there or not; its parents have 0750.
    async fn create_dir_with(&self, path: &Path, mode: u32) -> Result<()>;

    /// Removes an empty directory; refuses one that is a mount point, holds one, or holds anything else.
    async fn remove_dir(&self, path: &Path) -> Result<()>;

    /// Removes a directory with all that is in it, or a file. Refuses to enter anything that is mounted, and follows no
    /// link; ends when the answer is no longer waited for.
    async fn remove_all(&self, path: &Path) -> Result<()>;

    /// Replaces a small file atomically and durably, mode 0600: after a crash it has the old or the new contents.
    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()>;

    /// The same with another mode.
    async fn write_file_with(&self, path: &Path, contents: &[u8], mode: u32) -> Result<()>;

    /// Makes an empty file where there is none, and gives it this mode: the place to which a device node is bound.
    async fn make_file(&self, path: &Path, mode: u32) -> Result<()>;

    /// Makes a link; another link of that name is replaced atomically, anything else is refused.
    async fn symlink(&self, to: &Path, path: &Path) -> Result<()>;

    /// Where a link points to; what is no link is refused.
    async fn read_link(&self, path: &Path) -> Result<Option<PathBuf>>;

    /// The path with all its links followed, the last one too; `None` if it leads nowhere.
    async fn canonical(&self, path: &Path) -> Result<Option<PathBuf>>;

    /// The contents of a small regular file; a link is refused.
    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>>;

    /// Removes a file durably, and what an interrupted `write_file` left of it.
    async fn remove_file(&self, path: &Path) -> Result<()>;

    /// The entries of a directory by name, without the leftovers of interrupted `write_file` calls.
    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>>;

    /// What kind of file this is and how large; links are not followed.
    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>>;

    /// How full the file system at this path is. May take for ever where a server does not answer; see
    /// [`UsageProbe`](crate::UsageProbe).
    async fn usage(&self, path: &Path) -> Result<Usage>;
}
