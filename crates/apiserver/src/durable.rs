//! Keeping the store on disk: many writers, one commit.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::object::{self, Key, Object};
use crate::server::Core;
use crate::store::{Event, EventType, Store, Unreadable};

/// `resource/namespace/name` to checksum, revision and JSON.
const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
/// `format` and `revision`.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Version of the layout above.
const FORMAT: u64 = 1;
const FILE: &str = "store.redb";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenStore {
    /// The directory or file cannot be made or read.
    #[error("cannot use the data file {path}: {source}; check the directory's permissions and free space")]
    Access {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another server has it open.
    #[error("the data file {path} is in use by another API server; stop that one or give --data-dir another directory")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Its content is not what was written.
    #[error("the data file {path} is damaged ({what}); restore it from a backup or move it away to begin empty")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was written by another version of this program.
    #[error(
        "the data file {path} has format {found}, this program reads format {FORMAT}; use the version that wrote it"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The format it has.
        found: u64,
    },
}

/// Nothing is read back from the file while the server runs, so that pages are kept for writing only.
const CACHE: usize = 16 << 20;

type Open = Box<dyn FnMut(&redb::Builder) -> Result<Database, redb::DatabaseError> + Send>;

/// Where the data is, and how to open it, at the start and after a failure.
pub(crate) struct File {
    pub path: PathBuf,
    open: Open,
}

impl File {
    /// The data file in `directory`, made if it is not there.
    pub fn in_directory(directory: &Path) -> Result<Self, OpenStore> {
        let access = |source| OpenStore::Access { path: directory.to_owned(), source };
        // Secrets are in there.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(access)?;
        let path = directory.join(FILE);
        let (name, directory) = (path.clone(), directory.to_owned());
        let open: Open = Box::new(move |builder| {
            let mut file = OpenOptions::new();
            file.read(true).write(true).create(true).truncate(false).mode(0o600);
            let database = builder.create_file(file.open(&name)?)?;
            // A new file's name must survive a power loss too.
            fs::File::open(&directory)?.sync_all()?;
            Ok(database)
        });
        Ok(Self { path, open })
    }

    /// Any storage; `name` stands for it in messages.
    pub fn over(name: &Path, open: Open) -> Self {
        Self { path: name.to_owned(), open }
    }

    fn database(&mut self) -> Result<Database, OpenStore> {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        (self.open)(&builder).map_err(|error| explain(&self.path, error))
    }

    /// Opens the file and reads all of it.
    pub fn load(&mut self, window: usize) -> Result<(Database, Store), OpenStore> {
        let database = self.database()?;
        load(&self.path, database, window)
    }

    /// Makes what the server itself adds at its start durable.
    pub fn commit_first(&self, database: &Database, events: &[Arc<Event>]) -> Result<(), OpenStore> {
        if events.is_empty() {
            return Ok(());
        }
        commit(database, events)
            .map_err(|error| OpenStore::Access { path: self.path.clone(), source: io::Error::other(error) })
    }

    /// Opens the file again after a failure, proves that it can be written, and says which revision it holds.
    fn reopen(&mut self) -> Result<(Database, u64), OpenStore> {
        let database = self.database()?;
        let path = self.path.clone();
        let prove = || -> Result<u64, redb::Error> {
            let transaction = database.begin_write()?;
            let revision = {
                let mut numbers = transaction.open_table(NUMBERS)?;
                let revision = numbers.get("revision")?.map_or(0, |n| n.value());
                numbers.insert("revision", revision)?;
                revision
            };
            transaction.commit()?;
            Ok(revision)
        };
        let revision = prove().map_err(|error| OpenStore::Access { path, source: io::Error::other(error) })?;
        Ok((database, revision))
    }
}

fn explain(path: &Path, error: redb::DatabaseError) -> OpenStore {
    use redb::{DatabaseError, StorageError};
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenStore::InUse { path },
        DatabaseError::UpgradeRequired(found) => OpenStore::UnknownFormat { path, found: found.into() },
        DatabaseError::Storage(StorageError::Io(source)) if source.kind() != io::ErrorKind::InvalidData => {
            OpenStore::Access { path, source }
        }
        other => OpenStore::Damaged { path, what: other.to_string() },
    }
}

