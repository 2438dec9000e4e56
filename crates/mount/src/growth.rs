//! Growing a file system that nobody has mounted, and the right to grow a mounted one.

use std::fs;
use std::path::Path;

use async_trait::async_trait;

use crate::files::failed;
use crate::linux::{blocking, on};
use crate::{Counting, FileSystem, LinuxMounter, Result, Room, filesystem};

/// The part of the port that lets unmounted file systems grow.
///
/// A growth is planned first, which changes nothing but a file of its own: the plan is there whole and durable, or not at
/// all. Carrying it out can be repeated from any point at which a kill or a loss of power has ended it.
#[async_trait]
pub trait Growth: Send + Sync {
    /// Whether this process may grow a mounted file system of this kind.
    async fn may_grow_mounted(&self, kind: FileSystem) -> Result<bool>;

    /// Where the ext file system on a device, mounted or not, finds what it needs to fill it while it is not mounted.
    async fn room_to_grow(&self, device: &Path) -> Result<Room>;

    /// How many bytes such a plan may take while it is made, as far as that can be told; `shares`: where files share blocks.
    async fn scratch_to_grow(&self, device: &Path, shares: bool) -> Result<u64>;

    /// Writes down what must change on a device for its ext file system to fill it; `false` if it does.
    async fn plan_growth(&self, device: &Path, plan: &Path) -> Result<bool>;

    /// Carries out such a plan; `false`, and nothing is changed, if the file system is not the planned one any more.
    async fn carry_out_growth(&self, plan: &Path, device: &Path) -> Result<bool>;

    /// Checks an unmounted file system also where it says of itself that it is whole, and repairs what is safe to repair.
    async fn check_wholly(&self, device: &Path, kind: FileSystem) -> Result<()>;
}

#[async_trait]
impl Growth for LinuxMounter {
    async fn may_grow_mounted(&self, kind: FileSystem) -> Result<bool> {
        blocking(move || may_grow(kind)).await
    }

    async fn room_to_grow(&self, device: &Path) -> Result<Room> {
        on(device, filesystem::room_to_grow).await
    }

    async fn scratch_to_grow(&self, device: &Path, shares: bool) -> Result<u64> {
        let device = device.to_owned();
        blocking(move || filesystem::scratch_to_grow(&device, shares)).await
    }

    async fn plan_growth(&self, device: &Path, plan: &Path) -> Result<bool> {
        let (device, plan) = (device.to_owned(), plan.to_owned());
        blocking(move || filesystem::plan_growth(&device, &plan)).await
    }

    async fn carry_out_growth(&self, plan: &Path, device: &Path) -> Result<bool> {
        let (device, plan) = (device.to_owned(), plan.to_owned());
        blocking(move || filesystem::carry_out_growth(&plan, &device)).await
    }

    async fn check_wholly(&self, device: &Path, kind: FileSystem) -> Result<()> {
        let device = device.to_owned();
        blocking(move || filesystem::check_wholly(&device, kind)).await
    }
}

#[async_trait]
impl Growth for Counting {
    async fn may_grow_mounted(&self, kind: FileSystem) -> Result<bool> {
        self.look()?.may_grow_mounted(kind).await
    }

    async fn room_to_grow(&self, device: &Path) -> Result<Room> {
        self.look()?.room_to_grow(device).await
    }

    async fn scratch_to_grow(&self, device: &Path, shares: bool) -> Result<u64> {
        self.look()?.scratch_to_grow(device, shares).await
    }

    async fn plan_growth(&self, device: &Path, plan: &Path) -> Result<bool> {
        self.change("plan_growth", device, self.inner().plan_growth(device, plan)).await
    }

    async fn carry_out_growth(&self, plan: &Path, device: &Path) -> Result<bool> {
        self.change("carry_out_growth", device, self.inner().carry_out_growth(plan, device)).await
    }

    async fn check_wholly(&self, device: &Path, kind: FileSystem) -> Result<()> {
        self.change("check_wholly", device, self.inner().check_wholly(device, kind)).await
    }
}

/// For ext the kernel wants more than the right to mount.
fn may_grow(kind: FileSystem) -> Result<bool> {
    match kind {
        FileSystem::Xfs | FileSystem::Btrfs => Ok(true),
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => {
            let path = Path::new("/proc/self/status");
            let status = fs::read_to_string(path).map_err(failed("read the rights of this process in", path))?;
            Ok(has_sys_resource(&status))
        }
    }
}

fn has_sys_resource(status: &str) -> bool {
    /// Bit of CAP_SYS_RESOURCE in the capability sets.
    const SYS_RESOURCE: u32 = 24;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|mask| mask >> SYS_RESOURCE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_is_read_from_the_effective_set() {
        assert!(has_sys_resource("CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_sys_resource("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"));
        assert!(!has_sys_resource(""));
    }
}
