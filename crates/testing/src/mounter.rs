//! The files and mounts of a node, in memory.

mod gated;
mod node;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use stowage_mount::{Access, DirEntry, FileInfo, MountOptions, MountTable, Mounter, Result, Usage};

use crate::changes::Changes;

pub(crate) use gated::GatedMounter;
pub use tree::Tree;

/// One node's [`Mounter`]; clones share the node. The driver's node part and the volume manager use the same one.
#[derive(Clone)]
pub struct MemoryMounter {
    tree: Arc<Mutex<Tree>>,
    changes: Changes,
}

impl MemoryMounter {
    /// A node with nothing but `/`.
    pub fn new(changes: Changes) -> Self {
        Self { tree: Arc::default(), changes }
    }

    /// Looks at or changes the node.
    pub fn with<T>(&self, f: impl FnOnce(&mut Tree) -> T) -> T {
        let result = f(&mut self.tree.lock().expect("no code panics while holding the tree"));
        self.changes.announce();
        result
    }

    /// A copy of the node as it is.
    pub fn snapshot(&self) -> Tree {
        self.tree.lock().expect("no code panics while holding the tree").clone()
    }

    fn look<T>(&self, f: impl FnOnce(&Tree) -> T) -> T {
        f(&self.tree.lock().expect("no code panics while holding the tree"))
    }
}

#[async_trait]
impl Mounter for MemoryMounter {
    async fn mounts(&self) -> Result<MountTable> {
        Ok(self.look(Tree::mounts))
    }

    async fn resolve(&self, path: &Path) -> Result<Option<PathBuf>> {
        Ok(self.look(|tree| tree.resolve(path)))
    }

    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        self.with(|tree| tree.mount(source, target, fs_type, options))
    }

    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<()> {
        self.with(|tree| tree.bind(source, target, access))
    }

    async fn unmount(&self, target: &Path) -> Result<()> {
        self.with(|tree| tree.unmount(target))
    }

    async fn unmount_lazily(&self, target: &Path) -> Result<()> {
        self.with(|tree| tree.unmount_lazily(target))
    }

    async fn unmount_by_force(&self, target: &Path) -> Result<()> {
        self.with(|tree| tree.unmount(target))
    }

    async fn remount(&self, target: &Path, options: &MountOptions) -> Result<()> {
        self.with(|tree| tree.remount(target, options))
    }

    async fn selinux(&self) -> Result<bool> {
        Ok(self.look(Tree::selinux))
    }

    async fn create_dir(&self, path: &Path) -> Result<()> {
        self.with(|tree| tree.create_dir(path))
    }

    async fn create_dir_with(&self, path: &Path, mode: u32) -> Result<()> {
        self.with(|tree| tree.create_dir_with(path, mode))
    }

    async fn remove_all(&self, path: &Path) -> Result<()> {
        self.with(|tree| tree.remove_all(path))
    }

    async fn write_file_with(&self, path: &Path, contents: &[u8], mode: u32) -> Result<()> {
        self.with(|tree| tree.write_file_with(path, contents, mode))
    }

    async fn make_file(&self, path: &Path, mode: u32) -> Result<()> {
        self.with(|tree| tree.make_file(path, mode))
    }

    async fn symlink(&self, to: &Path, path: &Path) -> Result<()> {
        self.with(|tree| tree.symlink(to, path))
    }

    async fn read_link(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.look(|tree| tree.read_link(path))
    }

    async fn canonical(&self, path: &Path) -> Result<Option<PathBuf>> {
        Ok(self.look(|tree| tree.canonical(path)))
    }

    async fn remove_dir(&self, path: &Path) -> Result<()> {
        self.with(|tree| tree.remove_dir(path))
    }

    async fn write_file(&self, path: &Path, contents: &[u8]) -> Result<()> {
        self.with(|tree| tree.write_file(path, contents))
    }

    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        self.look(|tree| tree.read_file(path))
    }

    async fn remove_file(&self, path: &Path) -> Result<()> {
        self.with(|tree| tree.remove_file(path))
    }

    async fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        self.look(|tree| tree.list_dir(path))
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>> {
        Ok(self.look(|tree| tree.stat(path)))
    }

    async fn usage(&self, path: &Path) -> Result<Usage> {
        loop {
            let count = self.changes.count();
            if !self.look(|tree| tree.is_hung(path)) {
                break;
            }
            self.changes.beyond(count).await;
        }
        Ok(Usage { total_bytes: 1 << 30, available_bytes: 1 << 30, ..Usage::default() })
    }
}
