//! NodePublishVolume and NodeUnpublishVolume: a staged volume is shown at a pod's path.

use std::path::{Path, PathBuf};

use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use stowage_mount::{FileKind, MountOptions, Place, Target};

use super::Error;
use super::device::Volume;
use super::paths::{check_fields, hold, read_id, read_target};
use super::stage::file_system;
use crate::capability::Capability;
use crate::driver::Shared;
use crate::pool::Pool;
use crate::staging::{Form, Staged, Staging, Tag, View};
use crate::token;
use crate::volume::{Record, VolumeId};

pub async fn publish(shared: &Shared, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    let target = read_target(shared, "target_path", &request.target_path).await?;
    let id = read_id(&request.volume_id)?;
    if request.staging_target_path.is_empty() {
        return Err(Error::ReadStagingPath);
    }
    let staging_path = read_target(shared, "staging_target_path", &request.staging_target_path).await?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open().await?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    capability.check_volume(shared.attach, &record).map_err(Error::ServeCapability)?;
    file_system(&record, &capability)?;
    let refuse_token = |source| Error::CheckToken { volume: id.to_string(), source };
    let grant = token::check(shared.attach, &record, &shared.node, &request.publish_context).map_err(refuse_token)?;

    let not_staged = || Error::FindStaging { volume: id.to_string(), path: staging_path.clone() };
    let staged = Staged::find(shared, pool, &id).await?.ok_or_else(not_staged)?;
    if staged.staging.token != grant.token || staged.staging.path != staging_path {
        return Err(not_staged());
    }
    check_flags(&id, &staged.staging, &capability)?;

    let alone = capability.mode == Mode::SingleNodeSingleWriter;
    let read_only = request.readonly || capability.reads_only() || grant.read_only;
    let (held, place) = hold(shared, &target).await?;
    let (staged, record, target) = (&staged, &record, &*target);
    let marked = pool.exists(&pool.alone(&id, &shared.node)).await?;
    let publishing = Publishing { shared, pool, id: &id, staged, record, target, alone, marked, read_only };
    if let (Some(held), Some(place)) = (&held, place.filter(|place| place.is_mount)) {
        publishing.match_existing(held, &place).await?;
        return Ok(NodePublishVolumeResponse {});
    }
    if alone || marked {
        let view = View::look(shared, pool, &id).await?;
        if let Some(other) = view.elsewhere(&staged.staging.mount_point()) {
            return Err(Error::ShareWriter { volume: id.to_string(), path: other.target.clone() });
        }
    }
    publishing.show(held, place).await?;
    tracing::info!(volume = %id, path = %target.display(), read_only, "published");
    Ok(NodePublishVolumeResponse {})
}

/// One file system has one set of flags for all pods that see it.
fn check_flags(id: &VolumeId, staging: &Staging, capability: &Capability) -> Result<(), Error> {
    let has: Vec<_> = staging.mount_flags.iter().flat_map(|flag| flag.split(',')).collect();
    let mut wanted = capability.mount().mount_flags.iter().flat_map(|flag| flag.split(','));
    match wanted.find(|flag| !has.contains(flag)) {
        None => Ok(()),
        Some(flag) => {
            let flag = flag.split('=').next().unwrap_or_default().to_owned();
            Err(Error::ServeFlags { volume: id.to_string(), flag })
        }
    }
}

struct Publishing<'a> {
    shared: &'a Shared,
    pool: &'a Pool,
    id: &'a VolumeId,
    staged: &'a Staged,
    record: &'a Record,
    target: &'a Path,
    /// No other pod may have the volume meanwhile.
    alone: bool,
    /// So it was before.
    marked: bool,
    read_only: bool,
}

