//! Writes about attachments that the API server refuses, until they succeed: people are told in the attachment's status, for
//! whoever looks at a pod that does not start looks there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What the server says, by the attachment's uid.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<String, String>>>);

impl Refusals {
    pub fn get(&self, uid: &str) -> Option<String> {
        self.lock().get(uid).cloned()
    }

    /// The first words stay until a write succeeds: servers put ports and numbers of requests into theirs, and each new text
    /// would be written into the status, whose change begins the next try at once.
    pub fn insert(&self, uid: &str, message: String) {
        self.lock().entry(uid.to_owned()).or_insert(message);
    }

    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().expect("no code panics while holding the refusals")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each new text was written into the status, and its event began the next try without a pause.
    #[test]
    fn a_refusal_keeps_its_first_words_until_a_write_succeeds() {
        let refusals = Refusals::default();
        for port in [48522, 48524] {
            refusals.insert("a", format!("read tcp 10.1.1.1:{port}: connection reset"));
        }
        assert!(refusals.get("a").is_some_and(|message| message.contains("48522")));
        refusals.remove("a");
        refusals.insert("a", "denied".to_owned());
        assert_eq!(refusals.get("a").as_deref(), Some("denied"));
    }
}
