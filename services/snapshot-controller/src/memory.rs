//! What cannot be read from the caches: what people were told, and volumes that were just read. Losing it costs a repeated
//! event and another read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};

use stowage_model::Volume;
use stowage_runtime::told::Told;

use crate::watches::Key;

/// What is read of a volume holds for so long: driver, handle and mode never change, and who has it seldom does.
pub const FRESH: SignedDuration = SignedDuration::from_secs(60);

/// A volume as it was when it was read; `None` where there was none.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    pub volume: Option<Arc<Volume>>,
    pub until: Timestamp,
}

#[derive(Debug, Default)]
pub struct Memory {
    volumes: Mutex<BTreeMap<String, Look>>,
    pub told: Told<Key>,
}

impl Memory {
    /// A volume that was read a moment ago.
    pub fn look(&self, volume: &str, now: Timestamp) -> Option<Look> {
        self.lock().get(volume).filter(|look| now < look.until).cloned()
    }

    pub fn looked(&self, name: String, volume: Option<Arc<Volume>>, now: Timestamp) {
        let until = now.saturating_add(FRESH).unwrap_or(Timestamp::MAX);
        let mut volumes = self.lock();
        volumes.retain(|_, look| now < look.until);
        volumes.insert(name, Look { volume, until });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Look>> {
        self.volumes.lock().expect("no code panics while holding the volumes")
    }
}
