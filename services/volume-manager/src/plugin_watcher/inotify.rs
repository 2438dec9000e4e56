//! The real plugin registry: a directory watched by inotify, subdirectories included.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{PluginEvent, PluginSource};

/// `<root>/plugins_registry`.
#[derive(Debug, Clone)]
pub struct RegistryDir {
    dir: PathBuf,
}

impl RegistryDir {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }
}

impl PluginSource for RegistryDir {
    fn watch(&self) -> io::Result<BoxStream<'static, io::Result<PluginEvent>>> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        let mut watcher = Watcher::new(self.dir.clone())?;
        watcher.walk(&self.dir)?;
        let events = stream::try_unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Ok(Some((event, watcher)))
        });
        Ok(events.boxed())
    }
}

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

struct Watcher {
    fd: AsyncFd<Descriptor>,
    root: PathBuf,
    dirs: BTreeMap<i32, PathBuf>,
    sockets: BTreeSet<PathBuf>,
    waiting: VecDeque<PluginEvent>,
}

impl Watcher {
    fn new(root: PathBuf) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // Its successor needs unsafe code to promise what holds here: the wrapper keeps one descriptor open for good.
        #[expect(deprecated)]
        let fd = AsyncFd::with_interest(Descriptor(inotify), Interest::READABLE)?;
        let (dirs, sockets, waiting) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Ok(Self { fd, root, dirs, sockets, waiting })
    }

    async fn next(&mut self) -> io::Result<PluginEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            let batch = {
                let mut guard = self.fd.readable().await?;
                let read = guard.try_io(|fd| fd.get_ref().0.read_events().map_err(io::Error::from));
                match read {
                    Ok(Err(error)) if error.raw_os_error() == Some(Errno::EAGAIN as i32) => continue,
                    Ok(batch) => batch?,
                    Err(_would_block) => continue,
                }
            };
            self.take(batch)?;
        }
    }

    /// Sorts one batch out. A socket that went and came back in it has only come anew.
    fn take(&mut self, batch: Vec<InotifyEvent>) -> io::Result<()> {
        let mut touched = BTreeSet::new();
        for event in batch {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                return self.rescan();
            }
            let number = event.wd.as_raw();
            if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                self.dirs.remove(&number);
                continue;
            }
            let (Some(dir), Some(name)) = (self.dirs.get(&number), event.name) else {
                continue;
            };
            let path = dir.join(name);
            if event.mask.contains(AddWatchFlags::IN_ISDIR) {
                if event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
                    self.walk(&path)?;
                }
            } else {
                touched.insert(path);
            }
        }
        for path in touched {
            self.look_at(path);
        }
        Ok(())
    }

    fn look_at(&mut self, path: PathBuf) {
        let known = self.sockets.contains(&path);
        if is_socket(&path) {
            self.sockets.insert(path.clone());
            self.say(PluginEvent::Appeared, &path);
        } else if known {
            self.sockets.remove(&path);
            self.say(PluginEvent::Vanished, &path);
        }
    }

    fn say(&mut self, event: fn(String) -> PluginEvent, path: &Path) {
        match path.to_str() {
            Some(text) => self.waiting.push_back(event(text.to_owned())),
            None => tracing::warn!(path = %path.display(), "the socket's path is not UTF-8, it is passed over"),
        }
    }

    /// Watches a directory before reading it, so that nothing falls between.
    fn walk(&mut self, dir: &Path) -> io::Result<()> {
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_ONLYDIR;
        let watch = match self.fd.get_ref().0.add_watch(dir, changes) {
            Ok(watch) => watch,
            // Gone again, unless it is the registry itself.
            Err(Errno::ENOENT | Errno::ENOTDIR) if dir != self.root => return Ok(()),
            Err(Errno::ENOSPC) => {
                return Err(io::Error::other(format!(
                    "cannot watch {}: raise the sysctl fs.inotify.max_user_watches",
                    dir.display()
                )));
            }
            Err(error) => return Err(error.into()),
        };
        self.dirs.insert(watch.as_raw(), dir.to_owned());
        for path in self.list(dir)? {
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.walk(&path)?,
                Ok(_) if !self.sockets.contains(&path) => self.look_at(path),
                _ => {}
            }
        }
        Ok(())
    }

    /// What is in a directory, in order. One that is gone again by now has nothing, unless it is the registry itself.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if dir != self.root && is_gone(&error) => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        paths.sort();
        Ok(paths)
    }

    /// The kernel dropped events: compare what is there with what was known.
    fn rescan(&mut self) -> io::Result<()> {
        for path in self.sockets.clone() {
            if !is_socket(&path) {
                self.look_at(path);
            }
        }
        self.walk(&self.root.clone())
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Names that begin with a dot are not finished yet, by convention.
fn is_socket(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    async fn next(events: &mut BoxStream<'static, io::Result<PluginEvent>>) -> PluginEvent {
        events.next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn s151_sockets_are_told_from_the_start_when_they_come_and_when_they_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let _old = UnixListener::bind(path("old.sock")).unwrap();
        fs::write(path("file"), "").unwrap();
        let mut events = RegistryDir::new(dir.path()).watch().unwrap();
        assert_eq!(next(&mut events).await, PluginEvent::Appeared(path("old.sock")));

        let _hidden = UnixListener::bind(path(".hidden.sock")).unwrap();
        let _new = UnixListener::bind(path("new.sock")).unwrap();
        assert_eq!(next(&mut events).await, PluginEvent::Appeared(path("new.sock")));

        fs::remove_file(path("old.sock")).unwrap();
        assert_eq!(next(&mut events).await, PluginEvent::Vanished(path("old.sock")));
    }

    #[tokio::test]
    async fn a_socket_in_a_new_subdirectory_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = RegistryDir::new(dir.path().join("registry")).watch().unwrap();
        let sub = dir.path().join("registry/sub");
        fs::create_dir(&sub).unwrap();
        let socket = sub.join("a.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(next(&mut events).await, PluginEvent::Appeared(socket.to_str().unwrap().to_owned()));
    }

    #[tokio::test]
    async fn s151_a_socket_made_anew_between_two_looks_appears_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = UnixListener::bind(&path).unwrap();
        let mut events = RegistryDir::new(dir.path()).watch().unwrap();
        let appeared = PluginEvent::Appeared(path.to_str().unwrap().to_owned());
        assert_eq!(next(&mut events).await, appeared);
        drop(first);
        fs::remove_file(&path).unwrap();
        let _second = UnixListener::bind(&path).unwrap();
        assert_eq!(next(&mut events).await, appeared);
    }

    /// It was watched, and gone before it was read: that ended the service.
    #[tokio::test]
    async fn a_subdirectory_that_is_gone_before_it_is_read_has_nothing_in_it_and_the_registry_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let watcher = Watcher::new(dir.path().join("registry")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        for gone in ["registry/sub", "file"] {
            assert_eq!(watcher.list(&dir.path().join(gone)).unwrap(), Vec::<PathBuf>::new(), "{gone}");
        }
        assert!(watcher.list(&watcher.root).is_err());
    }
}
