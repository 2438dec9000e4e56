//! Whether a service may be given work: every part that was announced has reported, and nobody is draining.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Collects the parts a service waits for before it is ready; clones share one state.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<State>>);

#[derive(Default)]
struct State {
    parts: BTreeMap<String, Part>,
    issued: u64,
    draining: bool,
}

#[derive(Clone, Copy)]
struct Part {
    issue: u64,
    ready: bool,
}

/// What keeps a service from being ready, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unready {
    /// These parts have not reported yet.
    Waiting(Vec<String>),
    /// The service is on its way out.
    Draining,
}

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Readiness {
    /// Announces a part that must report before the service is ready.
    ///
    /// A name announced again replaces the earlier one, so a restarted service is unready until it has synced anew.
    pub fn handle(&self, name: impl Into<String>) -> Handle {
        let name = name.into();
        let mut issue = 0;
        self.0.send_modify(|state| {
            state.issued += 1;
            issue = state.issued;
            state.parts.insert(name.clone(), Part { issue, ready: false });
        });
        Handle { readiness: self.clone(), name, issue }
    }

    /// Makes the service unready for good.
    pub fn drain(&self) {
        self.0.send_modify(|state| state.draining = true);
    }

    /// Whether the service is ready, else what is missing.
    pub fn check(&self) -> Result<(), Unready> {
        self.0.borrow().check()
    }

    /// Resolves once the service is ready.
    pub async fn wait(&self) {
        let mut changes = self.0.subscribe();
        // The sender lives in self, so the channel cannot close while we wait.
        let _ = changes.wait_for(|state| state.check().is_ok()).await;
    }
}

impl State {
    fn check(&self) -> Result<(), Unready> {
        if self.draining {
            return Err(Unready::Draining);
        }
        let missing: Vec<String> =
            self.parts.iter().filter(|(_, part)| !part.ready).map(|(name, _)| name.clone()).collect();
        if missing.is_empty() { Ok(()) } else { Err(Unready::Waiting(missing)) }
    }
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(parts) => write!(f, "waiting for {}", parts.join(", ")),
            Self::Draining => f.write_str("draining"),
        }
    }
}

/// One announced part; dropping it without [`Handle::ready`] leaves the service unready.
pub struct Handle {
    readiness: Readiness,
    name: String,
    issue: u64,
}

impl Handle {
    /// Reports this part as ready; saying it again changes nothing.
    pub fn ready(&self) {
        self.readiness.0.send_modify(|state| {
            if let Some(part) = state.parts.get_mut(&self.name).filter(|part| part.issue == self.issue) {
                part.ready = true;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(readiness: &Readiness) -> String {
        readiness.check().unwrap_err().to_string()
    }

    #[test]
    fn a_service_is_ready_when_every_part_has_reported() {
        let readiness = Readiness::default();
        let (claims, volumes) = (readiness.handle("claims"), readiness.handle("volumes"));
        assert_eq!(waiting(&readiness), "waiting for claims, volumes");
        claims.ready();
        assert_eq!(waiting(&readiness), "waiting for volumes");
        volumes.ready();
        assert_eq!(readiness.check(), Ok(()));
    }

    #[test]
    fn a_part_that_died_before_it_reported_stays_missing_until_its_successor_reports() {
        let readiness = Readiness::default();
        drop(readiness.handle("claims"));
        assert_eq!(waiting(&readiness), "waiting for claims");
        readiness.handle("claims").ready();
        assert_eq!(readiness.check(), Ok(()));
    }

    #[test]
    fn a_report_of_a_replaced_part_does_not_count() {
        let readiness = Readiness::default();
        let old = readiness.handle("claims");
        let _new = readiness.handle("claims");
        old.ready();
        assert_eq!(waiting(&readiness), "waiting for claims");
    }

    #[test]
    fn a_draining_service_is_unready_whatever_has_reported() {
        let readiness = Readiness::default();
        readiness.handle("claims").ready();
        readiness.drain();
        assert_eq!(readiness.check(), Err(Unready::Draining));
    }

    #[tokio::test]
    async fn waiting_ends_when_the_last_part_reports() {
        let readiness = Readiness::default();
        let part = readiness.handle("claims");
        let (waiter, ()) = tokio::join!(readiness.wait(), async { part.ready() });
        assert_eq!(waiter, ());
    }
}
