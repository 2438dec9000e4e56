use std::path::Path;

use async_trait::async_trait;

use crate::{
    Content, DeviceNumber, FileSystem, Growth, Images, LoopDevice, LoopOptions, Mounter, OciLayouts, Result, Shares,
};

/// A [`Mounter`] that also has images, loop devices, file systems, held places, shares and OCI layouts: all that a storage driver changes.
#[async_trait]
pub trait Host: Mounter + Images + Growth + Shares + OciLayouts {
    /// 128 bits that nobody has seen before, as text.
    async fn unique_id(&self) -> Result<String>;

    /// Makes the entries of a directory durable.
    async fn sync_dir(&self, path: &Path) -> Result<()>;

    /// All loop devices of this kernel that are in use, also those of other mount namespaces.
    async fn loops(&self) -> Result<Vec<LoopDevice>>;

    /// The loop device of this number, if it is in use.
    async fn loop_device(&self, number: DeviceNumber) -> Result<Option<LoopDevice>>;

    /// Serves an image as a new loop device that carries `tag`.
    async fn attach_loop(&self, image: &Path, tag: &str, options: LoopOptions) -> Result<LoopDevice>;

    /// Lets a loop device take the size its image has now; returns the device as it is then.
    async fn refresh_loop(&self, device: &LoopDevice) -> Result<LoopDevice>;

    /// Releases a loop device that still carries the tag it was found with; fails while others have it open or mounted.
    async fn detach_loop(&self, device: &LoopDevice) -> Result<()>;

    /// What a device holds, by its contents.
    async fn probe(&self, device: &Path) -> Result<Content>;

    /// Makes a file system, destroying what the device holds; `options` are further words for its mkfs.
    async fn make_filesystem(&self, device: &Path, kind: FileSystem, options: &[String]) -> Result<()>;

    /// Checks an unmounted file system and repairs what is safe to repair.
    async fn check_filesystem(&self, device: &Path, kind: FileSystem) -> Result<()>;

    /// How many bytes of its device a file system uses, by its superblock; `None` if there is none.
    async fn filesystem_size(&self, device: &Path) -> Result<Option<u64>>;

    /// Grows a mounted file system to the size of its device.
    async fn grow_filesystem(&self, device: &Path, kind: FileSystem, mounted: &Path) -> Result<()>;

    /// Gives an unmounted file system an identity of its own, as a copy needs.
    async fn renew_filesystem_id(&self, device: &Path, kind: FileSystem) -> Result<()>;

    /// What tells the btrfs of a directory from all others, whose subvolumes have devices of their own; `None` if it is not
    /// btrfs.
    async fn btrfs_id(&self, directory: &Path) -> Result<Option<[u8; 16]>>;

    /// Makes an empty file where there is none, mode 0600.
    async fn create_file(&self, path: &Path) -> Result<()>;
}
