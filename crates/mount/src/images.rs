use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::linux::blocking;
use crate::{Counting, LinuxMounter, LoopDevice, Result, clone, extents, filesystem, freeze, tree, tune};

/// How an image takes its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Only what is written takes space.
    Sparse,
    /// All of it is set aside at once.
    Allocated,
}

/// The part of the port that makes, copies and compares images.
///
/// An image appears under its name whole and durable, or not at all; what an interrupted call left goes with the next
/// call for the same path or with `remove_file`.
#[async_trait]
pub trait Images: Send + Sync {
    /// The time of day.
    fn now(&self) -> SystemTime;

    /// Makes an image of zeros, replacing one that is there.
    async fn make_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()>;

    /// Gives an image this size if it is smaller, and what it lacks of its space if it is to have all of it.
    async fn grow_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()>;

    /// Whether files in this directory can share their blocks.
    async fn can_clone(&self, directory: &Path) -> Result<bool>;

    /// Makes an image that shares its blocks with `source` as that is at one moment, and is `bytes` long; never
    /// shorter than its source.
    async fn clone_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()>;

    /// Makes an image that holds what `source` holds, holes left out, and is `bytes` long; never shorter than its
    /// source.
    async fn copy_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()>;

    /// The parts of a file that hold data, in order; the rest reads as zeros.
    async fn data_ranges(&self, path: &Path) -> Result<Vec<Range<u64>>>;

    /// Whether a file holds nothing but zeros.
    async fn is_zero(&self, path: &Path) -> Result<bool>;

    /// The parts in which two files may differ, in order: those whose blocks they do not share.
    async fn unshared_ranges(&self, base: &Path, target: &Path) -> Result<Vec<Range<u64>>>;

    /// The blocks of 4 KiB within a range in which two files do differ, neighbours joined; past its end a file is zeros.
    async fn differing_ranges(&self, base: &Path, target: &Path, within: Range<u64>) -> Result<Vec<Range<u64>>>;

    /// Writes what the kernel still holds for a block device to it.
    async fn flush_device(&self, device: &Path) -> Result<()>;

    /// Makes a directory for a volume, durable, mode 0755 as the root of a new file system has.
    async fn make_tree(&self, path: &Path) -> Result<()>;

    /// Removes a directory with all that is in it, following no links; refuses if something is mounted in it.
    async fn remove_tree(&self, path: &Path) -> Result<()>;

    /// Sets how much is read ahead of a sequential reader of a loop device.
    async fn set_read_ahead(&self, device: &LoopDevice, kilobytes: u32) -> Result<()>;

    /// Sets whether a loop device bypasses the page cache of its image's file system.
    async fn set_direct_io(&self, device: &LoopDevice, direct: bool) -> Result<()>;

    /// Sets the share of an ext4 file system, mounted or not, that only root may fill.
    async fn reserve_blocks(&self, device: &Path, percent: u8) -> Result<()>;
}

#[async_trait]
impl Images for LinuxMounter {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    async fn make_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()> {
        let path = path.to_owned();
        blocking(move || clone::make(&path, bytes, space)).await
    }

    async fn grow_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()> {
        let path = path.to_owned();
        blocking(move || clone::grow(&path, bytes, space)).await
    }

    async fn can_clone(&self, directory: &Path) -> Result<bool> {
        let directory = directory.to_owned();
        blocking(move || clone::is_possible_in(&directory)).await
    }