impl Publishing<'_> {
    /// What is mounted at the target must be this volume, with this access. Whoever has a volume alone is the only one,
    /// so the volume's mark is the target's.
    async fn match_existing(&self, target: &Target, place: &Place) -> Result<(), Error> {
        let host = &*self.shared.host;
        let ours = self.staged.is_at(host, place).await?;
        if !ours || *self.target == self.staged.staging.path || *self.target == self.staged.staging.mount_point() {
            return Err(taken(self.shared, self.target).await?);
        }
        let (is, staged) = match place.block {
            Some(number) => (host.loop_device(number).await?.is_some_and(|device| device.read_only), false),
            // A volume staged read-only is read-only everywhere.
            None => (host.usage_at(target).await?.read_only, host.usage_at(&self.staged.target).await?.read_only),
        };
        let access = match (is == (self.read_only || staged), self.marked == self.alone) {
            (true, true) => return Ok(()),
            (false, _) if is => "read-only",
            (false, _) => "writable",
            (true, false) if self.marked => "for a single writer",
            (true, false) => "for several writers",
        };
        Err(Error::MatchPublishing { volume: self.id.to_string(), path: self.target.into(), access })
    }

    async fn show(&self, held: Option<Target>, place: Option<Place>) -> Result<(), Error> {
        let host = &self.shared.host;
        let block = self.staged.staging.form == Form::Block;
        let refuse = |reason| {
            let (field, value) = ("target_path", self.target.display().to_string());
            Err(Error::ReadPath { field, value, reason })
        };
        match place.map(|place| place.kind) {
            None => {}
            Some(FileKind::Directory) if !block => {}
            Some(FileKind::File) if block => {}
            Some(_) if block => return refuse("it is there and not a file"),
            Some(_) => return refuse("it is there and not a directory"),
        }
        let target = match held {
            Some(target) => target,
            None => host.make_and_hold(self.target).await?,
        };
        match (place, block) {
            (Some(_), _) => {}
            (None, true) => host.make_file_at(&target).await?,
            (None, false) => host.make_dir_at(&target).await?,
        }
        let bound = async {
            self.mark().await?;
            let options = MountOptions::new(self.read_only.then_some("ro"));
            match self.device().await? {
                Some(device) => host.bind_at(&device, &target, &options).await?,
                None => host.bind_seen_at(&self.staged.target, &self.staged.place, &target, &options).await?,
            }
            Ok(())
        };
        let Err(cause) = bound.await else { return Ok(()) };
        let undone = async {
            if block {
                host.remove_file_at(&target).await?
            } else {
                host.remove_dir_at(&target).await?
            }
            Ok(self.pool.forget_alone(self.id, &self.shared.node).await?)
        };
        Err(match undone.await {
            Ok(()) => cause,
            Err(source) => Error::Undo { cause: Box::new(cause), source: Box::new(source) },
        })
    }

    /// The kernel does not know for how many a mount was made. The mark is there before the mount and goes after it: without
    /// one it means nothing, and the next publish puts it right. It needs no sync, since a mount does not outlive the kernel
    /// either, and no free block, since it is empty.
    async fn mark(&self) -> Result<(), Error> {
        let node = &self.shared.node;
        match self.alone {
            true => Ok(self.shared.host.create_file(&self.pool.alone(self.id, node)).await?),
            false => Ok(self.pool.forget_alone(self.id, node).await?),
        }
    }

    /// The device that is shown of a block volume. A read-only mount of a device node does not stop writes to the device, so
    /// readers get a device of their own that does; it goes when the volume is unstaged.
    async fn device(&self) -> Result<Option<PathBuf>, Error> {
        match &self.staged.device {
            Some(device) if self.staged.staging.form == Form::Block && !self.read_only => Ok(Some(device.path.clone())),
            Some(_) if self.staged.staging.form == Form::Block => {
                let volume = Volume { shared: self.shared, pool: self.pool, id: self.id };
                let tag = Tag::new(self.pool, self.id, &self.shared.node).for_readers(&self.staged.staging.token);
                Ok(Some(volume.attach(&volume.look().await?, &tag, true, self.record).await?.path))
            }
            _ => Ok(None),
        }
    }
}

pub async fn unpublish(
    shared: &Shared,
    request: &NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    let target = read_target(shared, "target_path", &request.target_path).await?;
    let id = read_id(&request.volume_id)?;
    let pool = shared.pool_of(&id)?;
    let host = &shared.host;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;

    let (held, mut place) = hold(shared, &target).await?;
    let Some(held) = held else { return Ok(NodeUnpublishVolumeResponse {}) };
    if place.is_some_and(|place| place.is_mount) {
        if is_staging_path(shared, pool, &id, &target).await {
            return Err(taken(shared, &target).await?);
        }
        // Several, if the mount came by propagation as well, or was made twice by another tool.
        while let Some(mounted) = place.filter(|place| place.is_mount) {
            if !is_ours(shared, pool, &id, &mounted).await? {
                return Err(taken(shared, &target).await?);
            }
            host.unmount_at(&held).await?;
            place = host.look_at(&held).await?;
        }
        // A pod's path must be freed also when the pool is away or read-only; the next publish looks for mounts too.
        if let Err(error) = pool.forget_alone(&id, &shared.node).await {
            tracing::warn!(volume = %id, %error, "the mark of a single writer stays until the volume is unstaged");
        }
    }
    match place.map(|place| (place.kind, place.size)) {
        None => {}
        Some((FileKind::Directory, _)) => host.remove_dir_at(&held).await?,
        // What a device node was bound to.
        Some((FileKind::File, 0)) => host.remove_file_at(&held).await?,
        Some(_) => {
            let (field, value) = ("target_path", request.target_path.clone());
            return Err(Error::ReadPath { field, value, reason: "it is neither a directory nor an empty file" });
        }
    }
    tracing::info!(volume = %id, path = %target.display(), "unpublished");
    Ok(NodeUnpublishVolumeResponse {})
}

/// By device and not by record where the record does not help: a pod's path must be freed even when the pool is away or
/// the token is old.
async fn is_ours(shared: &Shared, pool: &Pool, id: &VolumeId, place: &Place) -> Result<bool, Error> {
    if let Ok(Some(staged)) = Staged::find(shared, pool, id).await
        && staged.is_at(&*shared.host, place).await?
    {
        return Ok(true);
    }
    Ok(View::look(shared, pool, id).await?.our_mount_of(place).is_some())
}

/// A caller who mixes the paths up must not pull the staging mount away from under the pods.
async fn is_staging_path(shared: &Shared, pool: &Pool, id: &VolumeId, place: &Path) -> bool {
    let staging = pool.load_file::<Staging>(&pool.staged(id, &shared.node)).await;
    staging.is_ok_and(|staging| staging.is_some_and(|staging| staging.mount_point() == place))
}

/// Says what is mounted at a path.
async fn taken(shared: &Shared, path: &Path) -> Result<Error, Error> {
    let table = shared.host.mounts().await?;
    let mounted = table.at(path).map_or_else(|| "another volume".to_owned(), |mount| mount.source.clone());
    Ok(Error::UsePath { path: path.into(), mounted })
}
