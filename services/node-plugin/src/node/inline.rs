//! Inline volumes of pods: NodePublishVolume makes them, NodeUnpublishVolume removes them with their data.
//!
//! They are ordinary volumes under the handle the kubelet made up (`csi-` and a digest of pod and volume name), mounted
//! at the pod's path without a staging step.

use std::path::Path;

use stowage_csi::v1::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use stowage_model::quantity::Quantity;
use tonic::Code;

use super::Error;
use super::device::Volume;
use super::paths::{check_directory, check_fields, hold, read_id, read_target};
use super::stage::file_system;
use crate::capability::Capability;
use crate::controller::{self, volumes};
use crate::driver::Shared;
use crate::staging::{Form, Staged, Staging};
use crate::token;
use crate::volume::{RECORD_VERSION, VolumeId};

/// Where the kubelet says that a volume is inline (needs `podInfoOnMount`).
const EPHEMERAL_KEY: &str = "csi.storage.k8s.io/ephemeral";
const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";
const SIZE_KEY: &str = "size";
/// Hex digits of a SHA-256.
const DIGEST_LENGTH: usize = 64;

pub fn is_asked_for(request: &NodePublishVolumeRequest) -> bool {
    request.volume_context.get(EPHEMERAL_KEY).is_some_and(|value| value == "true")
}

