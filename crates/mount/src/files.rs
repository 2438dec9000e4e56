use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};

use crate::{Error, MountTable, Result};

/// The mode of a file that is nobody else's.
const PRIVATE: u32 = 0o600;

/// Largest file `read_file` returns: records are small, and a pool is not trusted to hold only ours.
const MAX_SMALL_FILE: u64 = 1 << 20;

/// The identity of a file on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The device number as stat(2) gives it.
    pub device: u64,
    /// The inode on that device.
    pub inode: u64,
}

/// What kind of file a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, socket or pipe.
    Other,
}

impl From<fs::FileType> for FileKind {
    fn from(kind: fs::FileType) -> Self {
        match kind {
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_symlink() => FileKind::Link,
            _ => FileKind::Other,
        }
    }
}

/// What kind of file a name stands for, with all kinds that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// The end of a connection.
    Socket,
    /// A pipe with a name.
    Pipe,
    /// A device that is read byte by byte.
    CharDevice,
    /// A device that is read block by block.
    BlockDevice,
}

impl From<fs::FileType> for NodeKind {
    fn from(kind: fs::FileType) -> Self {
        match kind {
            kind if kind.is_dir() => NodeKind::Directory,
            kind if kind.is_symlink() => NodeKind::Link,
            kind if kind.is_socket() => NodeKind::Socket,
            kind if kind.is_fifo() => NodeKind::Pipe,
            kind if kind.is_char_device() => NodeKind::CharDevice,
            kind if kind.is_block_device() => NodeKind::BlockDevice,
            _ => NodeKind::File,
        }
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The last component of its path.
    pub name: OsString,
    /// What it is, links not followed.
    pub kind: FileKind,
}

/// What is known about one file without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileInfo {
    /// What it is.
    pub kind: FileKind,
    /// The same, told in full.
    pub node: NodeKind,
    /// Its length in bytes.
    pub size: u64,
    /// The bytes it really occupies: fewer than `size` if it is sparse.
    pub allocated: u64,
    /// Its identity.
    pub id: FileId,
    /// Its permissions, with the three bits before them.
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All bytes of the file system.
    pub total_bytes: u64,
    /// Bytes that hold something.
    pub used_bytes: u64,
    /// Bytes an ordinary user may still write.
    pub available_bytes: u64,
    /// All inodes; 0 if the file system does not count them.
    pub total_inodes: u64,
    /// Inodes that are taken.
    pub used_inodes: u64,
    /// Inodes left.
    pub available_inodes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::AccessFile { action, path: path.into(), source }
}

/// Turns "it is not there" into an answer.
pub(crate) fn unless_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn resolve(path: &Path) -> Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    let parent = unless_missing(parent.canonicalize()).map_err(failed("resolve", path))?;
    Ok(parent.map(|parent| parent.join(name)))
}

pub(crate) fn locate(path: &Path) -> Result<PathBuf> {
    let mut rest = Vec::new();
    let mut existing = path;
    let found = loop {
        let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
            break existing.to_owned();
        };
        rest.push(name);
        existing = parent;
        match existing.canonicalize() {
            Ok(found) if found.is_dir() => break found,
            Ok(_) => return Err(failed("follow", existing)(io::Error::from_raw_os_error(libc::ENOTDIR))),
            // What is missing is gone past; a link that leads nowhere is in the way.
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(existing).is_err() => {}
            Err(error) => return Err(failed("follow", existing)(error)),
        }
    };
    Ok(rest.into_iter().rev().fold(found, |path, name| path.join(name)))
}

pub(crate) fn create_dir(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed("make directory", path))
}

/// rmdir(2) itself refuses a mount point and what holds one, so the table is only read to say which it is.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    let Err(source) = unless_missing(fs::remove_dir(path)) else { return Ok(()) };
    if let Some(resolved) = resolve(path)?
        && let Some(mount) = MountTable::read()?.under(&resolved).next()
    {
        return Err(Error::RemoveMounted { path: path.into(), mounted: mount.target.clone() });
    }
    Err(failed("remove directory", path)(source))
}

pub(crate) fn create_file(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(failed("make", path))?;
    match file.metadata().map_err(failed("make", path))?.is_file() {
        true => Ok(()),
        false => Err(failed("make", path)(io::Error::new(ErrorKind::InvalidInput, "it is there and not a file"))),
    }
}

/// The name under which new contents wait. It is fixed, so that an interrupted write leaves at most one of them,
/// which the next write of the same file replaces: every file here has one writer.
pub(crate) fn waiting_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

fn is_waiting_name(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b".") && bytes.ends_with(b".new")
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

pub(crate) fn write_file(path: &Path, contents: &[u8], mode: u32) -> Result<()> {
    let waiting = waiting_name(path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PRIVATE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&waiting)?;
        if mode != PRIVATE {
            // Not by open's own mode, which the umask cuts.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&waiting, path)
    };
    if let Err(source) = write() {
        // Best effort, so that a full disk gets its space back; the next write replaces it anyway.
        let _ = fs::remove_file(&waiting);
        return Err(failed("write", path)(source));
    }
    sync_dir(parent(path))
}

pub(crate) fn read_file(path: &Path) -> Result<Option<Vec<u8>>> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        // O_NONBLOCK: opening a pipe that somebody put here must not hang.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Some(file) = unless_missing(OpenOptions::new().read(true).custom_flags(flags).open(path))? else {
            return Ok(None);
        };
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let mut contents = Vec::new();
        file.take(MAX_SMALL_FILE + 1).read_to_end(&mut contents)?;
        if contents.len() as u64 > MAX_SMALL_FILE {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
        }
        Ok(Some(contents))
    };
    read().map_err(failed("read", path))
}

