//! What is told about objects: the steps of their life, and why they do not go on.

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::{Key, Kind};

use super::gathered::Unread;

/// How it stands with an object; the worst of its causes counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is where it should be.
    Fine,
    /// Something is under way, and not for long.
    Working,
    /// It waits for a user, as it was told to.
    Waiting,
    /// It does not go on.
    Stuck,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Stuck => "stuck",
        }
    }
}

/// Where a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Done,
    Here,
    NotYet,
}

impl Mark {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Here => "here",
            Self::NotYet => "not yet",
        }
    }
}

/// One step of a life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    pub mark: Mark,
    pub since: Option<Timestamp>,
}

/// Whether the component that must act is alive, as its Lease tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// It elects none: a kubelet, or a user.
    None,
    /// Leases may not be read.
    Unread,
    /// There is no Lease of these names: it runs without an election, or not at all.
    Absent { names: Vec<String> },
    /// Its last holder has given it back.
    Released { lease: Key, renewed: Option<Timestamp> },
    /// It was renewed at a time that has not come: a clock is wrong, or somebody lies.
    Ahead { lease: Key },
    /// Nobody holds it any more, and the component has worked since: it runs without an election now.
    Abandoned { lease: Key, renewed: Timestamp },
    /// Its holder has not renewed it in time.
    Stale { lease: Key, holder: String, renewed: Option<Timestamp> },
    /// Its holder is alive.
    Alive { lease: Key, holder: String, renewed: Option<Timestamp> },
}

/// Who must act next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub component: String,
    pub leader: Leader,
}

impl Who {
    pub fn user() -> Self {
        Self::named("you")
    }

    /// Whoever it is can only be told by what was not read.
    pub fn unknown() -> Self {
        Self::named("unknown")
    }

    pub fn named(component: impl Into<String>) -> Self {
        Self { component: component.into(), leader: Leader::None }
    }
}

/// Why something does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// A stable word for machines.
    pub id: &'static str,
    pub state: State,
    /// The sentence, with object, field and value.
    pub why: String,
    pub who: Who,
    /// What to do about it.
    pub way_out: String,
}

impl Cause {
    pub fn stuck(id: &'static str, who: Who, why: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { id, state: State::Stuck, why: why.into(), who, way_out: way_out.into() }
    }

    pub fn waiting(id: &'static str, who: Who, why: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { state: State::Waiting, ..Self::stuck(id, who, why, way_out) }
    }
}

/// The life of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    pub kind: Kind,
    pub key: Key,
    /// Its phase, as kubectl shows it.
    pub phase: String,
    /// Since when it is where it is, as far as its objects tell.
    pub since: Option<Timestamp>,
    pub steps: Vec<Step>,
    /// The most exact first.
    pub causes: Vec<Cause>,
}

impl Story {
    pub fn state(&self) -> State {
        self.causes.iter().map(|cause| cause.state).max().unwrap_or(State::Fine)
    }
}

/// What is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub now: Timestamp,
    /// Whether one object was asked about, and not all.
    pub is_of_one: bool,
    pub stories: Vec<Story>,
    /// What may not be read.
    pub unread: Vec<Unread>,
}

impl Report {
    pub fn is_stuck(&self) -> bool {
        self.stories.iter().any(|story| story.state() == State::Stuck)
    }
}

/// A span as people say it: `45s`, `3m12s`, `5h`, `12d`.
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..600 if seconds % 60 != 0 => format!("{minutes}m{}s", seconds % 60),
        60..7_200 => format!("{minutes}m"),
        7_200..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// How long ago that was.
pub fn ago(at: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(at))
}
