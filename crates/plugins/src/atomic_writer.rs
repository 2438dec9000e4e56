//! Files that change all at once: the contents of configMap, secret, downwardAPI and projected volumes.
//!
//! A volume's files are in a directory with a name of its own, `..<time>.<number>`. The link `..data` points to it, and each
//! name that a pod sees is a link into `..data`. New files are written into a new directory, and one rename of
//! `..data` shows all of them. An interrupted write leaves the old or the new files, and the next one mends the rest.

mod paths;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use jiff::Timestamp;
use stowage_mount::{ChangePolicy, DirEntry, FileKind, Folder, Mounter, OwnershipWalk};
use tokio::sync::oneshot;

use paths::{Clean, clean};

const DATA: &str = "..data";
/// The new `..data` before it is renamed.
const DATA_WAITING: &str = "..data_tmp";
/// A new link to a file before it replaces another of its name.
const LINK_WAITING: &str = "..link_tmp";

/// The contents of one file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileProjection {
    /// What is in it.
    pub data: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Whose it is; root's if not given.
    pub uid: Option<u32>,
}

impl fmt::Debug for FileProjection {
    /// What is in it may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, mode {:o}, owner {:?}", self.data.len(), self.mode, self.uid)
    }
}

/// All files of a volume by their paths in it.
pub type Payload = BTreeMap<String, FileProjection>;

/// The group that a volume's files go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsGroup {
    /// Its number.
    pub gid: u32,
    /// Whether it needs to read only.
    pub read_only: bool,
}

/// What a volume is to hold.
#[derive(Debug, Clone)]
pub struct Update {
    /// The files.
    pub payload: Payload,
    /// The name of a new directory, from [`directory_name`].
    pub directory: String,
    /// Who they go to, before they are seen.
    pub group: Option<FsGroup>,
}

/// What a write has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The files were there already; links that were missing are there again.
    Unchanged,
    /// All files are new.
    Switched,
}

/// Why a volume's files could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path is not one that a file of a volume may have.
    #[error("path {path:?} is refused: {why}")]
    Path { path: String, why: &'static str },
    /// Two paths cannot both be files.
    #[error("paths {one:?} and {other:?} cannot both be files of one volume; give one of them another path")]
    Clash { one: String, other: String },
    /// Somebody else has put something into the volume.
    #[error("{name:?} in the volume is no link to its data, but somebody else's; remove it")]
    InTheWay { name: String },
    /// The machine refused.
    #[error("cannot write the volume's files: {source}")]
    Write { source: stowage_mount::Error },
    /// The write did not come to its end.
    #[error("the write of the volume's files was not finished; repeat it")]
    Finish,
}

fn failed(source: stowage_mount::Error) -> Error {
    Error::Write { source }
}

/// The name of a directory for files that are written now; `random` tells it from another of the same second.
pub fn directory_name(now: Timestamp, random: u32) -> String {
    format!("{}.{random}", now.strftime("..%Y_%m_%d_%H_%M_%S"))
}

/// Lets a volume's directory, which exists, hold exactly these files.
pub async fn write(host: &dyn Mounter, directory: &Path, update: Update) -> Result<Written, Error> {
    let (answer, answered) = oneshot::channel();
    let work = move |folder: &dyn Folder| _ = answer.send(write_in(folder, &update));
    host.in_folder(directory, Box::new(work)).await.map_err(failed)?;
    answered.await.unwrap_or(Err(Error::Finish))
}

/// The same in a directory that is held; blocks.
pub fn write_in(folder: &dyn Folder, update: &Update) -> Result<Written, Error> {
    let clean = clean(&update.payload)?;
    let entries = folder.list("").map_err(failed)?.unwrap_or_default();
    let writer = Writer { folder, entries };
    let current = writer.current()?;
    let (shown, written) = match current {
        Some(current) if writer.holds(&current, &clean)? => (current, Written::Unchanged),
        current => (writer.switch(update, &clean, current.as_deref())?, Written::Switched),
    };
    writer.link(&clean)?;
    writer.unlink(&clean)?;
    writer.remove_others(&shown)?;
    Ok(written)
}

struct Writer<'a> {
    folder: &'a dyn Folder,
    /// What the volume's directory held before this write.
    entries: Vec<DirEntry>,
}