    async fn clone_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
        let (source, path) = (source.to_owned(), path.to_owned());
        blocking(move || clone::share(&source, &path, bytes, space)).await
    }

    async fn copy_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
        let (source, path) = (source.to_owned(), path.to_owned());
        blocking(move || clone::copy(&source, &path, bytes, space)).await
    }

    async fn data_ranges(&self, path: &Path) -> Result<Vec<Range<u64>>> {
        let path = path.to_owned();
        blocking(move || extents::data(&path)).await
    }

    async fn is_zero(&self, path: &Path) -> Result<bool> {
        let path = path.to_owned();
        blocking(move || extents::is_zero(&path)).await
    }

    async fn unshared_ranges(&self, base: &Path, target: &Path) -> Result<Vec<Range<u64>>> {
        let (base, target) = (base.to_owned(), target.to_owned());
        blocking(move || extents::unshared(&base, &target)).await
    }

    async fn differing_ranges(&self, base: &Path, target: &Path, within: Range<u64>) -> Result<Vec<Range<u64>>> {
        let (base, target) = (base.to_owned(), target.to_owned());
        blocking(move || extents::differing(&base, &target, within)).await
    }

    async fn flush_device(&self, device: &Path) -> Result<()> {
        let path = device.to_owned();
        blocking(move || freeze::flush(&path)).await
    }

    async fn make_tree(&self, path: &Path) -> Result<()> {
        let path = path.to_owned();
        blocking(move || tree::make(&path)).await
    }

    async fn remove_tree(&self, path: &Path) -> Result<()> {
        let path = path.to_owned();
        blocking(move || tree::remove(&path)).await
    }

    async fn set_read_ahead(&self, device: &LoopDevice, kilobytes: u32) -> Result<()> {
        let device = device.clone();
        blocking(move || tune::read_ahead(&device, kilobytes)).await
    }

    async fn set_direct_io(&self, device: &LoopDevice, direct: bool) -> Result<()> {
        let device = device.clone();
        blocking(move || tune::direct_io(&device, direct)).await
    }

    async fn reserve_blocks(&self, device: &Path, percent: u8) -> Result<()> {
        let device = device.to_owned();
        blocking(move || filesystem::reserve_blocks(&device, percent)).await
    }
}

#[async_trait]
impl Images for Counting {
    fn now(&self) -> SystemTime {
        self.inner().now()
    }

    async fn make_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()> {
        self.change("make_image", path, self.inner().make_image(path, bytes, space)).await
    }

    async fn grow_image(&self, path: &Path, bytes: u64, space: Space) -> Result<()> {
        self.change("grow_image", path, self.inner().grow_image(path, bytes, space)).await
    }

    async fn can_clone(&self, directory: &Path) -> Result<bool> {
        self.look()?.can_clone(directory).await
    }

    async fn clone_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
        self.change("clone_image", path, self.inner().clone_image(source, path, bytes, space)).await
    }

    async fn copy_image(&self, source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
        self.change("copy_image", path, self.inner().copy_image(source, path, bytes, space)).await
    }

    async fn data_ranges(&self, path: &Path) -> Result<Vec<Range<u64>>> {
        self.look()?.data_ranges(path).await
    }

    async fn is_zero(&self, path: &Path) -> Result<bool> {
        self.look()?.is_zero(path).await
    }

    async fn unshared_ranges(&self, base: &Path, target: &Path) -> Result<Vec<Range<u64>>> {
        self.look()?.unshared_ranges(base, target).await
    }

    async fn differing_ranges(&self, base: &Path, target: &Path, within: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.look()?.differing_ranges(base, target, within).await
    }

    async fn flush_device(&self, device: &Path) -> Result<()> {
        self.look()?.flush_device(device).await
    }

    async fn make_tree(&self, path: &Path) -> Result<()> {
        self.change("make_tree", path, self.inner().make_tree(path)).await
    }

    async fn remove_tree(&self, path: &Path) -> Result<()> {
        self.change("remove_tree", path, self.inner().remove_tree(path)).await
    }

    async fn set_read_ahead(&self, device: &LoopDevice, kilobytes: u32) -> Result<()> {
        self.change("set_read_ahead", &device.path, self.inner().set_read_ahead(device, kilobytes)).await
    }

    async fn set_direct_io(&self, device: &LoopDevice, direct: bool) -> Result<()> {
        self.change("set_direct_io", &device.path, self.inner().set_direct_io(device, direct)).await
    }

    async fn reserve_blocks(&self, device: &Path, percent: u8) -> Result<()> {
        self.change("reserve_blocks", device, self.inner().reserve_blocks(device, percent)).await
    }
}