fn load(path: &Path, database: Database, window: usize) -> Result<(Database, Store), OpenStore> {
    let damaged = |what: String| OpenStore::Damaged { path: path.to_owned(), what };
    let initialise = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            if numbers.get("format")?.is_none() {
                numbers.insert("format", FORMAT)?;
                numbers.insert("revision", 0)?;
            }
            transaction.open_table(OBJECTS)?;
        }
        transaction.commit()?;
        Ok(())
    };
    initialise().map_err(|e| damaged(e.to_string()))?;
    let read = || -> Result<_, redb::Error> {
        let transaction = database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |name: &str| -> Result<u64, redb::Error> { Ok(numbers.get(name)?.map_or(0, |n| n.value())) };
        let (format, revision) = (number("format")?, number("revision")?);
        // Of another format nothing is known, not even whether it can be decoded.
        let rows = (format == FORMAT).then(|| transaction.open_table(OBJECTS)).transpose()?;
        let rows = rows.as_ref().map(|table| table.iter()).transpose()?.into_iter().flatten();
        let objects = rows.map(|row| {
            let (key, value) = row?;
            let key = key.value();
            Ok(decode(key, value.value(), revision))
        });
        let objects = objects.collect::<Result<Vec<_>, redb::Error>>()?;
        Ok((format, revision, objects))
    };
    let (format, revision, objects) = read().map_err(|e| damaged(e.to_string()))?;
    if format != FORMAT {
        return Err(OpenStore::UnknownFormat { path: path.to_owned(), found: format });
    }
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    for row in objects {
        match row {
            Ok(row) => readable.push(row),
            Err(row) => unreadable.push(row),
        }
    }
    Ok((database, Store::restored(revision, readable, unreadable, window)))
}

fn row_key(event: &Event) -> String {
    format!("{}/{}/{}", event.kind.group_resource(), event.key.namespace, event.key.name)
}

fn encode(object: &Object) -> Vec<u8> {
    let mut value = Vec::with_capacity(12 + object.json.len());
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(&object.revision.to_le_bytes());
    value.extend_from_slice(&object.json);
    let checksum = crc32fast::hash(&value[4..]);
    value[..4].copy_from_slice(&checksum.to_le_bytes());
    value
}

/// One row; what is no object is told with why, and does not keep the others from being used.
fn decode(key: &str, value: &[u8], newest: u64) -> Result<(String, Key, Object), Unreadable> {
    let mut parts = key.splitn(3, '/');
    let mut part = || parts.next().unwrap_or_default();
    let (resource, namespace, name) = (part(), part(), part());
    let key = Key::new(namespace, name);
    match decode_object(value, newest) {
        Ok(object) => Ok((resource.to_owned(), key, object)),
        Err(why) => Err(Unreadable { resource: resource.to_owned(), key, why }),
    }
}

fn decode_object(value: &[u8], newest: u64) -> Result<Object, String> {
    let (Some(checksum), Some(revision)) = (value.first_chunk::<4>(), value.get(4..12)) else {
        return Err("the value is too short".to_owned());
    };
    if crc32fast::hash(&value[4..]) != u32::from_le_bytes(*checksum) {
        return Err("the checksum does not match".to_owned());
    }
    let revision = u64::from_le_bytes(revision.try_into().map_err(|_| "the revision is cut off")?);
    if revision > newest {
        return Err(format!("revision {revision} is beyond the newest, {newest}"));
    }
    let json = Bytes::copy_from_slice(&value[12..]);
    object::check_readable(&json).map_err(|error| error.to_string())?;
    Ok(Object { revision, json })
}

#[derive(Default)]
struct Queue {
    events: Vec<Arc<Event>>,
    /// How many writes wanted to know whether the file can be written again.
    asked: u64,
    /// The thread has ended and will do nothing more.
    ended: bool,
    stopping: bool,
}

type Shared = Arc<(Mutex<Queue>, Condvar)>;

