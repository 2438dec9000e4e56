//! Where and how a service is stopped.

use std::fmt;
use std::str::FromStr;

/// What goes wrong at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The service is stopped just before it acts.
    Before,
    /// It acts, gets the answer, and is stopped before it does anything else.
    After,
    /// It acts, and is stopped before the answer arrives.
    AnswerLost,
    /// It acts and lives on, but the answer is an error of the connection.
    AnswerLostAlive,
    /// It lives on, but what it asked for never arrived: the answer is the same error.
    RequestLost,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 5] = [Self::Before, Self::After, Self::AnswerLost, Self::AnswerLostAlive, Self::RequestLost];

    /// Whether the service is stopped.
    pub fn stops(self) -> bool {
        !matches!(self, Self::AnswerLostAlive | Self::RequestLost)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::AnswerLost => "answer-lost",
            Self::AnswerLostAlive => "answer-lost-alive",
            Self::RequestLost => "request-lost",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A mode at the n-th point of a service; written as `attacher:3:before`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Whose point.
    pub service: String,
    /// Which of its points, from 1.
    pub number: usize,
    /// What goes wrong there.
    pub mode: Mode,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.service, self.number, self.mode)
    }
}

/// A text that is no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no fault; write SERVICE:NUMBER:MODE with a mode of before, after, answer-lost, answer-lost-alive")]
pub struct ParseFault {
    text: String,
}

impl FromStr for Fault {
    type Err = ParseFault;

    fn from_str(text: &str) -> Result<Self, ParseFault> {
        let wrong = || ParseFault { text: text.to_owned() };
        let parts: Vec<&str> = text.split(':').collect();
        let [service, number, mode] = parts[..] else { return Err(wrong()) };
        let mode = Mode::ALL.into_iter().find(|known| known.as_str() == mode).ok_or_else(wrong)?;
        Ok(Self { service: service.to_owned(), number: number.parse().map_err(|_| wrong())?, mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        for mode in Mode::ALL {
            let fault = Fault { service: "pv-controller".into(), number: 12, mode };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        for text in ["", "a:1", "a:x:before", "a:1:sideways"] {
            assert!(text.parse::<Fault>().unwrap_err().to_string().contains("is no fault"));
        }
    }
}
