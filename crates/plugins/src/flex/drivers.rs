//! The drivers there are, as they come to their directory and go.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::manager::VolumePluginManager;

use super::Flex;
use super::call::{self, Programs};

/// How long a driver may take to say what it can do.
const INIT_LIMIT: Duration = Duration::from_secs(30);

/// The drivers of one directory: each is `vendor~driver/driver`.
pub struct FlexDrivers {
    dir: PathBuf,
    programs: Arc<dyn Programs>,
    /// What is registered, by name, with the time of the program that was asked.
    registered: BTreeMap<String, Stamp>,
}

type Stamp = (PathBuf, Option<std::time::SystemTime>);

impl FlexDrivers {
    /// Those of this directory; none is registered yet.
    pub fn new(dir: impl Into<PathBuf>, programs: Arc<dyn Programs>) -> Self {
        Self { dir: dir.into(), programs, registered: BTreeMap::new() }
    }

    /// Registers drivers that have come, and lets go of those that went or were replaced. One that cannot say what it can
    /// do is left out, and asked again at the next change. Says whether any has come or gone. Where it cannot be seen which
    /// there are, all stay as they were.
    pub async fn sync(&mut self, plugins: &VolumePluginManager) -> bool {
        let mut changed = false;
        let there = match found(&self.dir, &self.registered).await {
            Ok(there) => there,
            Err(error) => {
                let directory = self.dir.display();
                tracing::warn!(%directory, %error, "cannot look for FlexVolume drivers; those that are known stay");
                return false;
            }
        };
        let gone: Vec<String> = self
            .registered
            .iter()
            .filter(|(name, stamp)| there.get(*name) != Some(*stamp))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            plugins.unregister(&name);
            self.registered.remove(&name);
            changed = true;
            tracing::info!(driver = name, "a FlexVolume driver has gone");
        }
        for (name, stamp) in there {
            if self.registered.contains_key(&name) {
                continue;
            }
            match self.init(&name, &stamp.0).await {
                Ok(driver) => match plugins.register(Arc::new(driver)) {
                    Ok(()) => {
                        tracing::info!(driver = name, program = %stamp.0.display(), "a FlexVolume driver has come");
                        self.registered.insert(name, stamp);
                        changed = true;
                    }
                    Err(error) => tracing::warn!(driver = name, %error, "a FlexVolume driver is not taken"),
                },
                Err(error) => tracing::warn!(driver = name, error, "a FlexVolume driver is not ready"),
            }
        }
        changed
    }

    async fn init(&self, name: &str, program: &Path) -> Result<Flex, String> {
        let printed = self.programs.run(program, &["init".to_owned()], INIT_LIMIT).await;
        let printed = printed.map_err(|error| format!("init: {error}"))?;
        let answer = call::read("init", &printed)?.ok_or("init is not supported, and every driver must have it")?;
        let (name, program, programs) = (name.to_owned(), program.to_owned(), Arc::clone(&self.programs));
        let (capabilities, unsupported) = (answer.capabilities, Arc::default());
        Ok(Flex { name, program, capabilities, programs, unsupported })
    }
}

/// Programs by their drivers' names. Names that begin with a dot are installers' unfinished work. One that cannot be looked
/// at keeps nobody else away, and stays if it is known.
async fn found(dir: &Path, known: &BTreeMap<String, Stamp>) -> io::Result<BTreeMap<String, Stamp>> {
    let mut there = BTreeMap::new();
    let Some(mut entries) = unless_missing(tokio::fs::read_dir(dir).await)? else { return Ok(there) };
    while let Some(entry) = entries.next_entry().await? {
        let Ok(folder) = entry.file_name().into_string() else { continue };
        let Some((vendor, driver)) = folder.split_once('~') else { continue };
        if folder.starts_with('.') || vendor.is_empty() || driver.is_empty() || driver.contains('~') {
            continue;
        }
        let (name, program) = (format!("{vendor}/{driver}"), entry.path().join(driver));
        match unless_missing(tokio::fs::metadata(&program).await.map_err(unless_loop)) {
            Ok(Some(about)) if about.is_file() => {
                there.insert(name, (program, about.modified().ok()));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(driver = name, program = %program.display(), %error, "cannot look at a FlexVolume driver");
                if let Some(stamp) = known.get(&name) {
                    there.insert(name, stamp.clone());
                }
            }
        }
    }
    Ok(there)
}

/// A link that leads to itself leads nowhere.
fn unless_loop(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(Errno::ELOOP as i32) { ErrorKind::NotFound.into() } else { error }
}

/// What is in a directory may be gone before it is looked at, and the directory itself need not be there.
fn unless_missing<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        other => other.map(Some),
    }
}

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Keeps the drivers as their directory has them, for ever, and tells when one has come or gone; the directory is made if
/// there is none.
pub async fn watch(
    mut drivers: FlexDrivers,
    plugins: Arc<VolumePluginManager>,
    on_change: impl Fn() + Send,
) -> io::Result<()> {
    loop {
        tokio::fs::create_dir_all(&drivers.dir).await?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // Its successor needs unsafe code to promise what holds here: the wrapper keeps one descriptor open for good.
        #[expect(deprecated)]
        let events = AsyncFd::with_interest(Descriptor(inotify), Interest::READABLE)?;
        // Before the look, so that nothing that comes in between is missed; after each change anew, for new directories.
        match add_watches(&events.get_ref().0, &drivers.dir) {
            // Removed since it was made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        }
        if drivers.sync(&plugins).await {
            on_change();
        }
        loop {
            let mut guard = events.readable().await?;
            match guard.try_io(|fd| fd.get_ref().0.read_events().map_err(io::Error::from)) {
                Ok(Ok(_)) => break,
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::EAGAIN as i32) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

fn add_watches(inotify: &Inotify, dir: &Path) -> io::Result<()> {
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(dir, changes)?;
    for entry in std::fs::read_dir(dir)?.filter_map(Result::ok) {
        // One that went meanwhile needs no watch.
        if entry.path().is_dir() {
            let _ = inotify.add_watch(&entry.path(), changes);
        }
    }
    Ok(())
}
