use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::{
    Access, Content, DeviceNumber, DirEntry, Error, FileInfo, FileSystem, Host, LoopDevice, LoopOptions, MountOptions,
    MountTable, Mounter, Result, Usage,
};

/// Where a [`Counting`] port dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Just before the n-th change, counted from 1.
    Before(u64),
    /// Just after the n-th change: it is done, but nobody hears of it.
    After(u64),
}

/// A port that counts and names every change to files, devices and mounts, and can die at the n-th.
///
/// Once dead it fails every call, also those that only look: the user of a dead port is a killed process.
pub struct Counting {
    inner: Arc<dyn Host>,
    state: Mutex<State>,
    stop: Option<Stop>,
    meddler: Mutex<Option<Meddler>>,
}

/// What happens after which change.
type Meddler = (u64, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct State {
    changes: Vec<String>,
    dead: bool,
}

impl Counting {
    /// A port that counts and never dies.
    pub fn new(inner: Arc<dyn Host>) -> Self {
        Counting { inner, state: Mutex::default(), stop: None, meddler: Mutex::default() }
    }

    /// A port that dies at the given change.
    pub fn stopping(inner: Arc<dyn Host>, stop: Stop) -> Self {
        Counting { stop: Some(stop), ..Self::new(inner) }
    }

    /// A port after whose n-th change somebody else makes one before its user goes on.
    pub fn meddling(inner: Arc<dyn Host>, at: u64, meddle: impl FnOnce() + Send + 'static) -> Self {
        Counting { meddler: Mutex::new(Some((at, Box::new(meddle)))), ..Self::new(inner) }
    }

    /// The changes so far, in order, each as verb and path.
    pub fn changes(&self) -> Vec<String> {
        self.state().changes.clone()
    }

    /// Whether the port has died.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    pub(crate) fn inner(&self) -> &Arc<dyn Host> {
        &self.inner
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meddler(&self) -> std::sync::MutexGuard<'_, Option<Meddler>> {
        self.meddler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn look(&self) -> Result<&Arc<dyn Host>> {
        let state = self.state();
        match state.dead {
            true => Err(Error::Stopped { at: state.changes.len() as u64 }),
            false => Ok(&self.inner),
        }
    }

    pub(crate) async fn change<T>(
        &self,
        verb: &str,
        path: &Path,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let at = {
            let mut state = self.state();
            let at = state.changes.len() as u64 + 1;
            state.dead |= self.stop == Some(Stop::Before(at));
            if state.dead {
                return Err(Error::Stopped { at });
            }
            state.changes.push(format!("{verb} {}", path.display()));
            at
        };
        let answer = call.await;
        if let Some((_, meddle)) = self.meddler().take_if(|(then, _)| *then == at) {
            meddle();
        }
        if self.stop == Some(Stop::After(at)) {
            self.state().dead = true;
            return Err(Error::Stopped { at });
        }
        answer
    }
}

#[async_trait]
impl Mounter for Counting {
    async fn mounts(&self) -> Result<MountTable> {
        self.look()?.mounts().await
    }

    async fn resolve(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.look()?.resolve(path).await
    }

    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        self.change("mount", target, self.inner.mount(source, target, fs_type, options)).await
    }

    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<()> {
        self.change("bind", target, self.inner.bind(source, target, access)).await
    }

    async fn unmount(&self, target: &Path) -> Result<()> {
        self.change("unmount", target, self.inner.unmount(target)).await
    }

    async fn unmount_lazily(&self, target: &Path) -> Result<()> {
        self.change("unmount_lazily", target, self.inner.unmount_lazily(target)).await
    }

    async fn unmount_by_force(&self, target: &Path) -> Result<()> {
        self.change("unmount_by_force", target, self.inner.unmount_by_force(target)).await
    }

    async fn remount(&self, target: &Path, options: &MountOptions) -> Result<()> {
        self.change("remount", target, self.inner.remount(target, options)).await
    }

    async fn selinux(&self) -> Result<bool> {
        self.look()?.selinux().await
    }

    async fn create_dir(&self, path: &Path) -> Result<()> {
        self.change("create_dir", path, self.inner.create_dir(path)).await
    }

    async fn create_dir_with(&self, path: &Path, mode: u32) -> Result<()> {
        self.change("create_dir", path, self.inner.create_dir_with(path, mode)).await
    }

    async fn remove_all(&self, path: &Path) -> Result<()> {
        self.change("remove_all", path, self.inner.remove_all(path)).await
    }

    async fn write_file_with(&self, path: &Path, contents: &[u8], mode: u32) -> Result<()> {
        self.change("write_file", path, self.inner.write_file_with(path, contents, mode)).await
    }

    async fn make_file(&self, path: &Path, mode: u32) -> Result<()> {
        self.change("make_file", path, self.inner.make_file(path, mode)).await
    }

    async fn symlink(&self, to: &Path, path: &Path) -> Result<()> {
        self.change("symlink", path, self.inner.symlink(to, path)).await
    }

    async fn read_link(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.look()?.read_link(path).await
    }

    async fn canonical(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.look()?.canonical(path).await
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        self.change("remove_dir", path, self.inner.remove_dir(path)).await
    }

    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()> {
        self.change("write_file", path, self.inner.write_file(path, contents)).await
    }

    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        self.look()?.read_file(path).await
    }

    async fn remove_file(&self, path: &Path) -> Result<()> {
        self.change("remove_file", path, self.inner.remove_file(path)).await
    }

    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        self.look()?.list_dir(path).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>> {
        self.look()?.stat(path).await
    }

    async fn usage(&self, path: &Path) -> Result<Usage> {
        self.look()?.usage(path).await
    }
}

