//! Since when nobody wants a volume where it is, which cannot be read from the API: losing it costs a longer wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

use crate::snapshot::Snapshot;

/// By the node's name: since when nobody wants a volume there.
pub type Unwanted = BTreeMap<String, Timestamp>;

#[derive(Debug, Default)]
pub struct Memory(Mutex<BTreeMap<String, Unwanted>>);

impl Memory {
    pub fn recall(&self, volume: &str) -> Unwanted {
        self.lock().get(volume).cloned().unwrap_or_default()
    }

    /// Replaces what is remembered about a volume by what still matters.
    pub fn keep(&self, volume: &str, snapshot: &Snapshot) {
        let sites = snapshot.sites.iter();
        let unwanted: Unwanted = sites.filter_map(|(node, site)| Some((node.clone(), site.unwanted_since?))).collect();
        if unwanted.is_empty() {
            self.lock().remove(volume);
        } else {
            self.lock().insert(volume.to_owned(), unwanted);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Unwanted>> {
        self.0.lock().expect("no code panics while holding the memory")
    }
}