pub(crate) fn remove_file(path: &Path) -> Result<()> {
    let mut changed = false;
    for path in [waiting_name(path).as_path(), path] {
        changed |= unless_missing(fs::remove_file(path)).map_err(failed("remove", path))?.is_some();
    }
    if changed { sync_dir(parent(path)) } else { Ok(()) }
}

pub(crate) fn list_dir(path: &Path) -> Result<Option<Vec<DirEntry>>> {
    let list = || -> io::Result<Option<Vec<DirEntry>>> {
        let Some(entries) = unless_missing(fs::read_dir(path))? else { return Ok(None) };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            found.push(DirEntry { name: entry.file_name(), kind: entry.file_type()?.into() });
        }
        found.retain(|entry| !is_waiting_name(&entry.name));
        found.sort();
        Ok(Some(found))
    };
    list().map_err(failed("list", path))
}

pub(crate) fn stat(path: &Path) -> Result<Option<FileInfo>> {
    let about = unless_missing(fs::symlink_metadata(path)).map_err(failed("stat", path))?;
    Ok(about.map(|about| FileInfo {
        kind: about.file_type().into(),
        node: about.file_type().into(),
        size: about.len(),
        // st_blocks counts 512-byte units whatever the file system's block size.
        allocated: about.blocks() * 512,
        id: FileId { device: about.dev(), inode: about.ino() },
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
    }))
}

pub(crate) fn usage(path: &Path) -> Result<Usage> {
    let stats = statvfs(path).map_err(|errno| failed("ask the usage of", path)(errno.into()))?;
    Ok(usage_of(&stats))
}

pub(crate) fn usage_of(stats: &Statvfs) -> Usage {
    // f_frsize is the unit of all block counts; f_bsize is only a hint.
    let unit = stats.fragment_size();
    Usage {
        total_bytes: stats.blocks() * unit,
        used_bytes: stats.blocks().saturating_sub(stats.blocks_free()) * unit,
        available_bytes: stats.blocks_available() * unit,
        total_inodes: stats.files(),
        used_inodes: stats.files().saturating_sub(stats.files_free()),
        available_inodes: stats.files_available(),
        read_only: stats.flags().contains(FsFlags::ST_RDONLY),
    }
}

pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(failed("sync", path))
}

/// The kernel makes a new one for each reader.
pub(crate) fn unique_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_is_read_back_and_leaves_nothing_else_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write_file(&path, b"one", PRIVATE).unwrap();
        write_file(&path, b"two", PRIVATE).unwrap();
        assert_eq!(read_file(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_leftover_of_an_interrupted_write_is_not_listed_and_goes_with_the_next_write_or_removal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        fs::write(waiting_name(&path), b"half").unwrap();
        assert_eq!(list_dir(dir.path()).unwrap().unwrap(), []);
        write_file(&path, b"whole", PRIVATE).unwrap();
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["record.json"]);
        fs::write(waiting_name(&path), b"half").unwrap();
        remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_are_refused_and_their_targets_stay_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("link"));
        fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        std::os::unix::fs::symlink(&victim, waiting_name(&dir.path().join("record"))).unwrap();
        assert_eq!(read_file(&link).unwrap_err().os_error(), Some(libc::ELOOP));
        assert_eq!(write_file(&dir.path().join("record"), b"x", PRIVATE).unwrap_err().os_error(), Some(libc::ELOOP));
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(stat(&link).unwrap().unwrap().kind, FileKind::Link);
    }

    #[test]
    fn what_is_missing_is_an_answer_and_removing_it_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone").join("file");
        assert_eq!(read_file(&gone).unwrap(), None);
        assert_eq!(stat(&gone).unwrap(), None);
        assert_eq!(list_dir(&gone).unwrap(), None);
        assert_eq!(resolve(&gone).unwrap(), None);
        remove_file(&gone).unwrap();
        remove_dir(&gone).unwrap();
    }

    #[test]
    fn a_directory_that_holds_something_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        assert_eq!(remove_dir(dir.path()).unwrap_err().os_error(), Some(libc::ENOTEMPTY));
    }

    #[test]
    fn links_are_followed_as_far_as_a_path_exists_and_its_last_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("inner")).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, real.join(name)).unwrap();
        link("/etc", "out");
        link("/nowhere/at/all", "lost");
        link("round", "round");
        fs::write(real.join("file"), b"").unwrap();
        for (given, found) in [
            ("inner/a", Some(real.join("inner/a"))),
            ("inner/a/b/c", Some(real.join("inner/a/b/c"))),
            ("out", Some(real.join("out"))),
            ("out/a/b", Some(PathBuf::from("/etc/a/b"))),
            ("inner/../out/a", Some(PathBuf::from("/etc/a"))),
            ("lost/a", None),
            ("round/a", None),
            ("file/a", None),
            ("file/a/b", None),
        ] {
            assert_eq!(locate(&dir.path().join(given)).ok(), found, "{given}");
        }
        assert_eq!(locate(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(locate(Path::new("/never/there")).unwrap(), Path::new("/never/there"));
    }

    #[test]
    fn a_path_is_resolved_up_to_its_last_component() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, dir.path().join("alias")).unwrap();
        assert_eq!(resolve(&dir.path().join("alias/new")).unwrap(), Some(real.join("new")));
        assert!(resolve(&dir.path().join("alias")).unwrap().unwrap().ends_with("alias"));
    }
}