impl Writer<'_> {
    fn kind(&self, name: &str) -> Option<FileKind> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| entry.kind)
    }

    /// The directory that is shown. A link that leads anywhere else is as good as none.
    fn current(&self) -> Result<Option<String>, Error> {
        let to = self.folder.read_link(DATA).map_err(failed)?;
        let name = to.as_deref().and_then(Path::to_str).filter(|name| is_directory_name(name));
        Ok(name.filter(|name| self.kind(name) == Some(FileKind::Directory)).map(str::to_owned))
    }

    /// Whether a directory holds exactly these files, whatever their modes and owners.
    fn holds(&self, directory: &str, clean: &Clean<'_>) -> Result<bool, Error> {
        let mut found = BTreeSet::new();
        self.files(directory, "", &mut found)?;
        if !found.iter().eq(clean.files.keys()) {
            return Ok(false);
        }
        for (path, file) in &clean.files {
            if self.folder.read(&format!("{directory}/{path}")).map_err(failed)?.as_deref() != Some(&file.data) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn files(&self, directory: &str, below: &str, found: &mut BTreeSet<String>) -> Result<(), Error> {
        let inner = format!("{directory}/{below}");
        for entry in self.folder.list(inner.trim_end_matches('/')).map_err(failed)?.unwrap_or_default() {
            let name = entry.name.to_string_lossy();
            let path = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
            match entry.kind {
                FileKind::Directory => self.files(directory, &path, found)?,
                _ => _ = found.insert(path),
            }
        }
        Ok(())
    }

    /// Writes all files anew and shows them; returns the directory they are in.
    fn switch(&self, update: &Update, clean: &Clean<'_>, current: Option<&str>) -> Result<String, Error> {
        let mut name = update.directory.clone();
        if current == Some(&name) {
            name.push('0');
        }
        if self.kind(&name).is_some() {
            self.remove(&name)?;
        }
        self.folder.make_dir(&name, 0o755).map_err(failed)?;
        for directory in &clean.directories {
            self.folder.make_dir(&format!("{name}/{directory}"), 0o755).map_err(failed)?;
        }
        for (path, file) in &clean.files {
            self.folder.write_new(&format!("{name}/{path}"), &file.data, file.mode, file.uid).map_err(failed)?;
        }
        if let Some(FsGroup { gid, read_only }) = update.group {
            let walk = OwnershipWalk { root: name.clone().into(), gid, read_only, policy: ChangePolicy::Always };
            self.folder.own(&walk).map_err(failed)?;
        }
        if self.kind(DATA_WAITING).is_some() {
            self.remove(DATA_WAITING)?;
        }
        if self.kind(DATA).is_some_and(|kind| kind == FileKind::Directory) {
            self.remove(DATA)?;
        }
        self.folder.symlink(&name, DATA_WAITING, None).map_err(failed)?;
        self.folder.rename(DATA_WAITING, DATA).map_err(failed)?;
        Ok(name)
    }

    /// Makes the names that pods see.
    fn link(&self, clean: &Clean<'_>) -> Result<(), Error> {
        for (name, uid) in &clean.names {
            let to = format!("{DATA}/{name}");
            match self.kind(name) {
                None => self.folder.symlink(&to, name, *uid).map_err(failed)?,
                Some(FileKind::Link) if self.is_link_to(name, &to)? => {}
                Some(FileKind::Link) => {
                    self.folder.remove_file(LINK_WAITING).map_err(failed)?;
                    self.folder.symlink(&to, LINK_WAITING, *uid).map_err(failed)?;
                    self.folder.rename(LINK_WAITING, name).map_err(failed)?;
                }
                Some(_) => return Err(Error::InTheWay { name: (*name).to_owned() }),
            }
        }
        Ok(())
    }

    /// Removes the names of files that there are no more.
    fn unlink(&self, clean: &Clean<'_>) -> Result<(), Error> {
        for entry in self.entries.iter().filter(|entry| entry.kind == FileKind::Link) {
            let Some(name) = entry.name.to_str().filter(|name| !name.starts_with("..")) else { continue };
            if !clean.names.contains_key(name) && self.is_link_to(name, &format!("{DATA}/{name}"))? {
                self.folder.remove_file(name).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn is_link_to(&self, name: &str, to: &str) -> Result<bool, Error> {
        Ok(self.folder.read_link(name).map_err(failed)?.as_deref() == Some(Path::new(to)))
    }

    /// Removes what this write or an interrupted one has no more use for.
    fn remove_others(&self, shown: &str) -> Result<(), Error> {
        for entry in &self.entries {
            let Some(name) = entry.name.to_str().filter(|name| *name != shown) else { continue };
            let waits = name == DATA_WAITING || name == LINK_WAITING;
            if waits || (is_directory_name(name) && entry.kind == FileKind::Directory) {
                self.remove(name)?;
            }
        }
        Ok(())
    }

    /// Removes a file, link or directory with all that is in it.
    fn remove(&self, name: &str) -> Result<(), Error> {
        let Some(entries) = self.folder.list(name).map_err(failed)? else {
            return self.folder.remove_file(name).map_err(failed);
        };
        for entry in entries {
            self.remove(&format!("{name}/{}", entry.name.to_string_lossy()))?;
        }
        self.folder.remove_dir(name).map_err(failed)
    }
}

/// Whether this may be a directory of files that was once written here.
fn is_directory_name(name: &str) -> bool {
    name.len() > 2
        && name.starts_with("..")
        && !name.contains('/')
        && ![DATA, DATA_WAITING, LINK_WAITING].contains(&name)
}
