//! NodePublishVolume and NodeUnpublishVolume: a staged volume is shown at a pod's path.

use std::path::Path;

use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use stowage_mount::{Access, FileKind};

use super::{Error, read_id, read_path};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::pool::Pool;
use crate::staging::{Staging, Tag, View};
use crate::token;
use crate::volume::VolumeId;

pub async fn publish(shared: &Shared, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Error> {
    let target = read_path("target_path", &request.target_path)?;
    let id = read_id(&request.volume_id)?;
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    if request.staging_target_path.is_empty() {
        return Err(Error::ReadStagingPath);
    }
    let staging_path = read_path("staging_target_path", &request.staging_target_path)?;
    let pool = shared.pool(id.pool())?;
    let host = &shared.host;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open().await?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    let refuse_token = |source| Error::CheckToken { volume: id.to_string(), source };
    let token = token::check(&record, &shared.node, &request.publish_context).map_err(refuse_token)?;

    let staging_path = host.resolve(&staging_path).await?.unwrap_or(staging_path);
    let not_staged = || Error::FindStaging { volume: id.to_string(), path: staging_path.clone() };
    let staging = pool.load_file::<Staging>(&pool.staged(&id, &shared.node)).await?.ok_or_else(not_staged)?;
    let tag = Tag::new(pool, &id, &shared.node);
    let view = View::look(&**host, &pool.image(&id), &tag).await?;
    let device = view.device(&tag.with_token(token)).ok_or_else(not_staged)?;
    let staged = view.our_mount(&staging_path).ok_or_else(not_staged)?;
    if staging.token != token || staging.path != staging_path || staged.device != device.number {
        return Err(not_staged());
    }

    let read_only = request.readonly || capability.reads_only();
    if let Some(place) = host.resolve(&target).await?
        && let Some(mount) = view.table.at(&place)
    {
        if mount.device != device.number || place == staging_path {
            return Err(Error::UsePath { path: place, mounted: mount.source.clone() });
        }
        // A volume staged read-only is read-only everywhere.
        if mount.is_read_only() == (read_only || staged.is_read_only()) {
            return Ok(NodePublishVolumeResponse {});
        }
        let access = if mount.is_read_only() { "read-only" } else { "writable" };
        return Err(Error::MatchPublishing { volume: id.to_string(), path: place, access });
    }
    if capability.mode == Mode::SingleNodeSingleWriter
        && let Some(other) = view.elsewhere(device, &staging_path)
    {
        return Err(Error::ShareWriter { volume: id.to_string(), path: other.target.clone() });
    }

    match host.stat(&target).await?.map(|info| info.kind) {
        None => host.create_dir(&target).await?,
        Some(FileKind::Directory) => {}
        Some(_) => {
            let (field, value) = ("target_path", request.target_path.clone());
            return Err(Error::ReadPath { field, value, reason: "it is there and not a directory" });
        }
    }
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    if let Err(cause) = host.bind(&staging_path, &target, access).await {
        return Err(match host.remove_dir(&target).await {
            Ok(()) => cause.into(),
            Err(source) => Error::Undo { cause: Box::new(cause.into()), source: Box::new(source.into()) },
        });
    }
    tracing::info!(volume = %id, path = %target.display(), read_only, "published");
    Ok(NodePublishVolumeResponse {})
}

pub async fn unpublish(
    shared: &Shared,
    request: &NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Error> {
    let target = read_path("target_path", &request.target_path)?;
    let id = read_id(&request.volume_id)?;
    let pool = shared.pool(id.pool())?;
    let host = &shared.host;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let Some(place) = host.resolve(&target).await? else { return Ok(NodeUnpublishVolumeResponse {}) };

    // By device and not by record: a pod's path must be freed even when the pool is away or the token is old.
    let view = View::look(&**host, &pool.image(&id), &Tag::new(pool, &id, &shared.node)).await?;
    if let Some(mount) = view.table.at(&place) {
        if view.our_mount(&place).is_none() || is_staging_path(shared, pool, &id, &place).await {
            return Err(Error::UsePath { path: place, mounted: mount.source.clone() });
        }
        for _ in view.table.iter().filter(|mount| mount.target == place) {
            host.unmount(&place).await?;
        }
    }
    host.remove_dir(&place).await?;
    tracing::info!(volume = %id, path = %place.display(), "unpublished");
    Ok(NodeUnpublishVolumeResponse {})
}

/// A caller who mixes the paths up must not pull the staging mount away from under the pods.
async fn is_staging_path(shared: &Shared, pool: &Pool, id: &VolumeId, place: &Path) -> bool {
    let staging = pool.load_file::<Staging>(&pool.staged(id, &shared.node)).await;
    staging.is_ok_and(|staging| staging.is_some_and(|staging| staging.path == place))
}
