//! What cannot be read from the API: since when nobody wants a volume where it is, and what its pods were told. Losing it
//! costs a longer wait and a repeated event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_model::names::UniqueVolumeName;
use stowage_runtime::told::Told;

use crate::notice::Notice;
use crate::snapshot::Snapshot;

/// By the node's name: since when nobody wants a volume there.
pub type Unwanted = BTreeMap<String, Timestamp>;

#[derive(Debug, Default)]
pub struct Memory {
    unwanted: Mutex<BTreeMap<UniqueVolumeName, Unwanted>>,
    /// By volume and the pod's uid.
    pub told: Told<UniqueVolumeName, String, Notice>,
}

impl Memory {
    pub fn unwanted(&self, volume: &UniqueVolumeName) -> Unwanted {
        self.lock().get(volume).cloned().unwrap_or_default()
    }

    /// Replaces what is remembered about a volume by what still matters. The clock of a forced detach starts here, with a
    /// decision, and never by a mere look.
    pub fn note(&self, snapshot: &Snapshot) {
        let Some(volume) = &snapshot.volume else { return };
        let sites = snapshot.sites.iter();
        let unwanted: Unwanted = sites.filter_map(|(node, site)| Some((node.clone(), site.unwanted_since?))).collect();
        if unwanted.is_empty() {
            self.lock().remove(volume);
        } else {
            self.lock().insert(volume.clone(), unwanted);
        }
        let wishes = snapshot.sites.values().flat_map(|site| &site.wishes);
        let pods: BTreeSet<&str> = wishes.map(|wish| wish.pod.uid.as_str()).collect();
        self.told.retain(volume, |pod| pods.contains(pod.as_str()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<UniqueVolumeName, Unwanted>> {
        self.unwanted.lock().expect("no code panics while holding the memory")
    }
}
