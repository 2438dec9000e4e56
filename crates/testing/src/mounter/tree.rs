//! Directories, files and mounts as plain data, with the rules a kernel has for them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use stowage_mount::{
    Access, DeviceNumber, DirEntry, Error, FileId, FileInfo, FileKind, Mount, MountOptions, MountTable, Result,
};

// Numbers of Linux' errors.
const ENOENT: i32 = 2;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory,
    File(Vec<u8>),
}

/// The tree of one node. Nothing is ever kept inside a mounted directory, so mounts hide nothing.
#[derive(Debug, Clone)]
pub struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
    mounts: Vec<Mount>,
    devices: BTreeMap<String, u32>,
    next: u32,
}

impl Default for Tree {
    fn default() -> Self {
        let entries = BTreeMap::from([(PathBuf::from("/"), Entry::Directory)]);
        Self { entries, mounts: Vec::new(), devices: BTreeMap::new(), next: 100 }
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
            match (entry, mounted) {
                (_, Some(mount)) => format!("{} <- {}", path.display(), mount.source),
                (Entry::Directory, None) => format!("{}/", path.display()),
                (Entry::File(contents), None) => format!("{} ({} bytes)", path.display(), contents.len()),
            }
        });
        entries.collect()
    }

    /// The paths strictly below a directory.
    pub fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        self.entries.keys().map(PathBuf::as_path).filter(move |path| path.starts_with(dir) && *path != dir)
    }

    /// See [`stowage_mount::Mounter::resolve`]; there are no links here.
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
        self.mounts.remove(index);
        Ok(())
    }

    /// See [`stowage_mount::Mounter::create_dir`].
    pub fn create_dir(&mut self, path: &Path) -> Result<()> {
        for ancestor in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            match self.entries.entry(ancestor.to_owned()).or_insert(Entry::Directory) {
                Entry::Directory => {}
                Entry::File(_) => return Err(access("create directory", path, ENOTDIR)),
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
            Some(Entry::File(_)) => Err(access("remove directory", path, ENOTDIR)),
            Some(Entry::Directory) if self.below(path).next().is_some() => {
                Err(access("remove directory", path, ENOTEMPTY))
            }
            Some(Entry::Directory) => {
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
        self.entries.insert(path.to_owned(), Entry::File(contents.to_vec()));
        Ok(())
    }

    /// See [`stowage_mount::Mounter::read_file`].
    pub fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match self.entries.get(path) {
            None => Ok(None),
            Some(Entry::File(contents)) => Ok(Some(contents.clone())),
            Some(Entry::Directory) => Err(access("read", path, EINVAL)),
        }
    }

    /// See [`stowage_mount::Mounter::remove_file`].
    pub fn remove_file(&mut self, path: &Path) -> Result<()> {
        match self.entries.get(path) {
            Some(Entry::Directory) => Err(access("remove", path, EISDIR)),
            _ => {
                self.entries.remove(path);
                Ok(())
            }
        }
    }

    /// See [`stowage_mount::Mounter::list_dir`].
    pub fn list_dir(&self, path: &Path) -> Result<Option<Vec<DirEntry>>> {
        match self.entries.get(path) {
            None => return Ok(None),
            Some(Entry::File(_)) => return Err(access("list", path, ENOTDIR)),
            Some(Entry::Directory) => {}
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
        let size = match entry {
            Entry::Directory => 0,
            Entry::File(contents) => contents.len() as u64,
        };
        let device = self.mounts.iter().rev().find(|mount| path.starts_with(&mount.target));
        let device = device.map_or(1, |mount| u64::from(mount.device.minor));
        // Paths never move here, so a digest of the path is as good as an inode.
        let inode = u64::from(crc32fast::hash(path.as_os_str().as_encoded_bytes()));
        Some(FileInfo { kind: kind(entry), size, allocated: size, id: FileId { device, inode } })
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.entries.get(path) == Some(&Entry::Directory)
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
    match entry {
        Entry::Directory => FileKind::Directory,
        Entry::File(_) => FileKind::File,
    }
}

fn os(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn access(action: &'static str, path: &Path, number: i32) -> Error {
    Error::AccessFile { action, path: path.to_owned(), source: os(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> &Path {
        Path::new(text)
    }

    fn staged() -> Tree {
        let mut tree = Tree::default();
        tree.create_dir(path("/root/stage/globalmount")).unwrap();
        tree.create_dir(path("/root/pod/mount")).unwrap();
        tree.mount("vol-1", path("/root/stage/globalmount"), "test", &MountOptions::default()).unwrap();
        tree
    }

    #[test]
    fn a_bind_mount_shows_the_device_of_its_source() {
        let mut tree = staged();
        tree.bind(path("/root/stage/globalmount"), path("/root/pod/mount"), Access::ReadOnly).unwrap();
        let mounts = tree.mounts();
        let (staged, published) =
            (mounts.at(path("/root/stage/globalmount")).unwrap(), mounts.at(path("/root/pod/mount")).unwrap());
        assert_eq!((published.device, published.source.as_str()), (staged.device, "vol-1"));
        assert!(published.is_read_only());
    }

    #[test]
    fn a_directory_that_is_or_holds_a_mount_or_a_file_is_not_removed() {
        let mut tree = staged();
        for dir in ["/root/stage/globalmount", "/root/stage"] {
            assert!(tree.remove_dir(path(dir)).unwrap_err().is_busy(), "{dir}");
        }
        tree.unmount(path("/root/stage/globalmount")).unwrap();
        tree.remove_dir(path("/root/stage/globalmount")).unwrap();
        tree.write_file(path("/root/stage/vol_data.json"), b"{}").unwrap();
        assert_eq!(tree.remove_dir(path("/root/stage")).unwrap_err().os_error(), Some(ENOTEMPTY));
        tree.remove_file(path("/root/stage/vol_data.json")).unwrap();
        tree.remove_dir(path("/root/stage")).unwrap();
        assert_eq!(tree.stat(path("/root/stage")), None);
    }

    #[test]
    fn what_is_not_there_cannot_be_used_but_can_be_undone() {
        let mut tree = Tree::default();
        assert!(tree.mount("vol-1", path("/a"), "test", &MountOptions::default()).unwrap_err().is_missing());
        assert!(tree.write_file(path("/a/b"), b"").unwrap_err().is_missing());
        tree.unmount(path("/a")).unwrap();
        tree.remove_dir(path("/a")).unwrap();
        tree.remove_file(path("/a")).unwrap();
        assert_eq!(tree.list_dir(path("/a")).unwrap(), None);
        assert_eq!(tree.resolve(path("/a/b")), None);
    }
}
