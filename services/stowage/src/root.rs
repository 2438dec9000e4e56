//! The directory a stack lives in, and the lock that keeps a second stack out of it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::fcntl::{Flock, FlockArg};

/// Longest path of a unix socket, less the longest file name we put below the root.
const MAX_ROOT: usize = 50;

/// A root directory that is ours until this is dropped.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Root {
    /// Takes the directory, creating it if need be; a root that another stack uses is refused.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("cannot create --root {}", path.display()))?;
        // Mount tables spell paths without links.
        let path = path.canonicalize().with_context(|| format!("cannot resolve --root {}", path.display()))?;
        if path.as_os_str().len() > MAX_ROOT {
            bail!(
                "--root {} is longer than {MAX_ROOT} bytes, too long for the sockets below it; choose a shorter path",
                path.display()
            );
        }
        // Volumes hold other people's data.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("cannot protect --root {}", path.display()))?;
        let name = path.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name)
            .with_context(|| format!("cannot open {}", name.display()))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let holder = fs::read_to_string(&name).unwrap_or_default();
                bail!(
                    "--root {} is in use by process {}; stop it or choose another root",
                    path.display(),
                    holder.trim()
                );
            }
            Err((_, errno)) => {
                let holder = fs::read_to_string(&name).unwrap_or_default();
                let holder = match holder.trim() {
                    "" => "nobody has written into it".to_owned(),
                    process => format!("process {process} held it last"),
                };
                bail!(
                    "cannot lock {}: {errno} ({holder}); stop that one, or choose another --root, on a local file system",
                    name.display()
                );
            }
        };
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).context("cannot write the lock")?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the API server keeps its objects.
    pub fn api(&self) -> PathBuf {
        self.path.join("api")
    }

    /// Where the administrator's kubeconfig is.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    /// Where the volumes' images are.
    pub fn pool(&self) -> PathBuf {
        self.path.join("pool")
    }

    /// Where OCI layouts for image volumes are looked for.
    pub fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    /// Where FlexVolume drivers are looked for.
    pub fn volume_plugins(&self) -> PathBuf {
        self.path.join("volume-plugins")
    }

    /// Where the drivers note that they have seen the pool.
    pub fn driver_state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Socket of the driver's controller part.
    pub fn controller_socket(&self) -> PathBuf {
        self.path.join("csi.sock")
    }

    /// What a kubelet would call its root directory, for one node.
    pub fn node(&self, node: &str) -> PathBuf {
        self.path.join("nodes").join(node)
    }

    /// The nodes that have a directory here, of this run or an earlier one.
    pub fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let folder = self.path.join("nodes");
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
        };
        let mut nodes = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            nodes.extend(entry.file_name().into_string());
        }
        nodes.sort();
        Ok(nodes)
    }

    /// Socket of the driver's node part.
    pub fn node_socket(&self, node: &str) -> PathBuf {
        self.node(node).join("csi.sock")
    }

    /// Where drivers announce themselves to the node.
    pub fn registry(&self, node: &str) -> PathBuf {
        self.node(node).join("plugins_registry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_in_use_is_refused_by_name_and_holder() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let root = Root::take(folder.path()).unwrap();
        let error = Root::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()) && error.contains("another root"), "{error}");
        drop(root);
        Root::take(folder.path()).unwrap();
    }

    #[test]
    fn a_root_too_long_for_sockets_is_refused() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let error = Root::take(&folder.path().join("x".repeat(60))).unwrap_err().to_string();
        assert!(error.contains("shorter path"), "{error}");
    }
}
