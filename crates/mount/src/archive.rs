//! A directory as a tar archive, and back. An archive lies in a share and is trusted no more than anything else there: nothing
//! in it leads out of the directory it is unpacked to, and no devices come of it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{linkat, mkfifoat, symlinkat};

use crate::attributes::Attributes;
use crate::copy_tree::{clear, create, make_directory};
use crate::files::failed;
use crate::program::without_open_files;
use crate::share::{Share, beneath};
use crate::share_walk::{Step, Walk, open_directory};
use crate::tar::{BLOCK, Entries, Entry, Kind, os, padding, write_end, write_header};
use crate::{Error, Result};

/// Read and written at once.
pub(crate) const CHUNK: usize = 1 << 18;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Who packs an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packer {
    /// This process.
    Own,
    /// The program `tar`, with `gzip` where it is to be compressed.
    Program,
}

/// Packs a directory of one share into a new file of another, which is on its server when this returns.
pub(crate) fn pack(
    from: &Share,
    source: &Path,
    to: &Share,
    archive: &Path,
    compress: bool,
    packer: Packer,
) -> Result<()> {
    let root = from.open_dir(source).map_err(failed("open", &from.path(source)))?;
    let open = || -> io::Result<File> {
        let (directory, name) = to.enter(archive)?;
        clear(directory.as_fd(), name)?;
        create(directory.as_fd(), name)
    };
    let file = open().map_err(failed("make", &to.path(archive)))?;
    match packer {
        Packer::Program => pack_with_program(root, &file, compress, &from.path(source))?,
        Packer::Own => pack_here(root, &file, compress).map_err(failed("pack", &from.path(source)))?,
    }
    file.sync_all().map_err(failed("sync", &to.path(archive)))
}

fn pack_here(root: OwnedFd, file: &File, compress: bool) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(CHUNK, file);
    if compress {
        let mut packed = GzEncoder::new(&mut out, Compression::default());
        write_tree(root, &mut packed)?;
        packed.finish()?;
    } else {
        write_tree(root, &mut out)?;
    }
    out.flush()
}

fn write_tree(root: OwnedFd, out: &mut impl Write) -> io::Result<()> {
    let about = fstat(&root)?;
    write_header(out, &entry_of(Path::new("."), &about, Kind::Directory))?;
    let mut walk = Walk::new(root)?;
    while let Some(step) = walk.next()? {
        match step {
            // The way to the open directory is that to its own name.
            Step::Enter { about, .. } => {
                let mut way = walk.way("".as_ref()).into_os_string().into_encoded_bytes();
                if way.last() != Some(&b'/') {
                    way.push(b'/');
                }
                write_header(out, &Entry { name: way, ..entry_of(Path::new(""), &about, Kind::Directory) })?;
            }
            Step::Leave { .. } => {}
            Step::File { name, about } => write_file(&walk, &walk.way(&name), &about, out)?,
        }
    }
    write_end(out)
}

fn write_file(walk: &Walk, way: &Path, about: &FileStat, out: &mut impl Write) -> io::Result<()> {
    let name = way.file_name().unwrap_or_default();
    match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => {
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let file = match openat(walk.directory(), name, flags, Mode::empty()) {
                // Gone since it was seen.
                Err(nix::errno::Errno::ENOENT) => return Ok(()),
                other => File::from(other?),
            };
            let about = fstat(&file)?;
            let entry = entry_of(way, &about, Kind::File);
            write_header(out, &entry)?;
            // It may be written meanwhile: what is promised is filled up with zeros, and no more is taken.
            let copied = io::copy(&mut file.take(entry.size), out)?;
            io::copy(&mut io::repeat(0).take(entry.size - copied), out)?;
            out.write_all(&[0; BLOCK][..padding(entry.size)])
        }
        libc::S_IFLNK => {
            let leads = readlinkat(walk.directory(), name)?.into_encoded_bytes();
            write_header(out, &Entry { leads, ..entry_of(way, about, Kind::Link) })
        }
        libc::S_IFIFO => write_header(out, &entry_of(way, about, Kind::Pipe)),
        // A socket is nothing without its process, and a device would be refused when it is unpacked.
        _ => Ok(()),
    }
}

fn entry_of(way: &Path, about: &FileStat, kind: Kind) -> Entry {
    let size = if kind == Kind::File { u64::try_from(about.st_size).unwrap_or(0) } else { 0 };
    let name = way.as_os_str().as_bytes().to_vec();
    Entry { name, leads: Vec::new(), kind, size, attributes: Attributes::from(about) }
}

/// It reads where it is started and writes to what it is given: it is told no path that could lead elsewhere. Files with
/// several names are packed as often, since the original makes empty files of links between them.
fn pack_with_program(root: OwnedFd, file: &File, compress: bool, path: &Path) -> Result<()> {
    let tool = "tar";
    let process = std::process::id();
    let held = |file: i32| format!("/proc/{process}/fd/{file}");
    let (here, archive) = (held(root.as_raw_fd()), held(file.as_raw_fd()));
    let run = || -> io::Result<Output> {
        let mut command = Command::new(tool);
        command.arg(if compress { "-czf" } else { "-cf" }).args(["-", "--hard-dereference", "."]).current_dir(here);
        let archive = OpenOptions::new().write(true).open(archive)?;
        command.stdin(Stdio::null()).stdout(archive).stderr(Stdio::piped()).output()
    };
    let output = without_open_files(run).map_err(|source| Error::RunTool { tool, device: path.into(), source })?;
    match output.status.code() {
        // 1: something changed while it was read.
        Some(0 | 1) => Ok(()),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::FinishTool { tool, device: path.into(), status: output.status, output: said })
        }
    }
}

