//! Directories, files and mounts as plain data, with the rules a kernel has for them.

mod folder;
mod node;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use stowage_mount::{
    Access, DeviceNumber, DirEntry, Error, FileId, FileInfo, FileKind, Holder, LoopDevice, Mount, MountOptions,
    MountTable, NodeKind, Result,
};

// Numbers of Linux' errors.
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;

pub(crate) use folder::MemoryFolder;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    content: Content,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Entry {
    fn new(content: Content, mode: u32) -> Self {
        Self { content, mode, uid: 0, gid: 0 }
    }
}

/// The tree of one node. Mounts hide nothing; what is kept in a tmpfs goes with it.
#[derive(Debug, Clone)]
pub struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
    mounts: Vec<Mount>,
    /// Who keeps which mounts from being unmounted.
    holders: BTreeMap<PathBuf, Vec<Holder>>,
    /// The locks of devices, by their files.
    locks: BTreeMap<PathBuf, LoopDevice>,
    /// Where the usage is not told.
    hung: BTreeSet<PathBuf>,
    selinux: bool,
    devices: BTreeMap<String, u32>,
    next: u32,
}

impl Default for Tree {
    fn default() -> Self {
        let entries = BTreeMap::from([(PathBuf::from("/"), Entry::new(Content::Directory, 0o755))]);
        Self {
            entries,
            mounts: Vec::new(),
            holders: BTreeMap::new(),
            locks: BTreeMap::new(),
            hung: BTreeSet::new(),
            selinux: false,
            devices: BTreeMap::new(),
            next: 100,
        }
    }
}

impl Tree {
    /// The mount table.
    pub fn mounts(&self) -> MountTable {
        MountTable::new(self.mounts.clone())
    }

    /// Every path there is, mount points with what is mounted on them.
    pub fn lines(&self) -> Vec<String> {
        let entries = self.entries.iter().map(|(path, entry)| {
            let mounted = self.mounts.iter().rev().find(|mount| mount.target == *path);
            match (&entry.content, mounted) {
                (_, Some(mount)) => format!("{} <- {}", path.display(), mount.source),
                (Content::Directory, None) => format!("{}/", path.display()),
                (Content::File(contents), None) => format!("{} ({} bytes)", path.display(), contents.len()),
                (Content::Link(to), None) => format!("{} -> {}", path.display(), to.display()),
            }
        });
        entries.collect()
    }

