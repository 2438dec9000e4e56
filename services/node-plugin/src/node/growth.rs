//! A file system that is smaller than its device: it was copied from a smaller volume, or the volume grew while it was
//! not mounted, or where a mounted one may not grow.

use stowage_mount::{FileSystem, LoopDevice, Room, Target};

use super::Error;
use super::device::Volume;
use crate::pool::{self, Promise};
use crate::staging::Staging;
use crate::volume::Record;

impl Volume<'_> {
    /// Grows a mounted file system.
    pub async fn grow(&self, device: &LoopDevice, kind: FileSystem, mounted: &Target) -> Result<(), Error> {
        let host = &self.shared.host;
        if !self.is_behind(device).await? || host.usage_at(mounted).await?.read_only {
            return Ok(());
        }
        match host.grow_filesystem(&device.path, kind, mounted.path()).await {
            Err(stowage_mount::Error::GrowWithoutRight { .. }) => {
                let volume = self.name();
                Err(match host.room_to_grow(&device.path).await? {
                    Room::Elsewhere(reason) => Error::GrowNever { volume, reason },
                    // Where there is none, resize2fs does not ask the kernel: somebody else has let it grow meanwhile.
                    Room::InPlace | Room::None => Error::GrowMounted { volume },
                })
            }
            other => Ok(other?),
        }
    }

    /// A volume that is smaller than it could be is better than none: who asks for its growth is refused until it grew.
    pub async fn grow_if_allowed(&self, device: &LoopDevice, kind: FileSystem, mounted: &Target) -> Result<(), Error> {
        match self.grow(device, kind, mounted).await {
            Err(error @ (Error::GrowMounted { .. } | Error::GrowNever { .. })) => {
                tracing::warn!(volume = %self.id, %error, "the file system keeps its size");
                Ok(())
            }
            other => other,
        }
    }

    /// What a kill has left of a growth, on whichever node, before anybody else reads what is half of one size; tells
    /// whether there was a plan and it was carried out.
    pub async fn finish_growth(&self, device: &LoopDevice, kind: FileSystem) -> Result<bool, Error> {
        let (host, plan) = (&self.shared.host, self.pool.growing(self.id));
        if !self.pool.exists(&plan).await? {
            return Ok(false);
        }
        let has_grown = host.carry_out_growth(&plan, &device.path).await?;
        if !has_grown {
            tracing::warn!(volume = %self.id, "a plan for a growth is not of this file system, and not carried out");
            // Somebody may have changed the superblock of what is half of one size, and a mark says nothing of that.
            host.check_wholly(&device.path, kind).await?;
        }
        host.remove_file(&plan).await?;
        Ok(has_grown)
    }

    /// Before it is mounted, where it could not grow afterwards. Also a copy that is as large as its source: if the file system
    /// of that was smaller than its image, nobody asks for more with the copy.
    pub async fn grow_unmounted(
        &self,
        device: &LoopDevice,
        kind: FileSystem,
        record: &Record,
        wanted: &Staging,
    ) -> Result<(), Error> {
        match self.plan_growth(device, kind, record).await {
            Err(Error::ChangeHost(error)) if error.is_busy() || error.is_uncertain() || error.is_moved() => {
                Err(error.into())
            }
            // The check before it believes a mark; this one has looked, and what it found is not for a pod.
            Err(Error::ChangeHost(error)) if error.is_failed_check() => Err(error.into()),
            // Nobody has been told the new size: the claim gets it when NodeExpandVolume succeeds.
            Err(error @ (Error::ChangeHost(_) | Error::PlanBesidePromises { .. })) => {
                tracing::warn!(volume = %self.id, %error, "the file system keeps its size");
                Ok(())
            }
            planned => self.carry_out(planned?, device, kind, record, wanted).await,
        }
    }

    /// A claim for a copy that is larger than its source has its size from the start, so the copy has it too or is not used.
    pub async fn grow_copy(
        &self,
        device: &LoopDevice,
        kind: FileSystem,
        record: &Record,
        wanted: &Staging,
    ) -> Result<(), Error> {
        let refused = |error| match error {
            Error::ChangeHost(source) => Error::GrowCopy { volume: self.name(), source },
            other => other,
        };
        let is_planned = self.plan_growth(device, kind, record).await.map_err(refused)?;
        self.carry_out(is_planned, device, kind, record, wanted).await
    }

    async fn plan_growth(&self, device: &LoopDevice, kind: FileSystem, record: &Record) -> Result<bool, Error> {
        let (host, plan) = (&self.shared.host, self.pool.growing(self.id));
        let Some(size) = host.filesystem_size(&device.path).await? else { return Ok(false) };
        if size >= device.size || host.may_grow_mounted(kind).await? {
            return Ok(false);
        }
        let _promise = match host.room_to_grow(&device.path).await? {
            Room::InPlace => self.set_aside(device, device.size - size, record).await?,
            Room::None | Room::Elsewhere(_) => None,
        };
        Ok(host.plan_growth(&device.path, &plan).await?)
    }

    /// What the plan takes while it is made must not be what others were promised. By what a thin volume is about to grow it
    /// was promised more than anybody can write in it before.
    async fn set_aside(&self, device: &LoopDevice, more: u64, record: &Record) -> Result<Option<Promise<'_>>, Error> {
        let shares = match self.pool.can_clone().await {
            // To find out takes a block.
            Err(error) if error.is_out_of_space() => false,
            answer => answer?,
        };
        let scratch = self.shared.host.scratch_to_grow(&device.path, shares).await?;
        let wanted = scratch.saturating_sub(if record.thin { more } else { 0 });
        if wanted == 0 {
            return Ok(None);
        }
        let (promise, free) = pool::set_aside(self.shared, self.pool, self.id.key(), wanted).await?;
        match wanted <= free.thick {
            true => Ok(Some(promise)),
            false => {
                let (volume, pool) = (self.name(), self.pool.name().into());
                Err(Error::PlanBesidePromises { volume, pool, free: free.thick, wanted })
            }
        }
    }

    /// A node that stood still meanwhile may have lost the volume. What it has planned then is of no use to the next one,
    /// which sees that, for its own mount has changed the superblock.
    async fn carry_out(
        &self,
        is_planned: bool,
        device: &LoopDevice,
        kind: FileSystem,
        record: &Record,
        wanted: &Staging,
    ) -> Result<(), Error> {
        if !is_planned {
            return Ok(());
        }
        self.check_again(wanted, record).await?;
        if !self.finish_growth(device, kind).await? {
            return Err(Error::LosePlan { volume: self.name() });
        }
        tracing::info!(volume = %self.id, bytes = device.size, "the file system grew before it was mounted");
        Ok(())
    }

    async fn is_behind(&self, device: &LoopDevice) -> Result<bool, Error> {
        let size = self.shared.host.filesystem_size(&device.path).await?;
        Ok(size.is_some_and(|size| size < device.size))
    }
}