/// Whether the kubelet has made up this handle for an inline volume.
pub fn is_inline(volume: &str) -> bool {
    let digest = volume.strip_prefix("csi-");
    digest.is_some_and(|digest| digest.len() == DIGEST_LENGTH && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

pub async fn publish(shared: &Shared, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    if !is_inline(&request.volume_id) {
        return Err(Error::FindVolume { volume: request.volume_id.chars().take(128).collect() });
    }
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    if capability.is_block() {
        return Err(Error::InlineBlock);
    }
    let path = read_target(shared, "target_path", &request.target_path).await?;
    check_directory("target_path", &path, hold(shared, &path).await?.1)?;
    let failed = |source| Error::KeepInline { volume: request.volume_id.clone(), source: Box::new(source) };
    let made = volumes::create(shared, &create_request(request)?).await.map_err(failed)?;
    let handle = made.volume.map(|volume| volume.volume_id).unwrap_or_default();
    let id = read_id(&handle)?;
    let pool = shared.pool_of(&id)?;
    let guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    let mut mount_flags = capability.mount().mount_flags.clone();
    if request.readonly {
        mount_flags.push("ro".into());
    }
    let wanted =
        Staging { version: RECORD_VERSION, token: token::INLINE.into(), path, mount_flags, form: Form::of(&record) };
    if let Some(staged) = Staged::find(shared, pool, &id).await? {
        if staged.staging == wanted {
            return Ok(NodePublishVolumeResponse {});
        }
        let (path, access) = (staged.staging.path, "with other options");
        return Err(Error::MatchPublishing { volume: request.volume_id.clone(), path, access });
    }
    let there = hold(shared, &wanted.path).await?.1.is_some();
    let brought_up = async {
        let kind = file_system(&record, &capability)?;
        let target = shared.host.make_and_hold(&wanted.path).await?;
        shared.host.make_dir_at(&target).await?;
        let volume = Volume { shared, pool, id: &id };
        volume.drop_stale(token::INLINE).await?;
        let view = volume.look().await?;
        volume.check_free(&view, &wanted).await?;
        volume.bring_up(&view, &wanted, &target, &record, kind).await
    };
    if let Err(cause) = brought_up.await {
        drop(guard);
        return Err(undo(shared, &id, &wanted, there, cause).await);
    }
    tracing::info!(volume = %id, path = %wanted.path.display(), "published an inline volume");
    Ok(NodePublishVolumeResponse {})
}

/// After a final error nobody asks for the volume again, nor for its removal.
async fn undo(shared: &Shared, id: &VolumeId, wanted: &Staging, path_was_there: bool, cause: Error) -> Error {
    if cause.code() == Code::Unavailable {
        return cause;
    }
    let undone = async {
        if !path_was_there {
            remove_dir(shared, &wanted.path).await?;
        }
        remove(shared, id).await
    };
    match undone.await {
        Ok(()) => cause,
        Err(source) => Error::Undo { cause: Box::new(cause), source: Box::new(source) },
    }
}

async fn remove_dir(shared: &Shared, path: &Path) -> Result<(), Error> {
    match shared.host.hold(path).await? {
        Some(target) => Ok(shared.host.remove_dir_at(&target).await?),
        None => Ok(()),
    }
}

async fn remove(shared: &Shared, id: &VolumeId) -> Result<(), Error> {
    let request = DeleteVolumeRequest { volume_id: id.to_string(), ..Default::default() };
    let failed = |source: controller::Error| Error::KeepInline { volume: id.to_string(), source: Box::new(source) };
    volumes::delete(shared, &request).await.map(drop).map_err(failed)
}

/// The attributes of an inline volume are what a class and a claim would say together.
fn create_request(request: &NodePublishVolumeRequest) -> Result<CreateVolumeRequest, Error> {
    let attributes = request.volume_context.iter().filter(|(key, _)| !key.starts_with(KUBERNETES_PREFIX));
    let mut parameters: std::collections::BTreeMap<_, _> =
        attributes.map(|(key, value)| (key.clone(), value.clone())).collect();
    let size = parameters.remove(SIZE_KEY);
    let read = |value: String| {
        let bytes = value.parse::<Quantity>().ok().and_then(|quantity| quantity.size().ok()).filter(|bytes| *bytes > 0);
        bytes.ok_or(Error::ReadInlineSize { key: SIZE_KEY, value })
    };
    let required_bytes = size.map(read).transpose()?.unwrap_or_default();
    Ok(CreateVolumeRequest {
        name: request.volume_id.clone(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: request.volume_capability.iter().cloned().collect(),
        parameters,
        ..Default::default()
    })
}

pub async fn unpublish(
    shared: &Shared,
    request: &NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Error> {
    check_fields(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    let target = read_target(shared, "target_path", &request.target_path).await?;
    if let Some(id) = find(shared, &request.volume_id).await? {
        let pool = shared.pool_of(&id)?;
        {
            let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
            Volume { shared, pool, id: &id }.take_down(&target).await?;
        }
        remove_dir(shared, &target).await?;
        remove(shared, &id).await?;
        tracing::info!(volume = %id, path = %target.display(), "removed an inline volume");
    } else {
        remove_dir(shared, &target).await?;
    }
    Ok(NodeUnpublishVolumeResponse {})
}

/// The volume that was made for this handle, whichever pool it is in. Where it is in none, a pool that is away might have
/// it: that is an error only then.
pub async fn find(shared: &Shared, handle: &str) -> Result<Option<VolumeId>, Error> {
    let mut away = None;
    for pool in &shared.pools {
        let id = shared.id_in(pool, &VolumeId::key_of(handle));
        match pool.open().await {
            Ok(()) if pool.load(&id).await?.is_some() => return Ok(Some(id)),
            Ok(()) => {}
            Err(error) => away = Some(error),
        }
    }
    away.map_or(Ok(None), |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_the_size_and_the_parameters_and_the_kubelets_own_are_left_out() {
        let mut request = NodePublishVolumeRequest { volume_id: "csi-1".into(), ..Default::default() };
        for (key, value) in [("size", "1Gi"), ("fsType", "xfs"), (EPHEMERAL_KEY, "true")] {
            request.volume_context.insert(key.into(), value.into());
        }
        let made = create_request(&request).unwrap();
        assert_eq!(made.capacity_range.unwrap().required_bytes, 1 << 30);
        assert_eq!(made.parameters.into_iter().collect::<Vec<_>>(), [("fsType".to_owned(), "xfs".to_owned())]);
        request.volume_context.insert("size".into(), "-1".into());
        assert!(create_request(&request).unwrap_err().to_string().contains("\"-1\""));
    }

    #[test]
    fn only_the_kubelets_handles_are_inline() {
        assert!(is_inline(&format!("csi-{}", "a".repeat(64))));
        for other in ["", "csi-", "main.0123", &format!("csi-{}/", "a".repeat(63))] {
            assert!(!is_inline(other), "{other}");
        }
    }
}
