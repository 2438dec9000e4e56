//! For which contents a snapshot may exist that no status records.
//!
//! A call that was sent puts a content in doubt, and a final answer takes it out. What was there before we looked for the
//! first time is in doubt from the start unless its status says otherwise: somebody may have called for it and died.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use crate::watches::Key;

/// One content, and not a namesake.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    pub key: Key,
    pub uid: String,
}

/// Why a content is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// Since when a call of ours is under way; `None` when it has ended without a final answer, or was not ours.
    pub called_at: Option<Timestamp>,
}

/// Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Doubts(Arc<Mutex<BTreeMap<Subject, Doubt>>>);

impl Doubts {
    pub fn of(&self, subject: &Subject) -> Option<Doubt> {
        self.lock().get(subject).copied()
    }

    /// Somebody may have called for it before us.
    pub fn inherit(&self, subject: Subject) {
        self.lock().entry(subject).or_insert(Doubt { called_at: None });
    }

    /// A call is sent; what was known before is for [`Doubts::not_taken`].
    pub fn call_sent(&self, subject: Subject, now: Timestamp) -> Option<Doubt> {
        self.lock().insert(subject, Doubt { called_at: Some(now) })
    }

    /// The call never reached the driver.
    pub fn not_taken(&self, subject: Subject, before: Option<Doubt>) {
        match before {
            Some(doubt) => drop(self.lock().insert(subject, doubt)),
            None => self.settle(&subject),
        }
    }

    /// The call ended, and nobody knows what came of it.
    pub fn left_open(&self, subject: Subject) {
        self.lock().insert(subject, Doubt { called_at: None });
    }

    /// Nothing was made, or it is recorded, or the content is gone.
    pub fn settle(&self, subject: &Subject) {
        self.lock().remove(subject);
    }

    pub fn all(&self) -> Vec<Subject> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Subject, Doubt>> {
        self.0.lock().expect("no code panics while holding the doubts")
    }
}
