//! Keeping the store on disk: many writers, one commit.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::kind::{KINDS, Kind};
use crate::object::{Key, Object};
use crate::server::Core;
use crate::store::{Event, EventType, Store};

/// `resource/namespace/name` to checksum, revision and JSON.
const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
/// `format` and `revision`.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Version of the layout above.
const FORMAT: u64 = 1;
pub(crate) const FILE: &str = "store.redb";

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

/// Opens or makes the data file in `directory` and reads all of it.
pub(crate) fn open(directory: &Path, window: usize) -> Result<(Database, Store), OpenStore> {
    let access = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenStore::Access { path, source }
    };
    // Secrets are in there.
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(access(directory))?;
    let path = directory.join(FILE);
    let mut file = OpenOptions::new();
    file.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(&path).map_err(access(&path))?;
    let database = Database::builder().create_file(file).map_err(|error| explain(&path, error))?;
    // A new file's name must survive a power loss too.
    File::open(directory).and_then(|d| d.sync_all()).map_err(access(directory))?;
    load(&path, database, window)
}

/// Like [`open`], over any storage; `path` only names it in messages.
pub(crate) fn open_backend(
    path: &Path,
    backend: impl StorageBackend,
    window: usize,
) -> Result<(Database, Store), OpenStore> {
    let database = Database::builder().create_with_backend(backend).map_err(|error| explain(path, error))?;
    load(path, database, window)
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
        let mut rows = Vec::new();
        for row in transaction.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            rows.push((key.value().to_owned(), Bytes::copy_from_slice(value.value())));
        }
        Ok((number("format")?, number("revision")?, rows))
    };
    let (format, revision, rows) = read().map_err(|e| damaged(e.to_string()))?;
    if format != FORMAT {
        return Err(OpenStore::UnknownFormat { path: path.to_owned(), found: format });
    }
    let objects = rows
        .into_iter()
        .map(|(key, value)| decode(&key, &value, revision).map_err(|what| damaged(format!("{key}: {what}"))))
        .collect::<Result<Vec<_>, _>>()?;
    Ok((database, Store::restored(revision, objects, window)))
}

/// Makes what the server itself adds at its start durable.
pub(crate) fn commit_first(path: &Path, database: &Database, events: &[Arc<Event>]) -> Result<(), OpenStore> {
    if events.is_empty() {
        return Ok(());
    }
    commit(database, events)
        .map_err(|error| OpenStore::Access { path: path.to_owned(), source: io::Error::other(error) })
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

fn decode(key: &str, value: &Bytes, newest: u64) -> Result<(&'static Kind, Key, Object), String> {
    let mut parts = key.splitn(3, '/');
    let (Some(resource), Some(namespace), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("the key has not three parts".to_owned());
    };
    let kind = KINDS.iter().find(|k| k.group_resource() == resource).ok_or("the resource is unknown")?;
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
    serde_json::from_slice::<serde::de::IgnoredAny>(&json).map_err(|e| e.to_string())?;
    Ok((kind, Key::new(namespace, name), Object { revision, json }))
}

#[derive(Default)]
struct Queue {
    events: Vec<Arc<Event>>,
    stopping: bool,
}

/// The thread that makes events durable: each commit takes all that gathered during the one before.
pub(crate) struct Journal {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Begins to write to `database`, telling `core` how far it is.
    pub fn start(database: Database, core: Arc<Core>) -> io::Result<Self> {
        let queue = Arc::new((Mutex::new(Queue::default()), Condvar::new()));
        let shared = queue.clone();
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            let _guard = FailOnPanic(core.clone());
            while let Some(events) = gather(&shared) {
                if let Err(error) = commit(&database, &events) {
                    tracing::error!(%error, "cannot write to the data file; no more writes are accepted");
                    core.fail(format!(
                        "the data file cannot be written ({error}); free space or repair the disk, then restart the \
                         API server"
                    ));
                    return;
                }
                core.publish(&events);
            }
        });
        Ok(Self { queue, thread: Some(thread?) })
    }

    /// Queues events, in the order of their revisions.
    pub fn enqueue(&self, events: &[Arc<Event>]) {
        let (queue, wake) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).events.extend_from_slice(events);
        wake.notify_one();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let (queue, wake) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It only panics on a broken invariant, which the panic itself has reported.
            let _reported = thread.join();
        }
    }
}

/// Writers must not wait for a thread that has died.
struct FailOnPanic(Arc<Core>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("the journal has failed; restart the API server".to_owned());
        }
    }
}

fn gather(shared: &(Mutex<Queue>, Condvar)) -> Option<Vec<Arc<Event>>> {
    let (queue, wake) = shared;
    let guard = queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guard =
        wake.wait_while(guard, |q| q.events.is_empty() && !q.stopping).unwrap_or_else(PoisonError::into_inner);
    (!guard.events.is_empty()).then(|| std::mem::take(&mut guard.events))
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
