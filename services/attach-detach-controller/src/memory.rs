//! The little that cannot be read from the API: losing it costs a repeated event and a longer wait, nothing else.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

use crate::notice::Notice;
use crate::snapshot::Snapshot;

/// What is remembered about one volume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Remembered {
    /// By the pod's uid.
    pub told: BTreeMap<String, Notice>,
    /// By the node's name: since when nobody wants the volume there.
    pub unwanted: BTreeMap<String, Timestamp>,
}

#[derive(Debug, Default)]
pub struct Memory(Mutex<BTreeMap<String, Remembered>>);

impl Memory {
    pub fn recall(&self, volume: &str) -> Remembered {
        self.lock().get(volume).cloned().unwrap_or_default()
    }

    /// Replaces what is remembered about a volume by what still matters.
    pub fn keep(&self, volume: &str, snapshot: &Snapshot) {
        let wishes = snapshot.sites.values().flat_map(|site| &site.wishes);
        let remembered = Remembered {
            told: wishes.filter_map(|wish| Some((wish.pod.uid.clone(), wish.told.clone()?))).collect(),
            unwanted: snapshot
                .sites
                .iter()
                .filter_map(|(node, site)| Some((node.clone(), site.unwanted_since?)))
                .collect(),
        };
        if remembered == Remembered::default() {
            self.lock().remove(volume);
        } else {
            self.lock().insert(volume.to_owned(), remembered);
        }
    }

    pub fn told(&self, volume: &str, pod_uid: &str, notice: Notice) {
        self.lock().entry(volume.to_owned()).or_default().told.insert(pod_uid.to_owned(), notice);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Remembered>> {
        self.0.lock().expect("no code panics while holding the memory")
    }
}
