//! How calls are to go wrong.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tonic::Code;

/// What happens to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It goes as it should.
    Succeed,
    /// It is refused with this code and sentence, and nothing is done.
    Fail(Code, String),
    /// Nothing is done and no answer ever comes: the caller's deadline ends it.
    Hang,
    /// It is done, but no answer ever comes.
    DoneThenHang,
    /// It is done, but the answer is this error.
    DoneThenFail(Code, String),
    /// It is done after a while.
    Slow(Duration),
}

impl Step {
    /// A refusal.
    pub fn fail(code: Code, message: impl Into<String>) -> Self {
        Self::Fail(code, message.into())
    }
}

/// The steps that wait, per RPC.
#[derive(Debug, Default)]
pub(super) struct Script(BTreeMap<String, VecDeque<Step>>);

impl Script {
    pub(super) fn add(&mut self, rpc: &str, steps: impl IntoIterator<Item = Step>) {
        self.0.entry(rpc.to_owned()).or_default().extend(steps);
    }

    pub(super) fn next(&mut self, rpc: &str) -> Step {
        self.0.get_mut(rpc).and_then(VecDeque::pop_front).unwrap_or(Step::Succeed)
    }
}
