use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::patience::Waiter;
use crate::{
    Access, Content, DeviceNumber, DirEntry, Error, FileInfo, FileSystem, Host, LoopDevice, LoopOptions, MountOptions,
    MountTable, Mounter, Result, Usage, bind, files, filesystem, loopback, places, remove_all,
};

/// The machine this process runs on.
///
/// Calls run on tokio's blocking threads, which have the mount namespace of the thread that runs the runtime.
/// A call that is dropped still runs to its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinuxMounter;

pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (answer, mut answered) = oneshot::channel();
    // All of one type, so that what runs them is compiled once and not for each call.
    let work: Box<dyn FnOnce() + Send> = Box::new(move || _ = answer.send(call()));
    let finished = tokio::task::spawn_blocking(work).await;
    finished.map_err(|error| Error::FinishCall { reason: error.to_string() })?;
    answered.try_recv().unwrap_or_else(|error| Err(Error::FinishCall { reason: error.to_string() }))
}

/// File systems that are mounted without asking anybody outside this machine.
const LOCAL: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay"];

/// Runs a call that may take for ever on a thread of its own, for which neither the runtime nor the process waits: as many of
/// them as there are leave the threads of all other calls alone.
pub(crate) async fn apart<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (answer, answered) = oneshot::channel();
    let work = move || _ = answer.send(call());
    let started = std::thread::Builder::new().name("apart".into()).spawn(work);
    started.map_err(|error| Error::FinishCall { reason: error.to_string() })?;
    answered.await.unwrap_or_else(|error| Err(Error::FinishCall { reason: error.to_string() }))
}

/// Runs a function of one path on a blocking thread.
pub(crate) async fn on<T: Send + 'static>(path: &Path, call: fn(&Path) -> Result<T>) -> Result<T> {
    let path = path.to_owned();
    blocking(move || call(&path)).await
}

#[async_trait]
impl Mounter for LinuxMounter {
    async fn mounts(&self) -> Result<MountTable> {
        blocking(MountTable::read).await
    }

    async fn resolve(&self, path: &Path) -> Result<Option<PathBuf>> {
        on(path, files::resolve).await
    }

    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        let (source, target) = (source.to_owned(), target.to_owned());
        let (fs_type, options) = (fs_type.to_owned(), options.clone());
        let is_local = LOCAL.contains(&fs_type.as_str());
        let mount = move || bind::mount(&source, &target, &fs_type, &options);
        if is_local { blocking(mount).await } else { apart(mount).await }
    }

    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<()> {
        let (source, target) = (source.to_owned(), target.to_owned());
        let options = MountOptions::new((access == Access::ReadOnly).then_some("ro"));
        blocking(move || bind::bind(&source, &target, &options)).await
    }

    async fn unmount(&self, target: &Path) -> Result<()> {
        let target = target.to_owned();
        // What is mounted there may wait for a server.
        apart(move || bind::unmount(&target)).await
    }

    async fn unmount_lazily(&self, target: &Path) -> Result<()> {
        on(target, bind::unmount_lazily).await
    }

    async fn unmount_by_force(&self, target: &Path) -> Result<()> {
        on(target, bind::unmount_by_force).await
    }

    async fn remount(&self, target: &Path, options: &MountOptions) -> Result<()> {
        let (target, options) = (target.to_owned(), options.clone());
        blocking(move || bind::remount(&target, &options)).await
    }

    async fn selinux(&self) -> Result<bool> {
        blocking(places::selinux).await
    }

    async fn create_dir(&self, path: &Path) -> Result<()> {
        on(path, files::create_dir).await
    }

    async fn create_dir_with(&self, path: &Path, mode: u32) -> Result<()> {
        let path = path.to_owned();
        blocking(move || places::create_dir_with(&path, mode)).await
    }

    async fn remove_all(&self, path: &Path) -> Result<()> {
        let (_waiter, waiting) = Waiter::new();
        let path = path.to_owned();
        blocking(move || remove_all::remove(&path, &waiting)).await
    }

    async fn write_file_with(&self, path: &Path, contents: &[u8], mode: u32) -> Result<()> {
        let (path, contents) = (path.to_owned(), contents.to_owned());
        blocking(move || files::write_file(&path, &contents, mode)).await
    }

    async fn make_file(&self, path: &Path, mode: u32) -> Result<()> {
        let path = path.to_owned();
        blocking(move || places::make_file(&path, mode)).await
    }

    async fn symlink(&self, to: &Path, path: &Path) -> Result<()> {
        let (to, path) = (to.to_owned(), path.to_owned());
        blocking(move || places::symlink(&to, &path)).await
    }

    async fn read_link(&self, path: &Path) -> Result<Option<PathBuf>> {
        on(path, places::read_link).await
    }

    async fn canonical(&self, path: &Path) -> Result<Option<PathBuf>> {
        on(path, places::canonical).await
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        on(path, files::remove_dir).await
    }

    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let (path, contents) = (path.to_owned(), contents.to_owned());
        blocking(move || files::write_file(&path, &contents, 0o600)).await
    }

    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        on(path, files::read_file).await
    }

    async fn remove_file(&self, path: &Path) -> Result<()> {
        on(path, files::remove_file).await
    }

    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        on(path, files::list_dir).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>> {
        on(path, files::stat).await
    }

    async fn usage(&self, path: &Path) -> Result<Usage> {
        let path = path.to_owned();
        apart(move || files::usage(&path)).await
    }
}

