//! A node as one life of a service sees it: its changes are points of the trace, and a stopped service changes nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use stowage_mount::{Access, DirEntry, Error, FileInfo, MountOptions, MountTable, Mounter, Result, Usage};

use super::MemoryMounter;
use crate::gate::Gate;
use crate::trace::{Port, digest};

pub(crate) struct GatedMounter {
    pub(crate) node: MemoryMounter,
    pub(crate) gate: Arc<Gate>,
}

impl GatedMounter {
    pub(super) async fn change<T>(&self, what: String, path: &Path, act: impl Future<Output = Result<T>>) -> Result<T> {
        let lost = || {
            Err(Error::AccessFile {
                action: "finish the change of",
                path: path.to_owned(),
                source: io::Error::other("the simulation lost the answer"),
            })
        };
        self.gate.act(Port::Node, what, act, lost).await
    }
}

#[async_trait]
impl Mounter for GatedMounter {
    async fn mounts(&self) -> Result<MountTable> {
        self.gate.look().await;
        self.node.mounts().await
    }

    async fn resolve(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.gate.look().await;
        self.node.resolve(path).await
    }

    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        let what = format!("mount {source} {}", target.display());
        self.change(what, target, self.node.mount(source, target, fs_type, options)).await
    }

    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<()> {
        let what = format!("bind {} {}", source.display(), target.display());
        self.change(what, target, self.node.bind(source, target, access)).await
    }

    async fn unmount(&self, target: &Path) -> Result<()> {
        self.change(format!("unmount {}", target.display()), target, self.node.unmount(target)).await
    }

    async fn unmount_lazily(&self, target: &Path) -> Result<()> {
        self.change(format!("unmount_lazily {}", target.display()), target, self.node.unmount_lazily(target)).await
    }

    async fn unmount_by_force(&self, target: &Path) -> Result<()> {
        self.change(format!("unmount_by_force {}", target.display()), target, self.node.unmount_by_force(target)).await
    }

    async fn remount(&self, target: &Path, options: &MountOptions) -> Result<()> {
        let what = format!("remount {} {}", target.display(), options.words.join(","));
        self.change(what, target, self.node.remount(target, options)).await
    }

    async fn selinux(&self) -> Result<bool> {
        self.gate.look().await;
        self.node.selinux().await
    }

    async fn create_dir(&self, path: &Path) -> Result<()> {
        self.change(format!("create_dir {}", path.display()), path, self.node.create_dir(path)).await
    }

    async fn create_dir_with(&self, path: &Path, mode: u32) -> Result<()> {
        let what = format!("create_dir {} {mode:o}", path.display());
        self.change(what, path, self.node.create_dir_with(path, mode)).await
    }

    async fn remove_all(&self, path: &Path) -> Result<()> {
        self.change(format!("remove_all {}", path.display()), path, self.node.remove_all(path)).await
    }

    async fn write_file_with(&self, path: &Path, contents: &[u8], mode: u32) -> Result<()> {
        let what = format!("write_file {} {} {mode:o}", path.display(), digest(contents));
        self.change(what, path, self.node.write_file_with(path, contents, mode)).await
    }

    async fn make_file(&self, path: &Path, mode: u32) -> Result<()> {
        self.change(format!("make_file {} {mode:o}", path.display()), path, self.node.make_file(path, mode)).await
    }

    async fn symlink(&self, to: &Path, path: &Path) -> Result<()> {
        let what = format!("symlink {} {}", to.display(), path.display());
        self.change(what, path, self.node.symlink(to, path)).await
    }

    async fn read_link(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.gate.look().await;
        self.node.read_link(path).await
    }

    async fn canonical(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.gate.look().await;
        self.node.canonical(path).await
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        self.change(format!("remove_dir {}", path.display()), path, self.node.remove_dir(path)).await
    }

    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()> {
        let what = format!("write_file {} {}", path.display(), digest(contents));
        self.change(what, path, self.node.write_file(path, contents)).await
    }

    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        self.gate.look().await;
        self.node.read_file(path).await
    }

    async fn remove_file(&self, path: &Path) -> Result<()> {
        self.change(format!("remove_file {}", path.display()), path, self.node.remove_file(path)).await
    }

    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        self.gate.look().await;
        self.node.list_dir(path).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>> {
        self.gate.look().await;
        self.node.stat(path).await
    }

    async fn usage(&self, path: &Path) -> Result<Usage> {
        self.gate.look().await;
        self.node.usage(path).await
    }
}
