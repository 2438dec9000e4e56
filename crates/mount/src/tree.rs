use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::files::{failed, parent, resolve, sync_dir};
use crate::{Error, MountTable, Result};

pub(crate) fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed("make directory", path)(error)),
        Err(_) if !fs::symlink_metadata(path).is_ok_and(|about| about.is_dir()) => {
            return Err(failed("make directory", path)(ErrorKind::NotADirectory.into()));
        }
        // Not by mkdir's own mode, which the umask cuts.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(failed("set the mode of", path))?,
        Err(_) => {}
    }
    sync_dir(parent(path))
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    if let Some(resolved) = resolve(path)?
        && let Some(mount) = MountTable::read()?.under(&resolved).next()
    {
        return Err(Error::RemoveMounted { path: path.into(), mounted: mount.target.clone() });
    }
    // Removes a link itself, and works on open directories, so that nobody can swap one for a link on the way.
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove directory", path)(error)),
        Ok(()) => sync_dir(parent(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_with_all_that_is_in_it_but_not_what_its_links_point_to() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, victim) = (dir.path().join("tree"), dir.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), b"precious").unwrap();
        make(&tree).unwrap();
        make(&tree).unwrap();
        assert_eq!(fs::metadata(&tree).unwrap().permissions().mode() & 0o777, 0o755);
        fs::create_dir_all(tree.join("a/b")).unwrap();
        std::os::unix::fs::symlink(&victim, tree.join("a/link")).unwrap();
        remove(&tree).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.try_exists().unwrap() && victim.join("file").try_exists().unwrap());
    }

    #[test]
    fn a_link_is_not_taken_for_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(make(&link).is_err());
    }
}
