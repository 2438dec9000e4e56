//! Gives a volume's files to a group, as a pod's `fsGroup` asks.

mod walk;

use std::path::PathBuf;

use async_trait::async_trait;

pub(crate) use walk::own_open;

use crate::linux::apart;
use crate::patience::Waiter;
use crate::{Counting, LinuxMounter, Progress, Result};

/// When the files of a volume are walked at all: a pod's `fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangePolicy {
    /// Only if the root's group or permissions are not as they should be.
    OnRootMismatch,
    /// At each mount.
    Always,
}

/// Which files go to which group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnershipWalk {
    /// The volume's root, as the pod will see it.
    pub root: PathBuf,
    /// The pod's `fsGroup`.
    pub gid: u32,
    /// Whether the group needs to read only.
    pub read_only: bool,
    /// Whether a root that fits speaks for all that is below it.
    pub policy: ChangePolicy,
}

impl OwnershipWalk {
    /// A file's mode with what it lacks; a link has none of its own.
    pub fn wanted_mode(&self, mode: u32, is_dir: bool) -> u32 {
        let group = if self.read_only { 0o440 } else { 0o660 };
        mode | group | if is_dir { 0o2110 } else { 0 }
    }

    /// Whether a root with this group and mode needs no walk.
    pub fn fits(&self, gid: u32, mode: u32, is_dir: bool) -> bool {
        is_dir && gid == self.gid && self.wanted_mode(mode, true) == mode
    }
}

/// What came of a walk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    /// Whether the root was as it should be, and nothing was walked.
    pub skipped: bool,
    /// Files and directories that were looked at.
    pub entries: u64,
    /// How many of them could not be changed.
    pub refused: u64,
    /// The first of these, and why; for the log.
    pub first_refused: Option<String>,
}

/// The part of the port that changes owners.
#[async_trait]
pub trait Ownership: Send + Sync {
    /// Gives everything in a volume, and the volume's root last of all, to a group. No link is followed and no other mount
    /// is entered. What cannot be changed is counted and gone past; that something cannot be listed is an error. Ends when
    /// the answer is no longer waited for, and is then begun anew, because the root does not fit yet.
    async fn own(&self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned>;
}

#[async_trait]
impl Ownership for LinuxMounter {
    async fn own(&self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned> {
        let (_waiter, waiting) = Waiter::new();
        let (walk, progress) = (walk.clone(), progress.clone());
        // Of millions of files it takes minutes.
        apart(move || walk::own(&walk, &progress, &waiting)).await
    }
}

#[async_trait]
impl Ownership for Counting {
    async fn own(&self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned> {
        self.change("own", &walk.root, self.inner().own(walk, progress)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_149_a_root_fits_by_group_by_all_its_permissions_and_by_the_bit_that_passes_its_group_on() {
        let writes =
            OwnershipWalk { root: "/v".into(), gid: 5, read_only: false, policy: ChangePolicy::OnRootMismatch };
        let reads = OwnershipWalk { read_only: true, ..writes.clone() };
        for (walk, gid, mode, is_dir, fits) in [
            (&writes, 5, 0o2770, true, true),
            (&writes, 5, 0o2775, true, true),
            (&writes, 5, 0o3777, true, true),
            (&writes, 6, 0o2770, true, false),
            (&writes, 5, 0o0770, true, false),
            (&writes, 5, 0o2750, true, false),
            (&writes, 5, 0o2760, true, false),
            (&writes, 5, 0o2070, true, false),
            (&writes, 5, 0o2770, false, false),
            (&reads, 5, 0o2550, true, true),
            (&reads, 5, 0o2540, true, false),
            (&reads, 5, 0o0550, true, false),
        ] {
            assert_eq!(walk.fits(gid, mode, is_dir), fits, "{gid} {mode:o} {is_dir} {}", walk.read_only);
        }
        assert_eq!(writes.wanted_mode(0o600, false), 0o660);
        assert_eq!(reads.wanted_mode(0o400, false), 0o440);
        assert_eq!(writes.wanted_mode(0o700, true), 0o2770);
    }
}
