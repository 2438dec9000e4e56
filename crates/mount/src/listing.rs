//! Reads a directory in batches, each of which can be gone on with after the directory was closed meanwhile.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::libc;

/// What one call may fill: some hundred names, however large the directory is.
const BATCH: usize = 32 << 10;

/// What the listing says of an entry, without asking for the entry itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    Directory,
    Other,
    /// Not every file system keeps kinds in its directories.
    Unknown,
}

/// Some names, and the offset at which the next ones begin.
type Names = (Vec<(OsString, Hint)>, i64);

/// All names in an open directory that is known to be small.
pub(crate) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let (mut batch, mut names) = (Batch::new(), Vec::new());
    while let Some((read, _)) = batch.read(directory)? {
        names.extend(read.into_iter().map(|(name, _)| name));
    }
    Ok(names)
}

/// The place to which one batch is written; used again for each.
pub(crate) struct Batch(Vec<u64>);

impl Batch {
    pub(crate) fn new() -> Self {
        // Of words, because the kernel's records are aligned to them.
        Batch(vec![0; BATCH / size_of::<u64>()])
    }

    /// The next names of an open directory, and where the following ones begin; `None` at its end.
    pub(crate) fn read(&mut self, directory: BorrowedFd<'_>) -> io::Result<Option<Names>> {
        let buffer = self.0.as_mut_ptr();
        // SAFETY: the kernel writes at most `BATCH` bytes, which is what the buffer holds.
        let length = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer, BATCH) };
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        if length == 0 {
            return Ok(None);
        }
        // SAFETY: the buffer holds `BATCH` bytes, all written before, of which the kernel has filled `length`.
        let filled = unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>(), length as usize) };
        Ok(Some(parse(filled)))
    }
}

/// Records of the kernel's `struct linux_dirent64`: inode, offset of the next, own length, kind, name.
fn parse(mut rest: &[u8]) -> Names {
    const HEAD: usize = 19;
    let (mut names, mut next) = (Vec::new(), 0);
    while rest.len() > HEAD {
        let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
        let Some(record) = rest.get(..length).filter(|record| record.len() > HEAD) else { break };
        next = record[8..16].try_into().map(i64::from_ne_bytes).unwrap_or_default();
        let hint = match record[18] {
            libc::DT_DIR => Hint::Directory,
            libc::DT_UNKNOWN => Hint::Unknown,
            _ => Hint::Other,
        };
        if let Ok(name) = CStr::from_bytes_until_nul(&record[HEAD..])
            && !matches!(name.to_bytes(), b"." | b"..")
        {
            names.push((OsStr::from_bytes(name.to_bytes()).to_owned(), hint));
        }
        rest = &rest[length..];
    }
    (names, next)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_directory_larger_than_a_batch_is_read_whole_and_each_name_once() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3000 {
            File::create(dir.path().join(format!("a name that is long enough {number}"))).unwrap();
        }
        fs::create_dir(dir.path().join("inner")).unwrap();
        let (open, mut batch) = (File::open(dir.path()).unwrap(), Batch::new());
        let (mut names, mut batches) = (Vec::new(), 0);
        while let Some((read, _)) = batch.read(open.as_fd()).unwrap() {
            batches += 1;
            names.extend(read);
        }
        assert!(batches > 1);
        assert_eq!(names.iter().filter(|(_, hint)| *hint != Hint::Other).count(), 1);
        names.sort_by(|one, other| one.0.cmp(&other.0));
        names.dedup();
        assert_eq!(names.len(), 3001);
    }

    #[test]
    fn a_record_that_is_cut_off_ends_the_listing() {
        assert_eq!(parse(&[0; 19]).0, []);
        assert_eq!(parse(&[255; 64]).0, []);
    }
}
