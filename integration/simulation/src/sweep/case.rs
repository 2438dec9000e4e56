//! One life with one fault, as it is named.

use std::fmt;
use std::str::FromStr;

use stowage_testing::Fault;

use crate::life::Life;

/// What else happens at the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// Nothing; a stopped service comes back at once.
    None,
    /// A stopped service comes back when everybody else has done all they can.
    LateRestart,
    /// What it is about is deleted; a stopped service comes back at once.
    Deleted,
    /// Both.
    DeletedLateRestart,
}

impl Twist {
    pub(super) const ALL: [Self; 4] = [Self::None, Self::LateRestart, Self::Deleted, Self::DeletedLateRestart];

    /// Whether what it is about is deleted.
    pub fn deletes(self) -> bool {
        matches!(self, Self::Deleted | Self::DeletedLateRestart)
    }

    /// Whether a stopped service comes back late.
    pub fn is_late(self) -> bool {
        matches!(self, Self::LateRestart | Self::DeletedLateRestart)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "alone",
            Self::LateRestart => "late-restart",
            Self::Deleted => "deleted",
            Self::DeletedLateRestart => "deleted-late-restart",
        }
    }
}

/// Written as `Immediate/attacher:3:before/deleted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case<L> {
    pub kind: L,
    pub fault: Fault,
    pub twist: Twist,
}

impl<L: Life> fmt::Display for Case<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}/{}", self.kind, self.fault, self.twist.as_str())
    }
}

impl<L: Life> FromStr for Case<L> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let twists = Twist::ALL.map(Twist::as_str).join(", ");
            let lives: Vec<String> = L::ALL.iter().map(|kind| format!("{kind:?}")).collect();
            let lives = lives.join(", ");
            format!(
                "{text:?} is no case; write LIFE/SERVICE:NUMBER:MODE/TWIST with a life of {lives} and a twist of {twists}"
            )
        };
        let parts: Vec<&str> = text.split('/').collect();
        let [kind, fault, twist] = parts[..] else { return Err(wrong()) };
        Ok(Self {
            kind: L::ALL.iter().copied().find(|known| format!("{known:?}") == kind).ok_or_else(wrong)?,
            fault: fault.parse().map_err(|error: <Fault as FromStr>::Err| error.to_string())?,
            twist: Twist::ALL.into_iter().find(|known| known.as_str() == twist).ok_or_else(wrong)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth_life::Kind;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in [
            "Online/resizer:3:before/alone",
            "Online/volume-manager@node-b:3:after/late-restart",
            "TakenBack/resizer:7:answer-lost/deleted-late-restart",
        ] {
            assert_eq!(text.parse::<Case<Kind>>().unwrap().to_string(), text);
        }
        for text in ["Sometimes/resizer:3:before/alone", "Online/resizer:3:before/maybe", "Online"] {
            assert!(text.parse::<Case<Kind>>().is_err());
        }
    }
}
