use std::path::Path;

use async_trait::async_trait;

use crate::{Content, FileSystem, LoopDevice, Mounter, Result};

/// A [`Mounter`] that also has images, loop devices and file systems: all that a local storage driver changes.
#[async_trait]
pub trait Host: Mounter {
    /// 128 bits that nobody has seen before, as text.
    async fn unique_id(&self) -> Result<String>;

    /// Makes a sparse image of this size, or gives an existing one this size; durable, and never through a link.
    async fn create_image(&self, path: &Path, bytes: u64) -> Result<()>;

    /// Makes the entries of a directory durable.
    async fn sync_dir(&self, path: &Path) -> Result<()>;

    /// All loop devices of this kernel that are in use, also those of other mount namespaces.
    async fn loops(&self) -> Result<Vec<LoopDevice>>;

    /// Serves an image as a new loop device that carries `tag`, with direct I/O where the image's file system can.
    async fn attach_loop(&self, image: &Path, tag: &str) -> Result<LoopDevice>;

    /// Releases a loop device that still carries the tag it was found with.
    async fn detach_loop(&self, device: &LoopDevice) -> Result<()>;

    /// What a device holds, by its contents.
    async fn probe(&self, device: &Path) -> Result<Content>;

    /// Makes a file system, destroying what the device holds.
    async fn make_filesystem(&self, device: &Path, kind: FileSystem) -> Result<()>;

    /// Checks an unmounted file system and repairs what is safe to repair.
    async fn check_filesystem(&self, device: &Path, kind: FileSystem) -> Result<()>;
}
