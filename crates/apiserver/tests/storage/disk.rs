//! A disk in memory that keeps only what was synced, fills up, and can lose its power.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use redb::StorageBackend;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

#[derive(Debug)]
struct State {
    /// What reads see.
    seen: Vec<u8>,
    /// What is certain to be there after a power loss.
    synced: Vec<u8>,
    /// What came since the last sync, in order.
    unsynced: Vec<Change>,
    /// Changes and syncs until the power goes; never if there are none.
    until_cut: Option<u64>,
    /// Handles of an earlier life do nothing any more.
    life: u64,
    full: bool,
    random: StdRng,
}

/// One disk; clones are the same disk.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<State>>);

/// A file open on the disk.
#[derive(Debug)]
pub struct Handle {
    disk: Disk,
    life: u64,
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            seen: Vec::new(),
            synced: Vec::new(),
            unsynced: Vec::new(),
            until_cut: None,
            life: 0,
            full: false,
            random: StdRng::seed_from_u64(seed),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn open(&self) -> io::Result<Handle> {
        Ok(Handle { disk: self.clone(), life: self.state().life })
    }

    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// The power goes after this many more changes and syncs.
    pub fn cut_after(&self, operations: u64) {
        self.state().until_cut = Some(operations);
    }

    pub fn is_cut(&self) -> bool {
        self.state().until_cut == Some(0)
    }

    /// The power comes back: of what was not synced, some is there, some is not, some is torn, in any order.
    pub fn power_on(&self) {
        let state = &mut *self.state();
        let mut pieces = Vec::new();
        let mut image = std::mem::take(&mut state.synced);
        for change in state.unsynced.drain(..) {
            match change {
                Change::Resize(length) if state.random.random() => image.resize(length, 0),
                Change::Resize(_) => {}
                Change::Write { offset, bytes } => {
                    let sectors = bytes.chunks(SECTOR).enumerate();
                    pieces.extend(sectors.map(|(index, sector)| (offset + index * SECTOR, sector.to_vec())));
                }
            }
        }
        let mood = state.random.random_range(0..4);
        if mood > 0 {
            pieces.shuffle(&mut state.random);
        }
        for (offset, bytes) in pieces {
            // A whole quarter of the lives loses nothing that was written, or loses nearly all of it.
            let kept = match mood {
                0 => true,
                1 => state.random.random_ratio(1, 20),
                _ => state.random.random(),
            };
            if kept {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[offset..end].copy_from_slice(&bytes);
            }
        }
        state.seen.clone_from(&image);
        state.synced = image;
        state.until_cut = None;
        state.life += 1;
    }
}

impl Handle {
    /// The state, if this handle is of this life and the power is on; counts the operation.
    fn powered(&self, counts: bool) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.disk.state();
        if state.life != self.life || state.until_cut == Some(0) {
            return Err(io::Error::other("the power is off"));
        }
        if counts {
            state.until_cut = state.until_cut.map(|left| left - 1);
            if state.until_cut == Some(0) {
                return Err(io::Error::other("the power went"));
            }
        }
        Ok(state)
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.powered(false)?.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.powered(false)?;
        let begin = usize::try_from(offset).unwrap();
        let found = state.seen.get(begin..begin + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.powered(true)?;
        let length = usize::try_from(length).unwrap();
        state.seen.resize(length, 0);
        state.unsynced.push(Change::Resize(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.powered(true)?;
        state.synced.clone_from(&state.seen);
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.powered(true)?;
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let begin = usize::try_from(offset).unwrap();
        let end = begin + data.len();
        if state.seen.len() < end {
            state.seen.resize(end, 0);
        }
        state.seen[begin..end].copy_from_slice(data);
        state.unsynced.push(Change::Write { offset: begin, bytes: data.to_vec() });
        Ok(())
    }
}
