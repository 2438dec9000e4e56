//! Writes about attachments that the API server refuses, until they succeed or are not wanted any more: people are told in the
//! attachment's status, for whoever looks at a pod that does not start looks there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A write that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What people call the write.
    pub what: &'static str,
    /// As HTTP has it, where the server answered.
    pub code: Option<u16>,
    /// What people are told.
    pub text: String,
}

/// By the attachment's uid.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<String, Refusal>>>);

impl Refusals {
    pub fn get(&self, uid: &str) -> Option<Refusal> {
        self.lock().get(uid).cloned()
    }

    /// The first words stay for as long as the same write is refused by the same code: servers put ports and numbers of
    /// requests into theirs, and each new text would be written into the status, whose change begins the next try at once.
    pub fn insert(&self, uid: &str, refusal: Refusal) {
        let mut refusals = self.lock();
        let known = refusals.get(uid);
        if known.is_none_or(|known| (known.what, known.code) != (refusal.what, refusal.code)) {
            refusals.insert(uid.to_owned(), refusal);
        }
    }

    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Refusal>> {
        self.0.lock().expect("no code panics while holding the refusals")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u16, text: String) -> Refusal {
        Refusal { what: "could not save VolumeAttachment", code: Some(code), text }
    }

    /// Each new text was written into the status, and its event began the next try without a pause.
    #[test]
    fn a_refusal_keeps_its_first_words_until_a_write_succeeds_or_fails_otherwise() {
        let refusals = Refusals::default();
        for port in [48522, 48524] {
            refusals.insert("a", refusal(500, format!("read tcp 10.1.1.1:{port}: connection reset")));
        }
        assert!(refusals.get("a").is_some_and(|refusal| refusal.text.contains("48522")));
        refusals.insert("a", refusal(403, "denied".to_owned()));
        assert!(refusals.get("a").is_some_and(|refusal| refusal.text == "denied"), "the reason is another now");
        refusals.remove("a");
        assert_eq!(refusals.get("a"), None);
    }
}
