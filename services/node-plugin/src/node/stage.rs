//! NodeStageVolume and NodeUnstageVolume.

use stowage_csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use stowage_mount::FileSystem;

use super::Error;
use super::device::Volume;
use super::paths::{check_directory, check_fields, read_id, read_target};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::staging::{Form, Staged, Staging};
use crate::token;
use crate::volume::{RECORD_VERSION, Record};

pub async fn stage(shared: &Shared, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("staging_target_path", &request.staging_target_path)])?;
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    let path = read_target(shared, "staging_target_path", &request.staging_target_path).await?;
    let id = read_id(&request.volume_id)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    capability.check_volume(shared.attach, &record).map_err(Error::ServeCapability)?;
    let kind = file_system(&record, &capability)?;
    let refuse_token = |source| Error::CheckToken { volume: id.to_string(), source };
    let grant = token::check(shared.attach, &record, &shared.node, &request.publish_context).map_err(refuse_token)?;
    let token = grant.token;

    let target = shared.host.make_and_hold(&path).await?;
    check_directory("staging_target_path", &path, shared.host.look_at(&target).await?)?;
    shared.host.make_dir_at(&target).await?;
    let wanted = Staging {
        version: RECORD_VERSION,
        token: token.to_owned(),
        path,
        mount_flags: capability.mount().mount_flags.clone(),
        form: Form::of(&record),
    };
    let volume = Volume { shared, pool, id: &id };
    if let Some(staged) = Staged::find(shared, pool, &id).await?.filter(|staged| staged.staging.token == token) {
        if staged.staging != wanted {
            return Err(Error::MatchStaging { volume: id.to_string(), path: staged.staging.path });
        }
        // A kill between mounting and growing leaves this to do.
        if let (Form::FileSystem, Some(device)) = (wanted.form, &staged.device) {
            volume.grow_if_allowed(device, kind, &staged.target).await?;
        }
        return Ok(NodeStageVolumeResponse {});
    }

    volume.drop_stale(token).await?;
    let view = volume.look().await?;
    volume.check_free(&view, &wanted).await?;
    volume.bring_up(&view, &wanted, &target, &record, kind).await?;
    tracing::info!(volume = %id, path = %wanted.path.display(), "staged");
    Ok(NodeStageVolumeResponse {})
}

pub async fn unstage(shared: &Shared, request: &NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("staging_target_path", &request.staging_target_path)])?;
    let path = read_target(shared, "staging_target_path", &request.staging_target_path).await?;
    let id = read_id(&request.volume_id)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    Volume { shared, pool, id: &id }.take_down(&path).await?;
    tracing::info!(volume = %id, path = %path.display(), "unstaged");
    Ok(NodeUnstageVolumeResponse {})
}

/// What the image holds or will hold; has no meaning for block and directory volumes.
pub fn file_system(record: &Record, capability: &Capability) -> Result<FileSystem, Error> {
    if record.fs_type.is_empty() {
        return Ok(FileSystem::Ext4);
    }
    let of_class = Parameters::with_file_system(&record.fs_type).map_err(Error::ServeFileSystem)?;
    let asked_for = std::iter::once(capability.mount().fs_type.as_str());
    of_class.choose_file_system(asked_for).map_err(Error::ServeFileSystem)
}
