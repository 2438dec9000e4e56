//! NodePublishVolume and NodeUnpublishVolume.
//!
//! The helper that mounts takes paths, and whoever can write on the way to a pod's path could lead it elsewhere. So it mounts at
//! a place of our own, and what is seen there is shown at the pod's path, which is held meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stowage_csi::v1::volume_capability::AccessType;
use stowage_csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use stowage_mount::{FileKind, MountOptions, Place, Target};

use super::Error;
use crate::nfs::driver::Shared;
use crate::nfs::handle::{address, is_server, is_share};
use crate::nfs::parameters::{self, SERVER, SHARE, SUB_DIR};
use crate::node::plain_path;

/// How long a server may be waited for before what is on its way to it is given up; the original's.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest part of a caller's word that is said again.
const MAX_SHOWN: usize = 255;

pub async fn publish(shared: &Shared, request: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, Error> {
    let volume = check(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    let capability = request.volume_capability.as_ref().ok_or(Error::ReadField { field: "volume_capability" })?;
    let flags = match &capability.access_type {
        Some(AccessType::Block(_)) => return Err(Error::ServeBlock),
        Some(AccessType::Mount(mount)) => mount.mount_flags.as_slice(),
        None => &[],
    };
    let source = read_source(request)?;
    let said = parameters::mount_options(&request.volume_context);
    let read_only = request.readonly.then_some("ro");
    let options = MountOptions::new(flags.iter().map(String::as_str).chain(read_only).chain(said));
    if options.words.iter().any(|word| word.chars().any(|c| c.is_whitespace() || c.is_control())) {
        return Err(Error::ReadOption);
    }
    let mode = parameters::permissions(&request.volume_context, shared.options.mount_permissions)?;
    let path = read_target(shared, "target_path", &request.target_path).await?;
    let key = format!("{volume} at {}", path.display());
    let _guard = shared.locks.try_lock(&key).ok_or_else(|| Error::Lock { volume: volume.clone() })?;

    if is_published(shared, &volume, &path, &source, options.read_only()).await? {
        return Ok(NodePublishVolumeResponse {});
    }
    let place = shared.mounts.mount(&source, &options).await?;
    let shown = show(shared, &place, &path, if options.read_only() { 0 } else { mode }).await;
    shared.mounts.give_back(&place).await;
    shown?;
    tracing::info!(volume, %source, path = %path.display(), "published");
    Ok(NodePublishVolumeResponse {})
}

/// What is to be mounted. The volume's id says nothing: an administrator may have chosen it.
fn read_source(request: &NodePublishVolumeRequest) -> Result<String, Error> {
    let context = &request.volume_context;
    let (server, share) = (parameters::get(context, SERVER), parameters::get(context, SHARE));
    if server.is_empty() {
        return Err(parameters::Error::Missing { key: SERVER, what: "host that has the share" }.into());
    }
    if share.is_empty() {
        return Err(parameters::Error::Missing { key: SHARE, what: "path on the server" }.into());
    }
    let host = server.trim_matches('/');
    if !is_server(host) || !is_share(share) {
        return Err(parameters::Error::Export { server: server.into(), share: share.into() }.into());
    }
    let source = format!("{}:{share}", address(host));
    match parameters::get(context, SUB_DIR) {
        "" => Ok(source),
        text => {
            let way = parameters::fill(text, context)?;
            if !is_share(&way) {
                return Err(parameters::Error::SubDir { value: way }.into());
            }
            Ok(format!("{}/{}", source.trim_end_matches('/'), way.trim_start_matches('/')))
        }
    }
}

/// Whether it is there already. A share whose server has forgotten it is taken away.
async fn is_published(
    shared: &Shared,
    volume: &str,
    path: &Path,
    source: &str,
    read_only: bool,
) -> Result<bool, Error> {
    let host = &shared.host;
    let Some(target) = host.hold(path).await? else { return Ok(false) };
    let Some(found) = host.network_at(&target).await? else {
        let place = host.look_at(&target).await?;
        return check_place(path, place).map(|()| false);
    };
    match host.look_at(&target).await {
        Err(error) if error.is_stale() => {
            tracing::warn!(volume, path = %path.display(), "its server no longer knows it; it is mounted anew");
            unmount(shared, &target).await?;
            return Ok(false);
        }
        // A server that squashes root may not let us see it.
        Err(error) if error.is_forbidden() => {}
        other => drop(other?),
    }
    if found.read_only != read_only {
        let access = if found.read_only { "read-only" } else { "writable" };
        return Err(Error::MatchPublishing { volume: volume.into(), path: path.into(), access });
    }
    if found.source.trim_end_matches('/') != source.trim_end_matches('/') {
        // Servers hand clients on to others, so this is no proof.
        tracing::warn!(volume, path = %path.display(), found = found.source, wanted = source, "another source is there");
    }
    Ok(true)
}

fn check_place(path: &Path, place: Option<Place>) -> Result<(), Error> {
    match place {
        Some(place) if place.is_mount => Err(Error::UsePath { path: path.into() }),
        Some(place) if place.kind != FileKind::Directory => {
            let (field, value) = ("target_path", path.display().to_string());
            Err(Error::ReadPath { field, value, reason: "it is there and not a directory" })
        }
        _ => Ok(()),
    }
}

/// Shows what was mounted at a place of ours at a pod's path.
async fn show(shared: &Shared, place: &Target, path: &Path, mode: u32) -> Result<(), Error> {
    let host = &shared.host;
    if mode != 0 {
        let share = host.share(place).await?;
        host.set_mode_in(&share, Path::new(""), mode).await?;
    }
    let missing = || Error::ChangeHost(stowage_mount::Error::Moved { path: place.path().into() });
    let seen = host.look_at(place).await?.ok_or_else(missing)?;
    let target = host.make_and_hold(path).await?;
    host.make_dir_at(&target).await?;
    Ok(host.bind_seen_at(place, &seen, &target, &MountOptions::default()).await?)
}

pub async fn unpublish(
    shared: &Shared,
    request: &NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Error> {
    let volume = check(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
    let path = read_target(shared, "target_path", &request.target_path).await?;
    let key = format!("{volume} at {}", path.display());
    let _guard = shared.locks.try_lock(&key).ok_or_else(|| Error::Lock { volume: volume.clone() })?;
    let Some(target) = shared.host.hold(&path).await? else { return Ok(NodeUnpublishVolumeResponse {}) };
    // By the mount table, which is there when the server is not. Several, if it was mounted twice by another tool.
    while shared.host.network_at(&target).await?.is_some() {
        unmount(shared, &target).await?;
    }
    let place = shared.host.look_at(&target).await?;
    check_place(&path, place)?;
    if place.is_some() {
        shared.host.remove_dir_at(&target).await?;
    }
    shared.forget_stats(&volume);
    tracing::info!(volume, path = %path.display(), "unpublished");
    Ok(NodeUnpublishVolumeResponse {})
}

/// What waits for a server that is away would wait for ever.
async fn unmount(shared: &Shared, target: &Target) -> Result<(), Error> {
    match tokio::time::timeout(PATIENCE, shared.host.unmount_network(target, false)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => {
            tracing::warn!(path = %target.path().display(), "its server does not answer; what waits for it is given up");
            Ok(shared.host.unmount_network(target, true).await?)
        }
    }
}

/// What is missing is told before anything else is looked at; the first field's value is the volume.
pub fn check(fields: &[(&'static str, &str)]) -> Result<String, Error> {
    let missing = fields.iter().find(|(_, text)| text.is_empty());
    missing.map_or(Ok(()), |(field, _)| Err(Error::ReadField { field }))?;
    Ok(fields.first().map(|(_, text)| text.chars().take(MAX_SHOWN).collect()).unwrap_or_default())
}

/// Where a path leads that a caller wants a volume to be mounted at: below one of the target roots, where there are any.
pub async fn read_target(shared: &Shared, field: &'static str, text: &str) -> Result<PathBuf, Error> {
    let refuse = |reason| Error::ReadPath { field, value: text.chars().take(MAX_SHOWN).collect(), reason };
    let path = plain_path(text).map_err(refuse)?;
    let path = match shared.host.locate(&path).await {
        Err(error) if error.is_astray() => return Err(refuse("a file or a link to nowhere is on the way")),
        other => other?,
    };
    let roots = &shared.options.target_roots;
    if roots.is_empty() {
        return Ok(path);
    }
    for root in roots {
        // A root may itself be reached through links.
        let inner = shared.host.locate(&root.join("x")).await?;
        if path.parent().zip(inner.parent()).is_some_and(|(parent, root)| parent.starts_with(root)) {
            return Ok(path);
        }
    }
    let roots = roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(Error::LeaveRoots { field, path, roots })
}
