use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::{DirEntry, FileInfo, MountOptions, MountTable, Result, Usage};

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
pub trait Mounter: Send + Sync {
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

    /// Makes the directory and its missing parents, mode 0750.
    async fn create_dir(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory; refuses one that is a mount point, holds one, or holds anything else.
    async fn remove_dir(&self, path: &Path) -> Result<()>;

    /// Replaces a small file atomically and durably, mode 0600: after a crash it has the old or the new contents.
    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()>;

    /// The contents of a small regular file; a link is refused.
    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>>;

    /// Removes a file durably, and what an interrupted `write_file` left of it.
    async fn remove_file(&self, path: &Path) -> Result<()>;

    /// The entries of a directory by name, without the leftovers of interrupted `write_file` calls.
    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>>;

    /// What kind of file this is and how large; links are not followed.
    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>>;

    /// How full the file system at this path is.
    async fn usage(&self, path: &Path) -> Result<Usage>;
}
