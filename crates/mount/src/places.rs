//! Directories, files and links with the modes that a kubelet gives them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink as make_link};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::files::{failed, parent, unless_missing, waiting_name};
use crate::{MountTable, Result};

pub(crate) fn create_dir_with(path: &Path, mode: u32) -> Result<()> {
    let make = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o750).create(parent(path))?;
        match fs::create_dir(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // By descriptor, so that a link in its place is refused and not followed.
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        set_mode(&directory, mode)
    };
    make().map_err(failed("make directory", path))
}

pub(crate) fn make_file(path: &Path, mode: u32) -> Result<()> {
    let make = || -> io::Result<()> {
        // O_NONBLOCK: opening a pipe that somebody put here must not hang.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(mode).custom_flags(flags).open(path)?;
        match file.metadata()?.is_file() {
            true => set_mode(&file, mode),
            false => Err(io::Error::new(ErrorKind::InvalidInput, "it is there and not a file")),
        }
    };
    make().map_err(failed("make", path))
}

fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    match file.metadata()?.permissions().mode() & 0o7777 == mode {
        true => Ok(()),
        false => file.set_permissions(Permissions::from_mode(mode)),
    }
}

pub(crate) fn symlink(to: &Path, path: &Path) -> Result<()> {
    let make = || -> io::Result<()> {
        match unless_missing(fs::symlink_metadata(path))? {
            None => match make_link(to, path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                other => return other,
            },
            Some(found) if !found.is_symlink() => {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "something that is no link has its name"));
            }
            Some(_) => {}
        }
        if fs::read_link(path)? == to {
            return Ok(());
        }
        let waiting = waiting_name(path);
        unless_missing(fs::remove_file(&waiting))?;
        make_link(to, &waiting)?;
        fs::rename(&waiting, path)
    };
    make().map_err(failed("link", path))
}

pub(crate) fn read_link(path: &Path) -> Result<Option<PathBuf>> {
    unless_missing(fs::read_link(path)).map_err(failed("read the link", path))
}

pub(crate) fn canonical(path: &Path) -> Result<Option<PathBuf>> {
    unless_missing(path.canonicalize()).map_err(failed("follow", path))
}

/// Whether its file system is mounted and has a policy: without one everybody runs as the kernel does.
pub(crate) fn selinux() -> Result<bool> {
    if !MountTable::read()?.iter().any(|mount| mount.fs_type == "selinuxfs") {
        return Ok(false);
    }
    let label = fs::read("/proc/thread-self/attr/current").unwrap_or_default();
    let label = String::from_utf8_lossy(&label);
    let label = label.trim_end_matches(['\0', '\n']);
    Ok(!label.is_empty() && label != "kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn directories_and_files_have_the_mode_that_was_asked_for_whatever_the_umask_is() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        for wanted in [0o777, 0o1777, 0o750, 0o2770] {
            create_dir_with(&inner, wanted).unwrap();
            assert_eq!(mode(&inner), wanted);
        }
        assert_eq!(mode(&dir.path().join("a")), 0o750);
        let file = dir.path().join("file");
        make_file(&file, 0o640).unwrap();
        fs::write(&file, b"kept").unwrap();
        make_file(&file, 0o750).unwrap();
        assert_eq!((mode(&file), fs::read(&file).unwrap()), (0o750, b"kept".to_vec()));
        assert!(make_file(&inner, 0o640).is_err() && create_dir_with(&file, 0o750).is_err());
        crate::files::write_file(&file, b"record", 0o644).unwrap();
        assert_eq!((mode(&file), fs::read(&file).unwrap()), (0o644, b"record".to_vec()));
    }

    #[test]
    fn links_are_made_replaced_and_read_and_nothing_else_gives_way_to_one() {
        let dir = tempfile::tempdir().unwrap();
        let (link, file) = (dir.path().join("link"), dir.path().join("file"));
        assert_eq!(read_link(&link).unwrap(), None);
        for to in ["/dev/null", "/dev/null", "/dev/zero"] {
            symlink(Path::new(to), &link).unwrap();
            assert_eq!(read_link(&link).unwrap().unwrap(), Path::new(to));
        }
        assert_eq!(canonical(&link).unwrap().unwrap(), Path::new("/dev/zero"));
        fs::write(&file, b"").unwrap();
        assert!(symlink(Path::new("/"), &file).is_err() && read_link(&file).is_err());
        assert!(create_dir_with(&link, 0o777).is_err() && make_file(&link, 0o777).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
