//! The one way out of a service: notes every act, and is where a service is stopped.

use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::changes::Changes;
use crate::fault::{Fault, Mode};
use crate::rights::Right;
use crate::trace::{Port, Trace};

/// Runs at the point of a fault, while the service stands still there.
pub type AtFault = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The fault that waits to happen, if any; shared by all gates of a world.
#[derive(Clone, Default)]
pub(crate) struct Armed(Arc<Mutex<Waiting>>);

type Waiting = Option<(Fault, Option<AtFault>)>;

impl Armed {
    pub(crate) fn arm(&self, fault: Fault, at_fault: Option<AtFault>) {
        *self.lock() = Some((fault, at_fault));
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes the fault out if it belongs to this point: it happens once.
    fn take(&self, service: &str, number: usize) -> Option<(Mode, Option<AtFault>)> {
        let mut armed = self.lock();
        if !armed.as_ref().is_some_and(|(fault, _)| fault.service == service && fault.number == number) {
            return None;
        }
        armed.take().map(|(fault, at_fault)| (fault.mode, at_fault))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("no code panics while holding the fault")
    }
}

/// The gate of one life of one service. Once it is stopped nothing passes any more: a killed process does nothing.
pub struct Gate {
    service: String,
    trace: Trace,
    armed: Armed,
    changes: Changes,
    stopped: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn new(service: &str, trace: Trace, armed: Armed, changes: Changes) -> Self {
        Self { service: service.to_owned(), trace, armed, changes, stopped: watch::Sender::new(false) }
    }

    /// Notes a right the service makes use of.
    pub(crate) fn asks(&self, right: Option<Right>) {
        if let Some(right) = right {
            self.trace.asked(&self.service, right);
        }
    }

    /// Whether the service was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Stops the service here and now.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Resolves once the service was stopped.
    pub async fn stopped(&self) {
        // The sender lives in self, so the wait cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Lets a read pass; never returns for a stopped service.
    pub async fn look(&self) {
        if self.is_stopped() {
            pending::<()>().await;
        }
    }

    /// Lets an act pass, as a point of the trace; `lost` is what the service sees when only the answer gets lost.
    pub async fn act<T>(&self, port: Port, what: String, act: impl Future<Output = T>, lost: impl FnOnce() -> T) -> T {
        self.look().await;
        let number = self.trace.record(&self.service, port, what);
        let Some((mode, at_fault)) = self.armed.take(&self.service, number) else {
            let answer = act.await;
            self.changes.announce();
            return answer;
        };
        let answer = if matches!(mode, Mode::Before | Mode::RequestLost) { None } else { Some(act.await) };
        if mode.stops() {
            self.stop();
        }
        if let Some(at_fault) = at_fault {
            at_fault().await;
        }
        self.changes.announce();
        match (mode, answer) {
            (Mode::After, Some(answer)) => answer,
            (Mode::AnswerLostAlive, Some(_)) | (Mode::RequestLost, None) => lost(),
            _ => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn gate(armed: &Armed) -> Gate {
        Gate::new("a", Trace::default(), armed.clone(), Changes::default())
    }

    /// Acts once; says what the service saw and whether the act was done.
    fn act(gate: &Gate) -> (Option<&'static str>, bool) {
        let mut done = false;
        let seen = gate
            .act(
                Port::Api,
                "x".into(),
                async {
                    done = true;
                    "answer"
                },
                || "lost",
            )
            .now_or_never();
        (seen, done)
    }

    #[test]
    fn each_mode_does_what_its_name_says_and_only_at_its_point() {
        for (mode, second, third) in [
            (Mode::Before, (None, false), (None, false)),
            (Mode::After, (Some("answer"), true), (None, false)),
            (Mode::AnswerLost, (None, true), (None, false)),
            (Mode::AnswerLostAlive, (Some("lost"), true), (Some("answer"), true)),
            (Mode::RequestLost, (Some("lost"), false), (Some("answer"), true)),
        ] {
            let armed = Armed::default();
            armed.arm(Fault { service: "a".into(), number: 2, mode }, None);
            let gate = gate(&armed);
            assert_eq!(act(&gate), (Some("answer"), true), "{mode} at the first point");
            assert_eq!(act(&gate), second, "{mode} at its point");
            assert_eq!(act(&gate), third, "{mode} after its point");
            assert_eq!(gate.is_stopped(), mode.stops());
            assert_eq!(gate.look().now_or_never().is_some(), !mode.stops());
        }
    }

    #[test]
    fn a_fault_happens_once_although_the_service_lives_again() {
        let armed = Armed::default();
        armed.arm(Fault { service: "a".into(), number: 1, mode: Mode::Before }, None);
        let first = gate(&armed);
        assert_eq!(act(&first), (None, false));
        let second = gate(&armed);
        assert_eq!(act(&second), (Some("answer"), true));
    }
}
