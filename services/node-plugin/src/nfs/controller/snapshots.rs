//! CreateSnapshot and DeleteSnapshot: a volume's directory as one archive, in a directory of the snapshot's name.

use std::ffi::OsString;
use std::path::Path;

use stowage_csi::v1::*;
use stowage_mount::{FileKind, Packer, Share};

use super::source::find_archive;
use super::volumes::{open, read_export};
use super::{Error, check_name};
use crate::nfs::driver::Shared;
use crate::nfs::handle::{SnapshotId, VolumeId};
use crate::nfs::mounts::name_of;
use crate::nfs::parameters::{self, SERVER, SHARE};

pub async fn create(shared: &Shared, request: &CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Error> {
    check_name(&request.name)?;
    if request.source_volume_id.is_empty() {
        return Err(Error::ReadField { field: "source_volume_id" });
    }
    let missing = || Error::Find { field: "source_volume_id", handle: request.source_volume_id.clone() };
    let source = VolumeId::parse(&request.source_volume_id).ok_or_else(missing)?;
    parameters::check_of_snapshot(&request.parameters)?;
    let or = |key, own: &str| match parameters::get(&request.parameters, key) {
        "" => own.to_owned(),
        text => text.to_owned(),
    };
    let export = read_export(&or(SERVER, &source.export.server), &or(SHARE, &source.export.share))?;
    let id = SnapshotId { export, name: request.name.clone(), source: source.name() };
    let _guard = shared.locks.try_lock(&id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let locked = || Error::Lock { volume: source.to_string() };
    let _source_guard = shared.locks.try_share(&source.key()).ok_or_else(locked)?;

    let secret = parameters::mount_options(&request.secrets);
    let words: Vec<_> = secret.into_iter().chain(parameters::mount_options(&request.parameters)).collect();
    let mounted = open(shared, &id.export, &words).await?;
    let made = if id.export == source.export {
        make(shared, &mounted.share, &id, &mounted.share, &source).await
    } else {
        match open(shared, &source.export, &words).await {
            Err(error) => Err(error),
            Ok(other) => {
                let made = make(shared, &mounted.share, &id, &other.share, &source).await;
                shared.mounts.close(other).await;
                made
            }
        }
    };
    shared.mounts.close(mounted).await;
    let snapshot = Snapshot { source_volume_id: request.source_volume_id.clone(), ..made? };
    tracing::info!(snapshot = %id, volume = %source, "made");
    Ok(CreateSnapshotResponse { snapshot: Some(snapshot) })
}

/// A directory of the snapshot's name appears with its archive, or not at all.
async fn make(
    shared: &Shared,
    share: &Share,
    id: &SnapshotId,
    from: &Share,
    source: &VolumeId,
) -> Result<Snapshot, Error> {
    for name in shared.host.list_in(share, &id.directory()).await?.unwrap_or_default() {
        let name = name.to_string_lossy();
        if !id.archives().iter().any(|archive| *archive == name) {
            let (name, found, wanted) = (id.name.clone(), name.into_owned(), id.archive(true));
            return Err(Error::MatchExisting { name, found, wanted });
        }
    }
    if let Some(archive) = find_archive(shared, share, id).await? {
        let is_whole =
            shared.host.is_whole_archive(share, &archive).await.map_err(|source| match source.os_error() {
                // Its contents are at fault, and not the way to them.
                None if !source.is_uncertain() => Error::ReadArchive { place: name_of(&id.export, &archive), source },
                _ => source.into(),
            })?;
        if is_whole {
            return about(shared, share, id, &archive).await;
        }
        // It ends too early: the original was killed while it wrote it.
        shared.host.remove_in(share, &archive).await?;
    }
    let about_source = shared.host.look_in(from, &source.way).await?;
    if about_source.is_none_or(|entry| entry.kind != FileKind::Directory) {
        return Err(Error::Find { field: "source_volume_id", handle: source.to_string() });
    }
    let (compress, unfinished) = (shared.options.compress, id.unfinished());
    let name = id.archive(compress);
    let packer = if shared.options.pack_by_program { Packer::Program } else { Packer::Own };
    let packed = async {
        shared.host.remove_in(share, &unfinished).await?;
        let archive = unfinished.join(&name);
        shared.host.make_dirs_in(share, &unfinished).await?;
        shared.host.pack_in((from, &source.way), (share, &archive), compress, packer).await?;
        shared.host.rename_in(share, &unfinished, &id.directory()).await?;
        shared.host.flush_share(share).await
    };
    if let Err(error) = packed.await {
        if let Err(error) = shared.host.remove_in(share, &unfinished).await {
            tracing::warn!(snapshot = %id, %error, "what was packed of it takes space until it is made or deleted");
        }
        return Err(error.into());
    }
    about(shared, share, id, &id.directory().join(name)).await
}

async fn about(shared: &Shared, share: &Share, id: &SnapshotId, archive: &Path) -> Result<Snapshot, Error> {
    let missing = || Error::Find { field: "snapshot", handle: id.to_string() };
    let entry = shared.host.look_in(share, archive).await?.ok_or_else(missing)?;
    Ok(Snapshot {
        snapshot_id: id.to_string(),
        size_bytes: i64::try_from(entry.size).unwrap_or(i64::MAX),
        // The same each time it is asked for.
        creation_time: Some(entry.modified.into()),
        ready_to_use: true,
        ..Default::default()
    })
}

pub async fn delete(shared: &Shared, request: &DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Error> {
    if request.snapshot_id.is_empty() {
        return Err(Error::ReadField { field: "snapshot_id" });
    }
    let Some(id) = SnapshotId::parse(&request.snapshot_id) else {
        tracing::warn!(snapshot = request.snapshot_id, "not an id of this driver, so there is nothing to delete");
        return Ok(DeleteSnapshotResponse {});
    };
    let _guard = shared.locks.try_lock(&id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let words: Vec<_> = parameters::mount_options(&request.secrets).into_iter().collect();
    let mounted = open(shared, &id.export, &words).await?;
    let removed = remove(shared, &mounted.share, &id).await;
    shared.mounts.close(mounted).await;
    removed?;
    tracing::info!(snapshot = %id, "deleted");
    Ok(DeleteSnapshotResponse {})
}

/// Only what a snapshot is made of: an id that names somebody's volume must not remove it.
async fn remove(shared: &Shared, share: &Share, id: &SnapshotId) -> Result<(), Error> {
    shared.host.remove_in(share, &id.unfinished()).await?;
    let names = shared.host.list_in(share, &id.directory()).await?.unwrap_or_default();
    let own = id.archives();
    let foreign = |found: &OsString| {
        let (place, found) = (name_of(&id.export, &id.directory()), found.to_string_lossy().into_owned());
        Error::RemoveForeign { place, found }
    };
    if let Some(found) = names.iter().find(|name| !own.iter().any(|own| own.as_str() == **name)) {
        return Err(foreign(found));
    }
    for archive in &own {
        shared.host.remove_in(share, &id.directory().join(archive)).await?;
    }
    match shared.host.remove_empty_in(share, &id.directory()).await? {
        true => Ok(()),
        // Somebody has an archive open, which the kernel gives another name until then, or has just put it there.
        false => Err(foreign(&"a file that is new or still open".into())),
    }
}