/// Whether an archive is there to its end. One that ends too early was never finished; one that cannot be read is an error,
/// because nobody knows whose it is.
pub(crate) fn is_whole(share: &Share, archive: &Path) -> Result<bool> {
    let check = || -> io::Result<()> {
        let mut entries = Entries::new(decoded(share.open_file(archive)?)?);
        while entries.next()?.is_some() {}
        Ok(())
    };
    match check() {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true).map_err(failed("read", &share.path(archive))),
    }
}

/// By its first bytes and not by its name.
fn decoded(file: File) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::with_capacity(CHUNK, file);
    Ok(match io::BufRead::fill_buf(&mut file)?.starts_with(&GZIP) {
        true => Box::new(GzDecoder::new(file)),
        false => Box::new(file),
    })
}

/// Unpacks an archive into a directory, over what is there.
pub(crate) fn unpack(from: &Share, archive: &Path, to: &Share, target: &Path) -> Result<()> {
    let unpack = || -> io::Result<()> {
        let root = to.open_dir(target)?;
        let mut entries = Entries::new(decoded(from.open_file(archive)?)?);
        let mut directories = Vec::new();
        while let Some(entry) = entries.next()? {
            let way = way_of(&entry.name)?;
            match entry.kind {
                Kind::Other => continue,
                Kind::Directory => {
                    make_way(&root, &way)?;
                    directories.push((way, entry.attributes));
                }
                _ => unpack_file(&root, &way, &entry, &mut entries)?,
            }
        }
        // From the inside out: what is made in a directory changes its time, and its mode may forbid it.
        directories.sort_by_key(|(way, _)| std::cmp::Reverse(way.components().count()));
        for (way, attributes) in directories {
            attributes.give(open_way(&root, &way)?)?;
        }
        Ok(())
    };
    unpack().map_err(failed("unpack an archive to", &to.path(target)))
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The way that a name in an archive stands for; one that would lead elsewhere ends it.
pub(crate) fn way_of(name: &[u8]) -> io::Result<PathBuf> {
    let mut way = PathBuf::new();
    for part in Path::new(&os(name)).components() {
        match part {
            Component::Normal(part) => way.push(part),
            Component::CurDir => {}
            _ => {
                let message = format!("the archive has {:?}, which leads out of it", String::from_utf8_lossy(name));
                return Err(io::Error::other(message));
            }
        }
    }
    Ok(way)
}

/// The directory at the end of a way, which may be longer than the kernel takes at once.
pub(crate) fn open_way(root: &OwnedFd, way: &Path) -> io::Result<OwnedFd> {
    match beneath(root.as_fd(), way, DIRECTORY) {
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => {
            let start = beneath(root.as_fd(), Path::new(""), DIRECTORY)?;
            way.iter().try_fold(start, |directory, part| open_directory(directory.as_fd(), part))
        }
        other => other,
    }
}

/// The directory at the end of a way; what is missing of it is made, and what is no directory makes room.
fn make_way(root: &OwnedFd, way: &Path) -> io::Result<OwnedFd> {
    match beneath(root.as_fd(), way, DIRECTORY) {
        Ok(directory) => Ok(directory),
        Err(_) => {
            let mut directory = beneath(root.as_fd(), Path::new(""), DIRECTORY)?;
            for part in way {
                make_directory(directory.as_fd(), part)?;
                directory = open_directory(directory.as_fd(), part)?;
            }
            Ok(directory)
        }
    }
}

fn unpack_file(root: &OwnedFd, way: &Path, entry: &Entry, contents: &mut impl Read) -> io::Result<()> {
    let name = way.file_name().ok_or_else(|| io::Error::other("the archive has a file without a name"))?;
    let directory = make_way(root, way.parent().unwrap_or_else(|| Path::new("")))?;
    let directory = directory.as_fd();
    if entry.kind == Kind::HardLink {
        let other = way_of(&entry.leads)?;
        if other == way {
            return Ok(());
        }
        clear(directory, name)?;
        let parent = open_way(root, other.parent().unwrap_or_else(|| Path::new("")))?;
        let first = other.file_name().ok_or_else(|| io::Error::other("the archive has a link to nothing"))?;
        return Ok(linkat(parent, first, directory, name, AtFlags::empty())?);
    }
    clear(directory, name)?;
    place(directory, name, entry, contents)
}

/// Makes what an entry is where nothing has its name: a link, a pipe or a file.
pub(crate) fn place(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    entry: &Entry,
    contents: &mut (impl Read + ?Sized),
) -> io::Result<()> {
    match entry.kind {
        Kind::Link => {
            symlinkat(os(&entry.leads).as_os_str(), directory, name)?;
            entry.attributes.give_name(directory, name)
        }
        Kind::Pipe => {
            mkfifoat(directory, name, Mode::from_bits_truncate(entry.attributes.mode))?;
            entry.attributes.give_name(directory, name)
        }
        _ => {
            let file = create(directory, name)?;
            let mut out = BufWriter::with_capacity(CHUNK, &file);
            if io::copy(contents, &mut out)? != entry.size {
                return Err(io::Error::new(ErrorKind::InvalidData, "the archive ends within a file"));
            }
            out.flush()?;
            drop(out);
            entry.attributes.give(&file)
        }
    }
}

#[cfg(test)]
#[path = "archive/tests.rs"]
mod tests;
