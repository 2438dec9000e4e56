//! CreateVolume and DeleteVolume: a directory comes and goes.

use std::collections::BTreeMap;
use std::path::Path;

use stowage_csi::v1::volume_capability::AccessType;
use stowage_csi::v1::*;
use stowage_mount::{FileKind, Share};

use super::source::Source;
use super::{Error, check_name};
use crate::nfs::OnDelete;
use crate::nfs::driver::Shared;
use crate::nfs::handle::{Export, VolumeId, is_share, read_way};
use crate::nfs::mounts::{Mounted, name_of};
use crate::nfs::parameters::{self, SERVER, SHARE, SUB_DIR};

/// Mounts the share of an export for a call.
pub async fn open(shared: &Shared, export: &Export, words: &[&str]) -> Result<Mounted, Error> {
    let opened = shared.mounts.open(export, words).await;
    opened.map_err(|source| Error::Mount { export: export.source(), source })
}

/// A server and a share from parameters.
pub fn read_export(server: &str, share: &str) -> Result<Export, parameters::Error> {
    if server.is_empty() {
        return Err(parameters::Error::Missing { key: SERVER, what: "host that has the share" });
    }
    let refuse = || parameters::Error::Export { server: server.into(), share: share.into() };
    Export::new(server, share).filter(|_| is_share(share)).ok_or_else(refuse)
}

/// The words that a mount is told by the way a volume is used.
pub fn mount_words(capabilities: &[VolumeCapability]) -> Vec<&str> {
    match capabilities.first().and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) => mount.mount_flags.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

fn check_capabilities(capabilities: &[VolumeCapability]) -> Result<(), Error> {
    if capabilities.is_empty() {
        return Err(Error::ReadField { field: "volume_capabilities" });
    }
    let block = |capability: &VolumeCapability| matches!(capability.access_type, Some(AccessType::Block(_)));
    if capabilities.iter().any(block) { Err(Error::ServeBlock) } else { Ok(()) }
}

/// The volume that a request asks for.
fn read_volume(shared: &Shared, name: &str, values: &BTreeMap<String, String>) -> Result<VolumeId, Error> {
    parameters::check(values)?;
    let export = read_export(parameters::get(values, SERVER), parameters::get(values, SHARE))?;
    let (text, uuid) = match parameters::get(values, SUB_DIR) {
        "" => (name.to_owned(), ""),
        text => (parameters::fill(text, values)?, name),
    };
    let way = read_way(&text).ok_or(parameters::Error::SubDir { value: text })?;
    let default = shared.options.on_delete;
    // An id without a policy leaves it to the flag, also to that of another driver.
    let on_delete = match parameters::on_delete(values)?.unwrap_or(default) {
        OnDelete::Delete if default == OnDelete::Delete => None,
        policy => Some(policy),
    };
    Ok(VolumeId { export, way, uuid: uuid.into(), on_delete })
}