    /// The paths strictly below a directory.
    pub fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        self.entries.keys().map(PathBuf::as_path).filter(move |path| path.starts_with(dir) && *path != dir)
    }

    /// See [`stowage_mount::Mounter::resolve`]; links are not followed here.
    pub fn resolve(&self, path: &Path) -> Option<PathBuf> {
        match path.parent() {
            Some(parent) => self.is_dir(parent).then(|| path.to_owned()),
            None => Some(path.to_owned()),
        }
    }

    /// See [`stowage_mount::Mounter::mount`].
    pub fn mount(&mut self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        if !self.is_dir(target) {
            let source_error = os(ENOENT);
            return Err(Error::Mount {
                from: source.to_owned(),
                target: target.to_owned(),
                fs_type: fs_type.to_owned(),
                source: source_error,
            });
        }
        let device = self.device(source);
        self.push(source, device, target, fs_type, options.words.clone());
        Ok(())
    }

    /// See [`stowage_mount::Mounter::bind`].
    pub fn bind(&mut self, source: &Path, target: &Path, access: Access) -> Result<()> {
        if !self.entries.contains_key(source) || !self.entries.contains_key(target) {
            return Err(Error::Bind { from: source.to_owned(), target: target.to_owned(), source: os(ENOENT) });
        }
        let seen = self.mounts.iter().rev().find(|mount| mount.target == source).cloned();
        let options = vec![if access == Access::ReadOnly { "ro" } else { "rw" }.to_owned()];
        match seen {
            Some(mount) => self.push(&mount.source, mount.device, target, &mount.fs_type, options),
            None => {
                let device = self.device("/");
                self.push(&source.to_string_lossy(), device, target, "none", options);
            }
        }
        Ok(())
    }

    /// See [`stowage_mount::Mounter::unmount`].
    pub fn unmount(&mut self, target: &Path) -> Result<()> {
        let Some(index) = self.mounts.iter().rposition(|mount| mount.target == target) else { return Ok(()) };
        if self.mounts.iter().any(|mount| mount.target != target && mount.target.starts_with(target)) {
            return Err(Error::UnmountUsed { target: target.to_owned() });
        }
        if self.holders.contains_key(target) {
            return Err(Error::UnmountUsed { target: target.to_owned() });
        }
        let gone = self.mounts.remove(index);
        if matches!(gone.fs_type.as_str(), "tmpfs" | "hugetlbfs") {
            self.entries.retain(|path, _| path == target || !path.starts_with(target));
        }
        Ok(())
    }

    /// See [`stowage_mount::Mounter::create_dir`].
    pub fn create_dir(&mut self, path: &Path) -> Result<()> {
        for ancestor in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let made = || Entry::new(Content::Directory, 0o750);
            if self.entries.entry(ancestor.to_owned()).or_insert_with(made).content != Content::Directory {
                return Err(access("create directory", path, ENOTDIR));
            }
        }
        Ok(())
    }

    /// See [`stowage_mount::Mounter::remove_dir`].
    pub fn remove_dir(&mut self, path: &Path) -> Result<()> {
        if let Some(mount) = self.mounts.iter().find(|mount| mount.target.starts_with(path)) {
            return Err(Error::RemoveMounted { path: path.to_owned(), mounted: mount.target.clone() });
        }
        match self.entries.get(path) {
            None => Ok(()),
            Some(_) if !self.is_dir(path) => Err(access("remove directory", path, ENOTDIR)),
            Some(_) if self.below(path).next().is_some() => Err(access("remove directory", path, ENOTEMPTY)),
            Some(_) => {
                self.entries.remove(path);
                Ok(())
            }
        }
    }

    /// See [`stowage_mount::Mounter::write_file`].
    pub fn write_file(&mut self, path: &Path, contents: &[u8]) -> Result<()> {
        if !path.parent().is_some_and(|parent| self.is_dir(parent)) {
            return Err(access("write", path, ENOENT));
        }
        if self.is_dir(path) {
            return Err(access("write", path, EISDIR));
        }
        self.entries.insert(path.to_owned(), Entry::new(Content::File(contents.to_vec()), 0o600));
        Ok(())
    }

    /// See [`stowage_mount::Mounter::read_file`].
    pub fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match self.entries.get(path).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::File(contents)) => Ok(Some(contents.clone())),
            Some(Content::Link(_)) => Err(access("read", path, ELOOP)),
            Some(Content::Directory) => Err(access("read", path, EINVAL)),
        }
    }

    /// See [`stowage_mount::Mounter::remove_file`].
    pub fn remove_file(&mut self, path: &Path) -> Result<()> {
        match self.is_dir(path) {
            true => Err(access("remove", path, EISDIR)),
            false => {
                self.entries.remove(path);
                Ok(())
            }
        }
    }

    /// See [`stowage_mount::Mounter::list_dir`].
    pub fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        match self.entries.get(path).map(|entry| &entry.content) {
            None => return Ok(None),
            Some(Content::Directory) => {}
            Some(_) => return Err(access("list", path, ENOTDIR)),
        }
        let children = self.entries.iter().filter(|(child, _)| child.parent() == Some(path));
        let entries = children.filter_map(|(child, entry)| {
            let kind = kind(entry);
            child.file_name().map(|name| DirEntry { name: name.to_owned(), kind })
        });
        Ok(Some(entries.collect()))
    }

    /// See [`stowage_mount::Mounter::stat`].
    pub fn stat(&self, path: &Path) -> Option<FileInfo> {
        let entry = self.entries.get(path)?;
        let size = match &entry.content {
            Content::Directory => 0,
            Content::File(contents) => contents.len() as u64,
            Content::Link(to) => to.as_os_str().len() as u64,
        };
        let device = self.mounts.iter().rev().find(|mount| path.starts_with(&mount.target));
        let device = device.map_or(1, |mount| u64::from(mount.device.minor));
        // Paths never move here, so a digest of the path is as good as an inode.
        let inode = u64::from(crc32fast::hash(path.as_os_str().as_encoded_bytes()));
        let (mode, uid, gid) = (entry.mode, entry.uid, entry.gid);
        let node = match &entry.content {
            Content::Directory => NodeKind::Directory,
            Content::File(_) => NodeKind::File,
            Content::Link(_) => NodeKind::Link,
        };
        let id = FileId { device, inode };
        Some(FileInfo { kind: kind(entry), node, size, allocated: size, id, mode, uid, gid })
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.entries.get(path).is_some_and(|entry| entry.content == Content::Directory)
    }

    fn device(&mut self, source: &str) -> DeviceNumber {
        let next = u32::try_from(self.devices.len()).unwrap_or(u32::MAX) + 2;
        DeviceNumber { major: 7, minor: *self.devices.entry(source.to_owned()).or_insert(next) }
    }

    fn push(&mut self, source: &str, device: DeviceNumber, target: &Path, fs_type: &str, options: Vec<String>) {
        self.next += 1;
        self.mounts.push(Mount {
            id: self.next,
            parent: 1,
            device,
            root: "/".into(),
            target: target.to_owned(),
            options,
            tags: Vec::new(),
            fs_type: fs_type.to_owned(),
            source: source.to_owned(),
            super_options: vec!["rw".to_owned()],
        });
    }
}

fn kind(entry: &Entry) -> FileKind {
    match &entry.content {
        Content::Directory => FileKind::Directory,
        Content::File(_) => FileKind::File,
        Content::Link(_) => FileKind::Link,
    }
}

fn os(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn access(action: &'static str, path: &Path, number: i32) -> Error {
    Error::AccessFile { action, path: path.to_owned(), source: os(number) }
}

#[cfg(test)]
mod tests;