/// The thread that makes events durable: each commit takes all that gathered during the one before.
pub(crate) struct Journal {
    queue: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Begins to write to `database`, telling `core` how far it is.
    pub fn start(file: File, database: Database, core: Arc<Core>) -> io::Result<Self> {
        let queue = Shared::default();
        let shared = queue.clone();
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            let _guard = EndOfThread { core: core.clone(), queue: shared.clone() };
            write_all(file, database, &core, &shared);
        });
        Ok(Self { queue, thread: Some(thread?) })
    }

    /// Queues events, in the order of their revisions.
    pub fn enqueue(&self, events: &[Arc<Event>]) {
        let (_, wake) = &*self.queue;
        lock(&self.queue).events.extend_from_slice(events);
        wake.notify_one();
    }

    /// Asks for another try after a failure: the ticket that a try from now on serves, or nothing if there will be none.
    pub fn retry(&self) -> Option<u64> {
        let (_, wake) = &*self.queue;
        let mut queue = lock(&self.queue);
        queue.asked += 1;
        wake.notify_one();
        (!queue.ended).then_some(queue.asked)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let (_, wake) = &*self.queue;
        lock(&self.queue).stopping = true;
        wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It only panics on a broken invariant, which the panic itself has reported.
            let _reported = thread.join();
        }
    }
}

/// Writers must not wait for a thread that is gone.
struct EndOfThread {
    core: Arc<Core>,
    queue: Shared,
}

impl Drop for EndOfThread {
    fn drop(&mut self) {
        lock(&self.queue).ended = true;
        if std::thread::panicking() {
            self.core.fail("the journal has failed; restart the API server".to_owned(), u64::MAX);
        }
    }
}

fn lock(queue: &Shared) -> MutexGuard<'_, Queue> {
    queue.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `ready` or the end; false at the end.
fn wait(queue: &Shared, ready: impl Fn(&Queue) -> bool) -> Option<MutexGuard<'_, Queue>> {
    let guard = queue.1.wait_while(lock(queue), |q| !ready(q) && !q.stopping);
    let guard = guard.unwrap_or_else(PoisonError::into_inner);
    ready(&guard).then_some(guard)
}

fn write_all(mut file: File, database: Database, core: &Core, queue: &Shared) {
    let mut database = database;
    let mut served = 0;
    loop {
        let Some(mut gathered) = wait(queue, |q| !q.events.is_empty()) else { return };
        let events = std::mem::take(&mut gathered.events);
        drop(gathered);
        if let Err(error) = commit(&database, &events) {
            tracing::error!(path = %file.path.display(), %error, "cannot write to the data file; writes are refused");
            core.fail(explain_failure(&file.path, &error), served);
            // After an error the database refuses everything; it has to be closed and opened again.
            drop(database);
            let Some(reopened) = recover(&mut file, core, queue, &events, &mut served) else { return };
            database = reopened;
            continue;
        }
        core.publish(&events);
    }
}

/// Tries to open the file whenever a write asks for it, until that works; nothing at the end. `served` is the newest ticket
/// that was there when the last try began.
fn recover(
    file: &mut File,
    core: &Core,
    queue: &Shared,
    unfinished: &[Arc<Event>],
    served: &mut u64,
) -> Option<Database> {
    loop {
        *served = wait(queue, |q| q.asked > *served)?.asked;
        match file.reopen() {
            Ok((database, revision)) => {
                // The failed commit may have reached the disk after all, and then as a whole.
                if unfinished.last().is_some_and(|last| last.revision == revision) {
                    core.publish(unfinished);
                }
                core.recover(|| lock(queue).events.clear());
                tracing::warn!(path = %file.path.display(), revision, "the data file can be written again");
                return Some(database);
            }
            Err(error) => {
                core.fail(format!("{error}; writes are refused until that is done, reads are answered"), *served);
            }
        }
    }
}

fn explain_failure(path: &Path, error: &redb::Error) -> String {
    let path = path.display();
    let full = matches!(error, redb::Error::Io(error) if error.kind() == io::ErrorKind::StorageFull);
    if full {
        return format!(
            "no space left on the device of the data file {path}: the write was not kept; free space and try again, \
             reads are answered meanwhile"
        );
    }
    format!(
        "the data file {path} cannot be written ({error}): the write was not kept; repair the disk and try again, reads \
         are answered meanwhile"
    )
}

fn commit(database: &Database, events: &[Arc<Event>]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for event in events {
            let key = row_key(event);
            match event.event_type {
                EventType::Deleted => {
                    objects.remove(key.as_str())?;
                }
                EventType::Added | EventType::Modified => {
                    objects.insert(key.as_str(), encode(&event.object).as_slice())?;
                }
            }
        }
        if let Some(last) = events.last() {
            transaction.open_table(NUMBERS)?.insert("revision", last.revision)?;
        }
    }
    transaction.commit()?;
    Ok(())
}