pub async fn create(shared: &Shared, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Error> {
    check_name(&request.name)?;
    check_capabilities(&request.volume_capabilities)?;
    let mode = parameters::permissions(&request.parameters, shared.options.mount_permissions)?;
    let id = read_volume(shared, &request.name, &request.parameters)?;
    let source = Source::read(request.volume_content_source.as_ref())?;
    let _guard = shared.locks.try_lock(&id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let _source_guard = source.as_ref().map(|source| source.share(&shared.locks)).transpose()?;

    let words = mount_words(&request.volume_capabilities);
    let mounted = open(shared, &id.export, &words).await?;
    let made = match &source {
        None => make(shared, &mounted.share, &id, mode).await,
        Some(source) => make_from(shared, &mounted.share, &id, mode, source, &words).await,
    };
    shared.mounts.close(mounted).await;
    made?;
    tracing::info!(volume = %id, "made");

    let mut volume_context = request.parameters;
    let key = volume_context.keys().find(|key| key.eq_ignore_ascii_case(SUB_DIR)).cloned();
    volume_context.insert(key.unwrap_or_else(|| SUB_DIR.into()), id.way.display().to_string());
    let volume = Volume {
        volume_id: id.to_string(),
        // The provisioner takes what the claim asks for.
        capacity_bytes: 0,
        volume_context,
        content_source: request.volume_content_source,
        ..Default::default()
    };
    Ok(CreateVolumeResponse { volume: Some(volume) })
}

async fn make(shared: &Shared, share: &Share, id: &VolumeId, mode: u32) -> Result<(), Error> {
    is_empty(shared, share, id, &id.way).await?;
    shared.host.make_dirs_in(share, &id.way).await?;
    set_mode(shared, share, &id.way, mode).await
}

/// The server may keep its directories' modes to itself.
async fn set_mode(shared: &Shared, share: &Share, way: &Path, mode: u32) -> Result<(), Error> {
    if mode == 0 {
        return Ok(());
    }
    match shared.host.set_mode_in(share, way, mode).await {
        Err(error) if error.is_forbidden() => {
            tracing::warn!(path = %way.display(), %error, "the server refuses mountPermissions");
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Whether nothing is in a directory, or it is not there.
async fn is_empty(shared: &Shared, share: &Share, id: &VolumeId, way: &Path) -> Result<bool, Error> {
    match shared.host.look_in(share, way).await?.map(|entry| entry.kind) {
        None => Ok(true),
        Some(FileKind::Directory) => Ok(shared.host.list_in(share, way).await?.unwrap_or_default().is_empty()),
        Some(_) => Err(Error::UsePlace { place: name_of(&id.export, way) }),
    }
}

/// Filled under another name, so that a directory of the volume's own name is whole.
async fn make_from(
    shared: &Shared,
    share: &Share,
    id: &VolumeId,
    mode: u32,
    source: &Source,
    words: &[&str],
) -> Result<(), Error> {
    if !is_empty(shared, share, id, &id.way).await? {
        // Where nobody else makes such a directory, an earlier call did. Else it is filled as it is, as the original does.
        if !id.is_alone() {
            source.fill(shared, (&id.export, share), &id.way, words).await?;
        }
        return set_mode(shared, share, &id.way, mode).await;
    }
    let unfinished = id.unfinished();
    let filled = async {
        shared.host.remove_in(share, &unfinished).await?;
        shared.host.make_dirs_in(share, &unfinished).await?;
        source.fill(shared, (&id.export, share), &unfinished, words).await?;
        set_mode(shared, share, &unfinished, mode).await?;
        shared.host.flush_share(share).await?;
        Ok::<_, Error>(shared.host.rename_in(share, &unfinished, &id.way).await?)
    };
    let filled = filled.await;
    if filled.is_err()
        && let Err(error) = clean(shared, share, &unfinished).await
    {
        tracing::warn!(volume = %id, %error, "what was copied of it takes space until it is made or deleted");
    }
    filled
}

/// Removes what was begun, and the directories that were made for it.
async fn clean(shared: &Shared, share: &Share, way: &Path) -> Result<(), stowage_mount::Error> {
    shared.host.remove_in(share, way).await?;
    remove_empty_parents(shared, share, way).await
}

async fn remove_empty_parents(shared: &Shared, share: &Share, way: &Path) -> Result<(), stowage_mount::Error> {
    for parent in way.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
        if !shared.host.remove_empty_in(share, parent).await? {
            break;
        }
    }
    Ok(())
}

pub async fn delete(shared: &Shared, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let Some(id) = VolumeId::parse(&request.volume_id) else {
        tracing::warn!(volume = request.volume_id, "not an id of this driver, so there is nothing to delete");
        return Ok(DeleteVolumeResponse {});
    };
    let _guard = shared.locks.try_lock(&id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let policy = id.on_delete.unwrap_or(shared.options.on_delete);
    if policy != OnDelete::Retain {
        let words: Vec<_> = parameters::mount_options(&request.secrets).into_iter().collect();
        let mounted = open(shared, &id.export, &words).await?;
        let removed = match policy {
            OnDelete::Archive => archive(shared, &mounted.share, &id).await,
            _ => remove(shared, &mounted.share, &id).await,
        };
        shared.mounts.close(mounted).await;
        removed?;
    }
    tracing::info!(volume = %id, policy = %policy, "deleted");
    Ok(DeleteVolumeResponse {})
}

async fn remove(shared: &Shared, share: &Share, id: &VolumeId) -> Result<(), Error> {
    shared.host.remove_in(share, &id.unfinished()).await?;
    shared.host.remove_in(share, &id.way).await?;
    Ok(remove_empty_parents(shared, share, &id.way).await?)
}

/// The volume's directory is looked for first: without it, an earlier call has archived it, and what lies in the archive is
/// this volume's.
async fn archive(shared: &Shared, share: &Share, id: &VolumeId) -> Result<(), Error> {
    shared.host.remove_in(share, &id.unfinished()).await?;
    if shared.host.look_in(share, &id.way).await?.is_none() {
        return Ok(());
    }
    let archived = id.archived();
    if shared.options.remove_archived {
        shared.host.remove_in(share, &archived).await?;
    }
    if let Some(parent) = archived.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        shared.host.make_dirs_in(share, parent).await?;
    }
    match shared.host.rename_in(share, &id.way, &archived).await {
        Err(error) if error.is_occupied() => {
            let (place, archived) = (name_of(&id.export, &id.way), name_of(&id.export, &archived));
            Err(Error::KeepArchived { place, archived })
        }
        other => Ok(other?),
    }
}

pub async fn validate(
    shared: &Shared,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    if request.volume_capabilities.is_empty() {
        return Err(Error::ReadField { field: "volume_capabilities" });
    }
    let unknown = || Error::Find { field: "volume_id", handle: request.volume_id.clone() };
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let mounted = open(shared, &id.export, &mount_words(&request.volume_capabilities)).await?;
    let entry = shared.host.look_in(&mounted.share, &id.way).await;
    shared.mounts.close(mounted).await;
    entry?.ok_or_else(unknown)?;
    if let Err(error) = check_capabilities(&request.volume_capabilities) {
        return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() });
    }
    let confirmed = validate_volume_capabilities_response::Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        ..Default::default()
    };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

pub fn expand(request: &ControllerExpandVolumeRequest) -> Result<ControllerExpandVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let range = request.capacity_range.as_ref().ok_or(Error::ReadField { field: "capacity_range" })?;
    Ok(ControllerExpandVolumeResponse { capacity_bytes: range.required_bytes, node_expansion_required: false })
}
