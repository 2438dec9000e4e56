//! How far the writes for a volume's attachments have come, where there are too many for one round.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::names::VolumeHandle;

/// The last attachments, by their names, that were written for; none where nothing was left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpTo {
    /// Of those whose calls have ended.
    pub ended: Option<String>,
    /// Of all others.
    pub others: Option<String>,
}

/// By volume.
#[derive(Clone, Default)]
pub struct Written(Arc<Mutex<BTreeMap<VolumeHandle, UpTo>>>);

impl Written {
    pub fn up_to(&self, handle: &VolumeHandle) -> UpTo {
        self.lock().get(handle).cloned().unwrap_or_default()
    }

    pub fn note(&self, handle: &VolumeHandle, up_to: &UpTo) {
        if *up_to == UpTo::default() {
            self.lock().remove(handle);
        } else {
            self.lock().insert(handle.clone(), up_to.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeHandle, UpTo>> {
        self.0.lock().expect("no code panics while holding how far was written")
    }
}
