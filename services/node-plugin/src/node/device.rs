//! One volume on this node, brought up to a mount and taken down again.
//!
//! Bringing up goes: record, loop device, file system, mount; taking down goes back. Each step first looks whether it
//! is done, so a call after a kill goes on where the last one ended, and taking down works from any point.

use std::path::Path;

use stowage_mount::{Content, FileKind, FileSystem, LoopDevice, LoopOptions, MountOptions, Space, Target};

use super::Error;
use super::options::{careful, mkfs_words, options};
use super::paths::hold;
use crate::driver::Shared;
use crate::parameters::check_mkfs_options;
use crate::pool::{self, Pool};
use crate::staging::{DEVICE, Form, Staging, Tag, View, device_node};
use crate::volume::{AS_LARGE, Record, VolumeId};
use crate::{token, tuning};

pub struct Volume<'a> {
    pub shared: &'a Shared,
    pub pool: &'a Pool,
    pub id: &'a VolumeId,
}

impl Volume<'_> {
    pub(super) fn name(&self) -> String {
        self.id.to_string()
    }

    fn tag(&self) -> Tag {
        Tag::new(self.pool, self.id, &self.shared.node)
    }

    pub async fn look(&self) -> Result<View, Error> {
        Ok(View::look(self.shared, self.pool, self.id).await?)
    }

    pub async fn load(&self) -> Result<Option<Staging>, Error> {
        Ok(self.pool.load_file(&self.pool.staged(self.id, &self.shared.node)).await?)
    }

    /// Takes down what is held under an old token: others may have written since, so nothing of it may be used again.
    pub async fn drop_stale(&self, token: &str) -> Result<(), Error> {
        let view = self.look().await?;
        let tag = self.tag();
        let current = [tag.with_token(token), tag.for_readers(token)];
        let stale: Vec<_> = view.ours.iter().filter(|device| !current.contains(&device.tag)).collect();
        match self.load().await? {
            Some(staging) if staging.token != token && !stale.is_empty() => self.take_down(&staging.path).await,
            _ => {
                let leaving = view.leaving().filter(|device| current.contains(&device.tag));
                self.detach(stale.into_iter().chain(leaving)).await
            }
        }
    }

    /// A device that others still have open or mounted goes on serving the image: until it is gone, the volume is not
    /// free.
    async fn detach(&self, devices: impl Iterator<Item = &LoopDevice>) -> Result<(), Error> {
        for device in devices {
            match self.shared.host.detach_loop(device).await {
                Err(stowage_mount::Error::KeepLoop { device }) => {
                    return Err(Error::StillOpen { volume: self.name(), device });
                }
                // It went after we had looked, and somebody else has its number now.
                Err(stowage_mount::Error::DetachForeign { .. }) if device.autoclear => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Refuses if the data is missing, or somebody else has the image or the path.
    pub async fn check_free(&self, view: &View, wanted: &Staging) -> Result<(), Error> {
        let there = match wanted.form {
            Form::Directory => {
                let directory = self.shared.host.stat(&self.pool.directory(self.id)).await?;
                directory.is_some_and(|directory| directory.kind == FileKind::Directory)
            }
            Form::FileSystem | Form::Block => view.image.is_some_and(|image| image.kind == FileKind::File),
        };
        if !there {
            return Err(Error::FindData { volume: self.name() });
        }
        if let Some(device) = view.foreign.first() {
            return Err(Error::TakeImage { volume: self.name(), device: device.path.display().to_string() });
        }
        if let Some(device) = view.leaving().next() {
            return Err(Error::StillOpen { volume: self.name(), device: device.path.clone() });
        }
        let mount_point = wanted.mount_point();
        for path in [&wanted.path, &mount_point] {
            if let Some(mount) = view.table.at(path).filter(|_| view.our_mount(path).is_none()) {
                return Err(Error::UsePath { path: path.clone(), mounted: mount.source.clone() });
            }
        }
        Ok(())
    }

    /// Brings the volume up, or leaves nothing: a final error code says that nothing is staged, and nobody would call
    /// unstage after it.
    pub async fn bring_up(
        &self,
        view: &View,
        wanted: &Staging,
        target: &Target,
        record: &Record,
        kind: FileSystem,
    ) -> Result<(), Error> {
        let Err(cause) = self.steps_up(view, wanted, target, record, kind).await else { return Ok(()) };
        Err(match self.take_down(&wanted.path).await {
            Ok(()) => cause,
            Err(source) => Error::Undo { cause: Box::new(cause), source: Box::new(source) },
        })
    }

    async fn steps_up(
        &self,
        view: &View,
        wanted: &Staging,
        target: &Target,
        record: &Record,
        kind: FileSystem,
    ) -> Result<(), Error> {
        let host = &self.shared.host;
        self.pool.store_file(&self.pool.staged(self.id, &self.shared.node), wanted).await?;
        let mounted = view.our_mount(&wanted.mount_point()).is_some() && !self.drop_preparation(view, wanted).await?;
        self.check_again(wanted, record).await?;
        if wanted.form == Form::Directory {
            return match mounted {
                true => Ok(()),
                false => {
                    let options = careful(&wanted.mount_flags);
                    Ok(host.bind_at(&self.pool.directory(self.id), target, &options).await?)
                }
            };
        }
        let tag = self.tag().with_token(&wanted.token);
        // Somebody has taken the mount away while pods see the volume: what they use is neither checked nor made anew.
        let in_use = view.device(&tag).is_some() && view.elsewhere(&wanted.mount_point()).is_some();
        let fresh = match wanted.form == Form::FileSystem && !mounted && !in_use {
            true => self.blank_if_cut_short(view, record).await?,
            false => None,
        };
        let view = fresh.as_ref().unwrap_or(view);
        let device = self.attach(view, &tag, false, record).await?;
        if wanted.form == Form::Block {
            self.tune(&device, record).await?;
            if !mounted {
                self.allocate(&device, record).await?;
                let moved = || stowage_mount::Error::Moved { path: wanted.mount_point() };
                let node = host.enter(target, DEVICE).await?.ok_or_else(moved)?;
                host.make_file_at(&node).await?;
                host.bind_at(&device.path, &node, &MountOptions::default()).await?;
            }
            return Ok(());
        }
        if !mounted {
            if !in_use {
                self.make_or_check(&device, kind, record, wanted, target).await?;
                self.allocate(&device, record).await?;
                self.tune(&device, record).await?;
            }
            self.check_again(wanted, record).await?;
            let options = options(&wanted.mount_flags, record);
            host.mount_at(&device.path.to_string_lossy(), target, kind.name(), &options).await?;
        }
        self.grow_if_allowed(&device, kind, target).await
    }

    /// What this pool cannot do is no reason to have no volume.
    async fn tune(&self, device: &LoopDevice, record: &Record) -> Result<(), Error> {
        for part in record.tuning.parts() {
            match tuning::apply(&*self.shared.host, device, part).await {
                Err(error) if error.is_unsupported() => {
                    tracing::warn!(volume = %self.id, %error, "the volume is not tuned as it should be");
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// A node that stood still for a while may have lost the volume since the call began: it is asked once more before
    /// anything on the image changes. What is left is the moment between this and the change.
    pub(super) async fn check_again(&self, wanted: &Staging, record: &Record) -> Result<(), Error> {
        let holds = |record: &Record| record.attachments.iter().any(|attachment| attachment.token == wanted.token);
        if !holds(record) || self.pool.load(self.id).await?.as_ref().is_some_and(holds) {
            return Ok(());
        }
        Err(Error::CheckToken { volume: self.name(), source: token::Error::Stale })
    }

    /// A kill while a copy was prepared (see `renew_id`) leaves it mounted as no pod may see it; tells whether it did.
    async fn drop_preparation(&self, view: &View, wanted: &Staging) -> Result<bool, Error> {
        if wanted.form != Form::FileSystem || !self.pool.exists(&self.pool.fresh(self.id)).await? {
            return Ok(false);
        }
        self.unmount(view, &wanted.path).await?;
        Ok(true)
    }

    /// Unmounts what the table showed of the volume at a path, and nothing that has come there since. A copy goes with its
    /// original.
    async fn unmount(&self, view: &View, path: &Path) -> Result<(), Error> {
        let host = &self.shared.host;
        let seen: Vec<_> = view.copies(path).collect();
        // The topmost first.
        for mount in seen.iter().rev() {
            let (target, place) = hold(self.shared, &mount.target).await?;
            if let (Some(target), Some(place)) = (target, place)
                && place.is_mount
                && place.mount == u64::from(mount.id)
            {
                host.unmount_at(&target).await?;
            }
        }
        let left = host.mounts().await?;
        match left.iter().find(|mount| seen.iter().any(|seen| seen.id == mount.id && seen.device == mount.device)) {
            Some(mount) => Err(stowage_mount::Error::Moved { path: mount.target.clone() }.into()),
            None => Ok(()),
        }
    }

    /// The device with this tag, which is made if it is not there and grows with its image.
    pub async fn attach(&self, view: &View, tag: &str, read_only: bool, record: &Record) -> Result<LoopDevice, Error> {
        let host = &self.shared.host;
        let Some(device) = view.device(tag) else {
            let direct_io = record.tuning.direct_io.unwrap_or(true);
            let sector_bytes = record.sector_bytes;
            let options = LoopOptions { read_only, direct_io, discard: record.thin, sector_bytes };
            return Ok(host.attach_loop(&self.pool.image(self.id), tag, options).await?);
        };
        match view.image.is_some_and(|image| image.size > device.size) {
            true => Ok(host.refresh_loop(device).await?),
            false => Ok(device.clone()),
        }
    }

    /// A mkfs that was cut short leaves a marker in the pool, for whichever node comes next. Before its end there was no
    /// data, so it is begun again on a new image: what is left of the old one can mislead a mkfs (btrfs), and may still be
    /// written by a program that takes its time to die.
    async fn blank_if_cut_short(&self, view: &View, record: &Record) -> Result<Option<View>, Error> {
        let host = &self.shared.host;
        if !self.pool.exists(&self.pool.formatting(self.id)).await? {
            return Ok(None);
        }
        self.detach(view.ours.iter()).await?;
        let bytes = view.image.map_or(0, |image| image.size).max(record.capacity_bytes);
        let space = if record.thin { Space::Sparse } else { Space::Allocated };
        host.make_image(&self.pool.image(self.id), bytes, space).await?;
        Ok(Some(self.look().await?))
    }

    /// A file system is made once, on a device that holds nothing.
    async fn make_or_check(
        &self,
        device: &LoopDevice,
        kind: FileSystem,
        record: &Record,
        wanted: &Staging,
        target: &Target,
    ) -> Result<(), Error> {
        let host = &self.shared.host;
        let marker = self.pool.formatting(self.id);
        match host.probe(&device.path).await? {
            Content::FileSystem(found) if found == kind => {
                self.finish_growth(device, kind).await?;
                host.check_filesystem(&device.path, kind).await?;
                let fresh = self.pool.fresh(self.id);
                let Some(mark) = host.read_file(&fresh).await? else {
                    return self.grow_unmounted(device, kind, record, wanted).await;
                };
                self.renew_id(device, kind, target).await?;
                match mark == AS_LARGE {
                    true => self.grow_unmounted(device, kind, record, wanted).await?,
                    false => self.grow_copy(device, kind, record, wanted).await?,
                }
                return Ok(host.remove_file(&fresh).await?);
            }
            // Not only where signatures are: whoever has lost the head of his data still has the rest.
            Content::Blank if host.is_zero(&self.pool.image(self.id)).await? => {}
            found => {
                let found = if found == Content::Blank { Content::Unknown } else { found };
                return Err(Error::TrustContent { volume: self.name(), wanted: format!("nothing or {kind}"), found });
            }
        }
        // The record may have been written by somebody else than this driver.
        check_mkfs_options(&record.mkfs_options, kind).map_err(Error::ServeFileSystem)?;
        host.write_file(&marker, kind.name().as_bytes()).await?;
        host.make_filesystem(&device.path, kind, &mkfs_words(kind, record)).await?;
        // The marker may be another node's by now.
        self.check_again(wanted, record).await?;
        // A copy of a volume that nobody had used has nobody's identity.
        host.remove_file(&self.pool.fresh(self.id)).await?;
        Ok(host.remove_file(&marker).await?)
    }

    /// A thick volume gets back what discards or zeroing have made holes of, where the kernel let them through.
    async fn allocate(&self, device: &LoopDevice, record: &Record) -> Result<(), Error> {
        if record.thin {
            return Ok(());
        }
        match self.shared.host.grow_image(&self.pool.image(self.id), device.size, Space::Allocated).await {
            Err(error) if error.is_out_of_space() => {
                tracing::warn!(volume = %self.id, %error, "the volume has less space than it was promised");
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// A copy still has its original's identity, with which the two could not be mounted on one node. The controller
    /// leaves a marker on copies; it goes after this, and doing it twice does no harm.
    async fn renew_id(&self, device: &LoopDevice, kind: FileSystem, free: &Target) -> Result<(), Error> {
        let host = &self.shared.host;
        if kind == FileSystem::Xfs {
            // The copy of a file system in use has a log to replay, which only mounting does.
            let source = device.path.to_string_lossy();
            host.mount_at(&source, free, kind.name(), &careful(&["nouuid".to_owned()])).await?;
            host.unmount_at(free).await?;
        }
        Ok(host.renew_filesystem_id(&device.path, kind).await?)
    }

    /// Undoes bringing up from whatever point it had reached; never while pods still see the volume.
    pub async fn take_down(&self, path: &Path) -> Result<(), Error> {
        let host = &self.shared.host;
        let view = self.look().await?;
        if let Some(mount) = view.table.at(path).filter(|_| view.our_mount(path).is_none()) {
            return Err(Error::UsePath { path: path.into(), mounted: mount.source.clone() });
        }
        let node = device_node(path);
        let mount_point = if view.our_mount(&node).is_some() { &node } else { path };
        if let Some(mount) = view.elsewhere(mount_point) {
            return Err(Error::StillPublished { volume: self.name(), path: mount.target.clone() });
        }
        self.unmount(&view, mount_point).await?;
        match hold(self.shared, &node).await {
            // The path is an old record's, and what led there was replaced.
            Err(error) if error.is_moved() => {}
            other => match other? {
                (Some(node), Some(place)) if place.kind == FileKind::File && !place.is_mount => {
                    host.remove_file_at(&node).await?;
                }
                _ => {}
            },
        }
        self.detach(view.ours.iter()).await?;
        // Without its pool there is no record to remove either; the devices are what matters.
        match self.pool.open().await {
            Ok(()) => match self.forget().await {
                // Nothing is staged any more, whatever a record says that nobody can remove; the next stage replaces it.
                Err(error) if error.is_read_only() => {
                    tracing::warn!(volume = %self.id, %error, "the record of its staging stays");
                    Ok(())
                }
                other => Ok(other?),
            },
            Err(error) if view.image.is_none() => {
                tracing::warn!(volume = %self.id, %error, "unstaged without its pool");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn forget(&self) -> Result<(), pool::Error> {
        self.pool.forget_alone(self.id, &self.shared.node).await?;
        self.pool.remove(&self.pool.staged(self.id, &self.shared.node)).await
    }
}
