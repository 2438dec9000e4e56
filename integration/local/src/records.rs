//! Numbered, checksummed records, each synced before the next is begun, and what a copy must have of them.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::{Instant, sleep};

use crate::api::PATIENCE;

const FILE: &str = "records";
const BYTES: usize = 512;
const LOOK: Duration = Duration::from_millis(5);

/// Appends records to files in turn until it is stopped.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    synced: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Writer {
    /// Begins to write to a file in each folder: the first record to the first, the next to the next.
    pub fn start(folders: &[PathBuf]) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in folders.iter().map(|folder| folder.join(FILE)) {
            files.push(File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?);
        }
        let (stop, synced) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&synced));
        let thread = std::thread::spawn(move || {
            for (number, at) in (0..).zip((0..files.len()).cycle()) {
                if until.load(Ordering::SeqCst) {
                    break;
                }
                files[at].write_all(&record(number))?;
                files[at].sync_all()?;
                count.store(number + 1, Ordering::SeqCst);
            }
            Ok(())
        });
        Ok(Self { stop, synced, thread: Some(thread) })
    }

    /// How many records cannot be lost any more.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// Waits until some more are.
    pub async fn goes_on(&self) -> anyhow::Result<()> {
        let (before, deadline) = (self.synced(), Instant::now() + PATIENCE);
        while self.synced() < before + 10 {
            ensure!(Instant::now() < deadline, "nothing was written for {} s", PATIENCE.as_secs());
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends it, and tells how many records there are.
    pub fn stop(mut self) -> anyhow::Result<u64> {
        self.end().context("the writer failed")?;
        Ok(self.synced())
    }

    fn end(&mut self) -> io::Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Whoever wants to know has stopped it.
        let _outcome = self.end();
    }
}

/// How many records a folder has, if these are whole and the first that were written to it, as number `at` of `folders`.
pub fn read(folder: &Path, at: u64, folders: u64) -> anyhow::Result<u64> {
    let path = folder.join(FILE);
    let found = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (records, rest) = found.as_chunks::<BYTES>();
    ensure!(rest.is_empty(), "{} ends in the middle of record {}", path.display(), records.len());
    for (number, found) in (at..).step_by(usize::try_from(folders)?).zip(records) {
        ensure!(*found == record(number), "{} has something else in place of record {number}", path.display());
    }
    Ok(u64::try_from(records.len())?)
}

/// The number, what follows from it, and a checksum of both.
fn record(number: u64) -> [u8; BYTES] {
    let mut record = [0; BYTES];
    for (place, word) in record.as_chunks_mut::<8>().0.iter_mut().zip(0..) {
        *place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(word).to_le_bytes();
    }
    record[..8].copy_from_slice(&number.to_le_bytes());
    let mut checksum = DefaultHasher::new();
    checksum.write(&record[..BYTES - 8]);
    record[BYTES - 8..].copy_from_slice(&checksum.finish().to_le_bytes());
    record
}
