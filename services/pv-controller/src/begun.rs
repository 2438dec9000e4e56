//! Volumes that are being made or deleted, whoever does the work, and since when: it is timed, and who waits too long is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use crate::metrics::{Metrics, Operation};

/// By claim (namespace and name) or volume (name).
pub struct Begun {
    first_attempts: Mutex<BTreeMap<String, (Operation, Timestamp)>>,
    metrics: Arc<Metrics>,
}

impl Begun {
    pub fn new(metrics: &Arc<Metrics>) -> Self {
        Self { first_attempts: Mutex::default(), metrics: Arc::clone(metrics) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Operation, Timestamp)>> {
        self.first_attempts.lock().expect("no code panics while holding the times")
    }

    /// Notes the first attempt; later ones do not count.
    pub fn start(&self, key: String, plugin: &str, operation_name: &'static str, now: Timestamp) {
        let plugin_name = if plugin.is_empty() { "N/A".to_owned() } else { plugin.to_owned() };
        self.lock().entry(key).or_insert((Operation { plugin_name, operation_name }, now));
    }

    /// When what still goes on was begun.
    pub fn since(&self, key: &str) -> Option<Timestamp> {
        self.lock().get(key).map(|(_, since)| *since)
    }

    /// It came to its end.
    pub fn succeed(&self, key: &str, now: Timestamp) {
        if let Some((operation, since)) = self.lock().remove(key) {
            self.metrics.succeeded(&operation, now.duration_since(since).as_secs_f64());
        }
    }

    /// An attempt failed; it goes on.
    pub fn fail(&self, key: &str) {
        if let Some((operation, _)) = self.lock().get(key) {
            self.metrics.failed(operation);
        }
    }

    /// Its object is gone.
    pub fn forget(&self, key: &str) {
        self.lock().remove(key);
    }
}
