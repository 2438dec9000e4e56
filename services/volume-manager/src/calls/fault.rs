//! How a step ends when it does not end well, and what that says about the mount.

use stowage_csi::code::{self, Outcome};
use stowage_runtime::caller::{Refused, Rpc};
use stowage_runtime::operation::{Ended, Failure};

/// Why a step towards or away from a mount did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Before the driver was called: everything is as it was.
    #[error("{0}")]
    Before(String),
    #[error("{rpc}: {} ({})", status.message(), code::name(status.code()))]
    Call { rpc: &'static str, outcome: Outcome, status: Box<tonic::Status> },
    /// After the driver was called: the mount or its traces may be there.
    #[error("{0}")]
    After(String),
}

impl Fault {
    pub fn before(what: &str) -> impl FnOnce(stowage_mount::Error) -> Self {
        move |error| Self::Before(format!("{what}: {error}"))
    }

    pub fn after(what: &str) -> impl FnOnce(stowage_mount::Error) -> Self {
        move |error| Self::After(format!("{what}: {error}"))
    }

    /// What the call needs cannot be had.
    pub fn unsent(failure: Failure) -> Self {
        Self::Before(failure.message)
    }

    pub fn call(rpc: Rpc) -> impl FnOnce(Refused) -> Self {
        move |refused| match refused {
            Refused::Unsent(failure) => Self::unsent(failure),
            Refused::Answered { status, outcome } => Self::Call { rpc: rpc.name(), outcome, status: Box::new(status) },
        }
    }

    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Before(_) => false,
            Self::Call { outcome, .. } => outcome.may_be_running(),
            Self::After(_) => true,
        }
    }

    pub fn ended(&self) -> Ended<()> {
        let code = match self {
            Self::Before(_) | Self::After(_) => "Node".to_owned(),
            Self::Call { status, .. } => code::name(status.code()).to_owned(),
        };
        let failure = Failure { code, message: self.to_string() };
        if self.is_uncertain() { Ended::Uncertain(failure) } else { Ended::Failed(failure) }
    }
}
