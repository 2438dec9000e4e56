//! Where the command sees its volumes: paths of this machine, made where they are missing and removed again.
//!
//! Other commands may run at the same time and have their volumes at the same paths. To remove a directory where one has
//! something mounted would take that mount away, in whatever namespace it is; so whoever uses a path holds a lock on it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use stowage_mount::Shown;
use volume_manager::api::ContainerMount;

/// How often a path is made again that another command removes at that moment.
const ATTEMPTS: usize = 100;

/// The places of a command's volumes.
#[derive(Debug, Default)]
pub struct Targets {
    shown: Vec<Shown>,
    /// What was not there before, outermost first.
    made: Vec<PathBuf>,
    used: Vec<Flock<File>>,
}

impl Targets {
    /// Makes what is missing. What is inside another volume is made there, and stays, as it does in a cluster.
    pub fn make(mounts: &[ContainerMount]) -> anyhow::Result<Self> {
        let mut mounts: Vec<&ContainerMount> = mounts.iter().collect();
        // One that is inside another comes later.
        mounts.sort_by_key(|mount| depth(Path::new(&mount.path)));
        let mut targets = Self::default();
        let mut known: Vec<(&Path, PathBuf)> = Vec::new();
        for mount in mounts {
            let path = Path::new(&mount.path);
            let outer = known.iter().rev().find_map(|(outer, real)| Some(real.join(path.strip_prefix(outer).ok()?)));
            let at = match outer {
                Some(at) => at,
                None => match targets.take(mount) {
                    Ok(at) => at,
                    Err(error) => {
                        targets.remove();
                        return Err(error).with_context(|| format!("cannot show a volume at {}", path.display()));
                    }
                },
            };
            known.push((path, at.clone()));
            targets.shown.push(Shown { from: mount.host_path.clone(), at, read_only: mount.read_only });
        }
        // Links may have led one into another.
        targets.shown.sort_by_key(|shown| depth(&shown.at));
        Ok(targets)
    }

    /// What is to be shown where, in that order.
    pub fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Makes a path that is missing, keeps it from being removed, and says where it leads.
    fn take(&mut self, mount: &ContainerMount) -> anyhow::Result<PathBuf> {
        let path = Path::new(&mount.path);
        let is_directory = fs::metadata(&mount.host_path).context("cannot look at the volume")?.is_dir();
        for _ in 0..ATTEMPTS {
            let taken = self.make_missing(path, is_directory).and_then(|()| in_use(path));
            match taken {
                Ok(Some(used)) => self.used.extend(used.0),
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                // Somebody has removed it, or its parent, meanwhile.
                Ok(None) | Err(_) => continue,
            }
            return Ok(path.canonicalize()?);
        }
        Err(anyhow::anyhow!("others remove it all the time"))
    }

    fn make_missing(&mut self, path: &Path, is_directory: bool) -> io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|path| matches!(path.try_exists(), Ok(false))).collect();
        for one in missing.into_iter().rev() {
            let made = match one == path && !is_directory {
                true => File::create_new(one).map(drop),
                false => fs::create_dir(one),
            };
            match made {
                Ok(()) => self.made.push(one.to_owned()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes what was made, unless somebody has put something there, or has something mounted there.
    pub fn remove(self) {
        drop(self.used);
        for path in self.made.iter().rev() {
            if let Err(error) = remove(path) {
                tracing::debug!(path = %path.display(), %error, "it stays");
            }
        }
    }
}

fn depth(path: &Path) -> usize {
    path.components().count()
}

/// A lock on a path; on none if it is nothing that a command could have made.
struct Used(Option<Flock<File>>);

/// Keeps a path from being removed by other commands; `None` if one has done so.
fn in_use(path: &Path) -> io::Result<Option<Used>> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_dir() && !kind.is_file() {
        return Ok(Some(Used(None)));
    }
    let file = open(path)?;
    let locked = Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| io::Error::from(errno))?;
    Ok(is_there(path, &locked)?.then_some(Used(Some(locked))))
}

/// Whether a path leads to this file still.
fn is_there(path: &Path, file: &File) -> io::Result<bool> {
    let (held, found) = (file.metadata()?, fs::metadata(path)?);
    Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
}

fn open(path: &Path) -> io::Result<File> {
    // A pipe that somebody puts there must not keep us.
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn remove(path: &Path) -> io::Result<()> {
    let locked =
        Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| io::Error::from(errno))?;
    if !is_there(path, &locked)? {
        return Ok(());
    }
    let found = locked.metadata()?;
    match found.is_dir() {
        true => fs::remove_dir(path),
        false if found.len() == 0 => fs::remove_file(path),
        false => Err(ErrorKind::DirectoryNotEmpty.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &Path, host_path: &Path) -> ContainerMount {
        ContainerMount {
            container: "c".to_owned(),
            path: path.to_str().unwrap().to_owned(),
            host_path: host_path.to_owned(),
            read_only: false,
            is_device: false,
        }
    }

    fn world() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir(root.join("volume")).unwrap();
        fs::write(root.join("file"), "contents").unwrap();
        (dir, root)
    }

    #[test]
    fn what_is_missing_is_made_of_the_volumes_kind_and_removed_again() {
        let (_dir, root) = world();
        let mounts = [mount(&root.join("a/b"), &root.join("volume")), mount(&root.join("a/f"), &root.join("file"))];
        let targets = Targets::make(&mounts).unwrap();
        assert!(root.join("a/b").is_dir() && root.join("a/f").is_file());
        targets.remove();
        assert!(!root.join("a").try_exists().unwrap());
    }

    #[test]
    fn one_inside_another_is_shown_after_it_and_made_by_nobody_here() {
        let (_dir, root) = world();
        std::os::unix::fs::symlink(&root, root.join("link")).unwrap();
        let volume = root.join("volume");
        let mounts = ["link/a/b/c", "link/a"].map(|path| mount(&root.join(path), &volume));
        let targets = Targets::make(&mounts).unwrap();
        let at: Vec<&Path> = targets.shown().iter().map(|shown| shown.at.as_path()).collect();
        assert_eq!(at, [root.join("a"), root.join("a/b/c")], "links are followed once");
        assert!(!root.join("a/b").try_exists().unwrap());
        targets.remove();
    }

    #[test]
    fn what_another_command_uses_stays() {
        let (_dir, root) = world();
        let path = root.join("a/b");
        let mounts = [mount(&path, &root.join("volume"))];
        let (first, second) = (Targets::make(&mounts).unwrap(), Targets::make(&mounts).unwrap());
        first.remove();
        assert!(path.is_dir(), "removed under a mount of another command");
        second.remove();
        assert!(path.is_dir(), "removed by one that has not made it");
    }

    #[test]
    fn what_somebody_put_there_stays_and_so_does_what_was_there() {
        let (_dir, root) = world();
        fs::create_dir(root.join("old")).unwrap();
        let mounts = ["old", "new"].map(|path| mount(&root.join(path), &root.join("volume")));
        let targets = Targets::make(&mounts).unwrap();
        fs::write(root.join("new/data"), "data").unwrap();
        targets.remove();
        assert_eq!(fs::read_to_string(root.join("new/data")).unwrap(), "data");
        assert!(root.join("old").is_dir());
    }
}
