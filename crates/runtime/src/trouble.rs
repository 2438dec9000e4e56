//! A failure as the status of an object shows it, of an attachment or of a snapshot.

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use stowage_csi::code;

use crate::events::seconds;
use crate::operation::{Failure, Record, State};

/// The API server takes no longer message.
const LONGEST: usize = 1024;

/// What the status says: short enough, and to the second, as the API keeps it, so that what is read can be compared with
/// what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What happened.
    pub message: String,
    /// When.
    pub time: Timestamp,
    /// The gRPC code, if the driver answered with one.
    pub code: Option<i32>,
}

impl Trouble {
    /// A trouble that is not of the driver's making.
    pub fn new(mut message: String, time: Timestamp) -> Self {
        let end = (0..=LONGEST.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        Self { message, time: whole_seconds(time), code: None }
    }

    /// How the last call ended, unless it ended well or has not ended.
    pub fn of<R>(record: &Record<R>) -> Option<Self> {
        let (State::Failed(Failure { code, message }) | State::Uncertain(Failure { code, message })) = &record.state
        else {
            return None;
        };
        let code = code::from_name(code).map(i32::from);
        Some(Self { code, ..Self::new(message.clone(), record.since) })
    }

    /// Whether a status says so already. The code does not count: an older API server drops it, and would be written to
    /// for ever.
    pub fn is_shown(&self, message: &str, time: Option<Timestamp>) -> bool {
        self.message == message && time.map(whole_seconds) == Some(self.time)
    }

    /// Message and time, as every such status has them.
    pub fn body(&self) -> Value {
        json!({ "message": self.message, "time": seconds(self.time) })
    }
}

fn whole_seconds(at: Timestamp) -> Timestamp {
    at.round(Unit::Second).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: State<()>) -> Record<()> {
        let since = "2026-01-01T00:00:00.4Z".parse().unwrap();
        Record { state, since, failures: 1, retry_at: since }
    }

    #[test]
    fn a_failed_call_is_shown_with_its_code_and_to_the_second() {
        let failure = Failure { code: "ResourceExhausted".into(), message: "full".into() };
        let trouble = Trouble::of(&record(State::Failed(failure))).unwrap();
        assert_eq!(trouble.code, Some(8));
        assert_eq!(trouble.body(), json!({ "message": "full", "time": "2026-01-01T00:00:00Z" }));
        assert!(trouble.is_shown("full", Some("2026-01-01T00:00:00Z".parse().unwrap())));
        assert!(!trouble.is_shown("full", None));
    }

    #[test]
    fn a_call_that_runs_or_ended_well_is_no_trouble() {
        for state in [State::Running, State::Done(())] {
            assert_eq!(Trouble::of(&record(state)), None);
        }
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let trouble = Trouble::new("ü".repeat(LONGEST), Timestamp::UNIX_EPOCH);
        assert_eq!(trouble.message, "ü".repeat(LONGEST / 2));
        assert_eq!(Trouble::new(format!("x{}", "ü".repeat(LONGEST)), Timestamp::UNIX_EPOCH).message.len(), 1023);
    }
}