#[async_trait]
impl Host for LinuxMounter {
    async fn unique_id(&self) -> Result<String> {
        blocking(files::unique_id).await
    }

    async fn sync_dir(&self, path: &Path) -> Result<()> {
        on(path, files::sync_dir).await
    }

    async fn loops(&self) -> Result<Vec<LoopDevice>> {
        blocking(loopback::list).await
    }

    async fn loop_device(&self, number: DeviceNumber) -> Result<Option<LoopDevice>> {
        blocking(move || loopback::find(number.minor)).await
    }

    async fn attach_loop(&self, image: &Path, tag: &str, options: LoopOptions) -> Result<LoopDevice> {
        let (image, tag) = (image.to_owned(), tag.to_owned());
        blocking(move || loopback::attach(&image, &tag, options)).await
    }

    async fn refresh_loop(&self, device: &LoopDevice) -> Result<LoopDevice> {
        let device = device.clone();
        blocking(move || loopback::refresh(&device)).await
    }

    async fn detach_loop(&self, device: &LoopDevice) -> Result<()> {
        let device = device.clone();
        blocking(move || loopback::detach(&device)).await
    }

    async fn probe(&self, device: &Path) -> Result<Content> {
        on(device, filesystem::probe).await
    }

    async fn make_filesystem(&self, device: &Path, kind: FileSystem, options: &[String]) -> Result<()> {
        let (device, options) = (device.to_owned(), options.to_owned());
        blocking(move || filesystem::make(&device, kind, &options)).await
    }

    async fn check_filesystem(&self, device: &Path, kind: FileSystem) -> Result<()> {
        let device = device.to_owned();
        blocking(move || filesystem::check(&device, kind)).await
    }

    async fn filesystem_size(&self, device: &Path) -> Result<Option<u64>> {
        on(device, filesystem::size).await
    }

    async fn grow_filesystem(&self, device: &Path, kind: FileSystem, mounted: &Path) -> Result<()> {
        let (device, mounted) = (device.to_owned(), mounted.to_owned());
        blocking(move || filesystem::grow(&device, kind, &mounted)).await
    }

    async fn renew_filesystem_id(&self, device: &Path, kind: FileSystem) -> Result<()> {
        let device = device.to_owned();
        blocking(move || filesystem::renew_id(&device, kind)).await
    }

    async fn btrfs_id(&self, directory: &Path) -> Result<Option<[u8; 16]>> {
        on(directory, filesystem::btrfs_id).await
    }

    async fn create_file(&self, path: &Path) -> Result<()> {
        on(path, files::create_file).await
    }
}
