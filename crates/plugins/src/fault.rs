//! How a step of a plugin ends when it does not end well, and what that says about the volume.

use stowage_csi::code::{self, Outcome};
use stowage_runtime::caller::{Refused, Rpc};
use stowage_runtime::operation::{Ended, Failure};

/// What a failure says about the state of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Nothing was begun: everything is as it was.
    Transient,
    /// It failed, and nothing of it is there.
    Final,
    /// It may be there, or be on its way.
    Uncertain,
}

/// Why a step towards or away from a volume did not end well.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What it says about the volume.
    pub certainty: Certainty,
    /// The gRPC code's name, or our own.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What a driver's answer meant, where one answered.
    pub outcome: Option<Outcome>,
}

impl Fault {
    /// The code of a device that holds another file system than is asked for, and cannot be mounted.
    pub const OTHER_FILE_SYSTEM: &str = "FilesystemMismatch";

    /// The code of what cannot be done like this, whoever tries again.
    pub const REFUSED: &str = "Refused";

    /// Nothing was begun.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::new(Certainty::Transient, "NotBegun", message)
    }

    /// It cannot be done like this, and nothing of it is there.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Certainty::Final, Self::REFUSED, message)
    }

    /// Something of it may be there.
    pub fn uncertain(message: impl Into<String>) -> Self {
        Self::new(Certainty::Uncertain, "Uncertain", message)
    }

    fn new(certainty: Certainty, code: &str, message: impl Into<String>) -> Self {
        Self { certainty, code: code.to_owned(), message: message.into(), outcome: None }
    }

    /// A failure of this machine before anything was begun, as in `.map_err(Fault::before("make the directory"))`.
    pub fn before(what: &str) -> impl FnOnce(stowage_mount::Error) -> Self {
        move |error| Self::transient(format!("{what}: {error}"))
    }

    /// A failure of this machine after which nobody knows.
    pub fn after(what: &str) -> impl FnOnce(stowage_mount::Error) -> Self {
        move |error| Self::uncertain(format!("{what}: {error}"))
    }

    /// What a call needs cannot be had.
    pub fn unsent(Failure { code, message }: Failure) -> Self {
        Self { certainty: Certainty::Transient, code, message, outcome: None }
    }

    /// What a driver, or the way to it, said.
    pub fn call(rpc: Rpc) -> impl FnOnce(Refused) -> Self {
        move |refused| match refused {
            Refused::Unsent(failure) => Self::unsent(failure),
            Refused::Answered { status, outcome } => {
                let code = code::name(status.code());
                Self {
                    certainty: if outcome.may_be_running() { Certainty::Uncertain } else { Certainty::Final },
                    code: code.to_owned(),
                    message: format!("{}: {} ({code})", rpc.name(), status.message()),
                    outcome: Some(outcome),
                }
            }
        }
    }

    /// The same, whatever the step itself thought of it.
    pub fn with_certainty(self, certainty: Certainty) -> Self {
        Self { certainty, ..self }
    }

    /// How an operation ends by it.
    pub fn ended<R>(&self) -> Ended<R> {
        let failure = Failure { code: self.code.clone(), message: self.message.clone() };
        match self.certainty {
            Certainty::Uncertain => Ended::Uncertain(failure),
            Certainty::Transient | Certainty::Final => Ended::Failed(failure),
        }
    }
}
