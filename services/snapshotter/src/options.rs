//! What a user can set, with the original's defaults.

use std::time::Duration;

use stowage_runtime::driver;

/// How the snapshotter runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How the driver is called. Its workers are calls at a time: to make and to look, and separately to delete.
    pub driver: driver::Options,
    /// Names of snapshots in the driver.
    pub snapshots: Names,
    /// Names of group snapshots in the driver.
    pub groups: Names,
    /// Whether the driver is told the names of the objects.
    pub extra_create_metadata: bool,
    /// The node whose contents are looked after, where every node runs a snapshotter of its own.
    pub node: Option<String>,
    /// Whether group snapshots are looked after at all.
    pub with_groups: bool,
}

/// How snapshots are named in the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The first part.
    pub prefix: String,
    /// How much of the uid of the user's object follows, without its dashes; `None` for all of it as it is.
    pub uuid_length: Option<usize>,
}

impl Names {
    /// All of the uid after this prefix.
    pub fn after(prefix: &str) -> Self {
        Self { prefix: prefix.into(), uuid_length: None }
    }

    /// The name of what is made for an object; deterministic, so that making it twice is noticed.
    pub fn name(&self, uid: &str) -> String {
        match self.uuid_length {
            None => format!("{}-{uid}", self.prefix),
            Some(length) => {
                let short: String = uid.chars().filter(|c| *c != '-').take(length).collect();
                format!("{}-{short}", self.prefix)
            }
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver: driver::Options { timeout: Duration::from_secs(60), ..driver::Options::default() },
            snapshots: Names::after("snapshot"),
            groups: Names::after("groupsnapshot"),
            extra_create_metadata: false,
            node: None,
            with_groups: true,
        }
    }
}