#[async_trait]
impl Host for Counting {
    async fn unique_id(&self) -> Result<String> {
        self.look()?.unique_id().await
    }

    async fn sync_dir(&self, path: &Path) -> Result<()> {
        self.change("sync_dir", path, self.inner.sync_dir(path)).await
    }

    async fn loops(&self) -> Result<Vec<LoopDevice>> {
        self.look()?.loops().await
    }

    async fn loop_device(&self, number: DeviceNumber) -> Result<Option<LoopDevice>> {
        self.look()?.loop_device(number).await
    }

    async fn attach_loop(&self, image: &Path, tag: &str, options: LoopOptions) -> Result<LoopDevice> {
        self.change("attach_loop", image, self.inner.attach_loop(image, tag, options)).await
    }

    async fn refresh_loop(&self, device: &LoopDevice) -> Result<LoopDevice> {
        self.change("refresh_loop", &device.path, self.inner.refresh_loop(device)).await
    }

    async fn detach_loop(&self, device: &LoopDevice) -> Result<()> {
        self.change("detach_loop", &device.path, self.inner.detach_loop(device)).await
    }

    async fn probe(&self, device: &Path) -> Result<Content> {
        self.look()?.probe(device).await
    }

    async fn make_filesystem(&self, device: &Path, kind: FileSystem, options: &[String]) -> Result<()> {
        self.change("make_filesystem", device, self.inner.make_filesystem(device, kind, options)).await
    }

    async fn check_filesystem(&self, device: &Path, kind: FileSystem) -> Result<()> {
        self.change("check_filesystem", device, self.inner.check_filesystem(device, kind)).await
    }

    async fn filesystem_size(&self, device: &Path) -> Result<Option<u64>> {
        self.look()?.filesystem_size(device).await
    }

    async fn grow_filesystem(&self, device: &Path, kind: FileSystem, mounted: &Path) -> Result<()> {
        self.change("grow_filesystem", device, self.inner.grow_filesystem(device, kind, mounted)).await
    }

    async fn renew_filesystem_id(&self, device: &Path, kind: FileSystem) -> Result<()> {
        self.change("renew_filesystem_id", device, self.inner.renew_filesystem_id(device, kind)).await
    }

    async fn btrfs_id(&self, directory: &Path) -> Result<Option<[u8; 16]>> {
        self.look()?.btrfs_id(directory).await
    }

    async fn create_file(&self, path: &Path) -> Result<()> {
        self.change("create_file", path, self.inner.create_file(path)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinuxMounter;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_port_stopped_before_a_change_has_not_made_it_and_answers_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let port = Counting::stopping(Arc::new(LinuxMounter), Stop::Before(2));
        block_on(async {
            port.write_file(&dir.path().join("one"), b"1").await.unwrap();
            assert!(matches!(port.write_file(&dir.path().join("two"), b"2").await, Err(Error::Stopped { at: 2 })));
            assert!(matches!(port.read_file(&dir.path().join("one")).await, Err(Error::Stopped { .. })));
        });
        assert!(!dir.path().join("two").try_exists().unwrap());
        assert_eq!(port.changes(), [format!("write_file {}", dir.path().join("one").display())]);
    }

    #[test]
    fn a_port_stopped_after_a_change_has_made_it_but_the_answer_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let port = Counting::stopping(Arc::new(LinuxMounter), Stop::After(1));
        block_on(async {
            assert!(port.write_file(&dir.path().join("one"), b"1").await.is_err());
            assert!(port.is_dead());
        });
        assert!(dir.path().join("one").try_exists().unwrap());
    }
}
