//! NodeStageVolume and NodeUnstageVolume.
//!
//! Staging goes: record, loop device, file system, mount; unstaging back. Each step first looks whether it is done,
//! so a call after a kill goes on where the last one ended, and unstaging works from any point.

use std::path::Path;

use stowage_csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use stowage_mount::{Content, FileKind, FileSystem, LoopDevice, MountOptions};

use super::{Error, read_id, read_path};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::pool::Pool;
use crate::staging::{Staging, Tag, View};
use crate::token;
use crate::volume::{RECORD_VERSION, Record, VolumeId};

pub async fn stage(shared: &Shared, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Error> {
    let path = read_path("staging_target_path", &request.staging_target_path)?;
    let id = read_id(&request.volume_id)?;
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    let pool = shared.pool(id.pool())?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    let kind = file_system(&record, &capability)?;
    let refuse_token = |source| Error::CheckToken { volume: id.to_string(), source };
    let token = token::check(&record, &shared.node, &request.publish_context).map_err(refuse_token)?;

    shared.host.create_dir(&path).await?;
    let path = shared.host.resolve(&path).await?.unwrap_or(path);
    let wanted = Staging {
        version: RECORD_VERSION,
        token: token.to_owned(),
        path,
        mount_flags: capability.mount.mount_flags.clone(),
    };
    let tag = Tag::new(pool, &id, &shared.node);
    let volume = Volume { shared, pool, id: &id, tag: &tag };
    let mut view = volume.look().await?;
    let stale: Vec<_> = view.ours.iter().filter(|device| device.tag != tag.with_token(token)).cloned().collect();
    if !stale.is_empty() {
        // Held under an old token: others may have written since, so nothing of it may be used again.
        let old_path = volume.load().await?.map_or_else(|| wanted.path.clone(), |staging| staging.path);
        for device in stale {
            volume.release(&view, &device, &old_path).await?;
        }
        view = volume.look().await?;
    }
    volume.check_free(&view, &wanted).await?;
    if volume.is_staged(&view, &wanted).await? {
        return Ok(NodeStageVolumeResponse {});
    }

    if let Err(cause) = volume.bring_up(&view, &wanted, kind).await {
        // A final error code says that nothing is staged, and nobody would call unstage after it.
        return Err(match volume.take_down(&wanted.path).await {
            Ok(()) => cause,
            Err(source) => Error::Undo { cause: Box::new(cause), source: Box::new(source) },
        });
    }
    tracing::info!(volume = %id, path = %wanted.path.display(), "staged");
    Ok(NodeStageVolumeResponse {})
}

pub async fn unstage(shared: &Shared, request: &NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse, Error> {
    let path = read_path("staging_target_path", &request.staging_target_path)?;
    let id = read_id(&request.volume_id)?;
    let pool = shared.pool(id.pool())?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let path = shared.host.resolve(&path).await?.unwrap_or(path);
    let tag = Tag::new(pool, &id, &shared.node);
    Volume { shared, pool, id: &id, tag: &tag }.take_down(&path).await?;
    tracing::info!(volume = %id, path = %path.display(), "unstaged");
    Ok(NodeUnstageVolumeResponse {})
}

fn file_system(record: &Record, capability: &Capability) -> Result<FileSystem, Error> {
    let of_class = Parameters::with_file_system(&record.fs_type).map_err(Error::ReadFileSystem)?;
    let asked_for = std::iter::once(capability.mount.fs_type.as_str());
    of_class.choose_file_system(asked_for).map_err(Error::ReadFileSystem)
}

/// One volume on this node.
struct Volume<'a> {
    shared: &'a Shared,
    pool: &'a Pool,
    id: &'a VolumeId,
    tag: &'a Tag,
}

impl Volume<'_> {
    fn name(&self) -> String {
        self.id.to_string()
    }

    async fn look(&self) -> Result<View, Error> {
        Ok(View::look(&*self.shared.host, &self.pool.image(self.id), self.tag).await?)
    }

    async fn load(&self) -> Result<Option<Staging>, Error> {
        Ok(self.pool.load_file(&self.pool.staged(self.id, &self.shared.node)).await?)
    }

    /// Refuses if somebody else has the image or the path.
    async fn check_free(&self, view: &View, wanted: &Staging) -> Result<(), Error> {
        if view.image.is_none_or(|image| image.kind != FileKind::File) {
            return Err(Error::FindImage { volume: self.name() });
        }
        if let Some(device) = view.foreign.first() {
            return Err(Error::TakeImage { volume: self.name(), device: device.path.display().to_string() });
        }
        match view.table.at(&wanted.path) {
            Some(mount) if view.our_mount(&wanted.path).is_none() => {
                Err(Error::UsePath { path: wanted.path.clone(), mounted: mount.source.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Record, device and mount agree; if they agree on something else than is wanted, that is a conflict.
    async fn is_staged(&self, view: &View, wanted: &Staging) -> Result<bool, Error> {
        let Some(staging) = self.load().await? else { return Ok(false) };
        let mounted = view.our_mount(&staging.path).is_some();
        match mounted && staging.token == wanted.token {
            true if staging == *wanted => Ok(true),
            true => {
                let (path, flags) = (staging.path, staging.mount_flags);
                Err(Error::MatchStaging { volume: self.name(), path, flags })
            }
            false => Ok(false),
        }
    }

    async fn bring_up(&self, view: &View, wanted: &Staging, kind: FileSystem) -> Result<(), Error> {
        let host = &self.shared.host;
        self.pool.store_file(&self.pool.staged(self.id, &self.shared.node), wanted).await?;
        let tag = self.tag.with_token(&wanted.token);
        let device = match view.device(&tag) {
            Some(device) => device.clone(),
            None => host.attach_loop(&self.pool.image(self.id), &tag).await?,
        };
        if view.our_mount(&wanted.path).is_some() {
            return Ok(());
        }
        self.make_or_check(&device, kind).await?;
        let options = MountOptions::new(&wanted.mount_flags);
        let source = device.path.to_string_lossy();
        Ok(host.mount(&source, &wanted.path, kind.name(), &options).await?)
    }

    /// A file system is made once, on a device that holds nothing. A mkfs that was cut short leaves a marker in the
    /// pool, for whichever node comes next, and is begun again: before its end there was no data.
    async fn make_or_check(&self, device: &LoopDevice, kind: FileSystem) -> Result<(), Error> {
        let host = &self.shared.host;
        let marker = self.pool.formatting(self.id);
        let cut_short = self.pool.exists(&marker).await?;
        match host.probe(&device.path).await? {
            Content::FileSystem(found) if found == kind && !cut_short => {
                return Ok(host.check_filesystem(&device.path, kind).await?);
            }
            Content::Blank => {}
            _ if cut_short => {}
            found => {
                let wanted = format!("nothing or {kind}");
                return Err(Error::TrustContent { volume: self.name(), wanted, found });
            }
        }
        host.write_file(&marker, kind.name().as_bytes()).await?;
        host.make_filesystem(&device.path, kind).await?;
        Ok(host.remove_file(&marker).await?)
    }

    /// Undoes staging from whatever point it had reached.
    async fn take_down(&self, path: &Path) -> Result<(), Error> {
        let view = self.look().await?;
        if let Some(mount) = view.table.at(path).filter(|_| view.our_mount(path).is_none()) {
            return Err(Error::UsePath { path: path.into(), mounted: mount.source.clone() });
        }
        for device in &view.ours {
            self.release(&view, device, path).await?;
        }
        // Without its pool there is no record to remove either; the devices are what matters.
        match self.pool.open().await {
            Ok(()) => Ok(self.pool.remove(&self.pool.staged(self.id, &self.shared.node)).await?),
            Err(error) if view.image.is_none() => {
                tracing::warn!(volume = %self.id, %error, "unstaged without its pool");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Unmounts a device from its staging path and gives it back; never while pods still see it.
    async fn release(&self, view: &View, device: &LoopDevice, path: &Path) -> Result<(), Error> {
        if let Some(mount) = view.elsewhere(device, path) {
            return Err(Error::StillPublished { volume: self.name(), path: mount.target.clone() });
        }
        for mount in view.table.on(device.number) {
            self.shared.host.unmount(&mount.target).await?;
        }
        Ok(self.shared.host.detach_loop(device).await?)
    }
}
