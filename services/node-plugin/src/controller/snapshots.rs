//! CreateSnapshot, DeleteSnapshot, GetSnapshot.
//!
//! A record without the moment of the cut comes first, then the image, then the moment: whatever a kill leaves has a
//! record, is not listed, and is cut anew by the same call or removed by DeleteSnapshot.

use stowage_csi::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, GetSnapshotRequest,
    GetSnapshotResponse,
};
use stowage_mount::Space;

use super::copying::{self, Plan, Way};
use super::{Error, check_name, volumes};
use crate::driver::Shared;
use crate::freezing::while_frozen;
use crate::handle::Handle;
use crate::locks::Guard;
use crate::parameters;
use crate::pool::{self, Pool, Promise};
use crate::snapshot::Snapshot;
use crate::volume::Record;

pub fn lock_name(id: &Handle) -> String {
    format!("snapshot {}", id.key())
}

pub async fn create(shared: &Shared, request: &CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Error> {
    check_name(&request.name)?;
    if request.source_volume_id.is_empty() {
        return Err(Error::ReadField { field: "source_volume_id" });
    }
    let freeze = parameters::freeze_for_copy(&request.parameters).map_err(Error::ReadParameters)?;
    let text = &request.source_volume_id;
    let source = Handle::parse(text).ok_or_else(|| Error::FindVolume { volume: text.clone() })?;
    let pool = shared.pool_of(&source)?;
    let id = shared.id_in(pool, &Handle::key_of(&request.name));
    let lock = |name: &str| shared.locks.try_lock(name).ok_or_else(|| Error::Lock { volume: name.to_owned() });
    let _guards = (lock(&lock_name(&id))?, lock(source.key())?);
    refuse_twin(shared, &id).await?;
    pool.open_for_writing().await?;

    let existing = pool.load_snapshot(&id).await?;
    if let Some(existing) = &existing {
        if existing.source != source.to_string() || existing.name != request.name {
            let (has, wanted) = (format!("source {}", existing.source), format!("source {source}"));
            return Err(Error::MatchExisting { volume: format!("snapshot {id}"), has, wanted });
        }
        if existing.cut.is_some() {
            return Ok(CreateSnapshotResponse { snapshot: Some(existing.describe(&id)) });
        }
    }
    let prepared = async {
        let record = find_source(pool, &source).await?;
        let plan = copying::plan(shared, pool, &source, &record, pool.can_clone().await?, freeze).await?;
        let promise = promise(shared, pool, &id, &source, plan.way).await?;
        Ok((record, plan, promise))
    };
    let (record, plan, _promise) = match prepared.await {
        Err(cause) if existing.is_some() => return Err(undo(pool, &id, cause).await),
        prepared => prepared?,
    };
    let mut snapshot = Snapshot::of(&source, &record, &request.name, None);
    if let Err(cause) = cut(shared, pool, &id, &source, &plan, &mut snapshot).await {
        return Err(undo(pool, &id, cause).await);
    }
    tracing::info!(snapshot = %id, volume = %source, way = ?plan.way, frozen = plan.freeze.is_some(), "cut");
    Ok(CreateSnapshotResponse { snapshot: Some(snapshot.describe(&id)) })
}

/// As for a volume: after a final error code there is nothing, also of what a killed driver had begun.
async fn undo(pool: &Pool, id: &Handle, cause: Error) -> Error {
    cause.once_undone(format!("snapshot {id}"), pool.forget_snapshot(id).await)
}

/// Removes a snapshot that a killed driver had begun and not cut: nobody ever got its id, and its image takes space.
pub async fn forget_unfinished(shared: &Shared, pool: &Pool, id: &Handle) -> Result<(), pool::Error> {
    let Some(_guard) = shared.locks.try_lock(&lock_name(id)) else { return Ok(()) };
    let unfinished = |snapshot: &Snapshot| snapshot.cut.is_none() && snapshot.group.is_none();
    if pool.load_snapshot(id).await?.is_some_and(|snapshot| unfinished(&snapshot)) {
        pool.forget_snapshot(id).await?;
        tracing::info!(snapshot = %id, "removed what an earlier run had begun");
    }
    Ok(())
}

/// The volume a snapshot is to be taken of, as large as it really is.
pub async fn find_source(pool: &Pool, source: &Handle) -> Result<Record, Error> {
    let record = pool.load(source).await?.ok_or_else(|| Error::FindVolume { volume: source.to_string() })?;
    if !record.is_image() {
        return Err(Error::NeedImage { volume: source.to_string(), what: "snapshots" });
    }
    match volumes::is_made(pool, source, &record).await? {
        true => Ok(Record { capacity_bytes: pool.bytes_of(source, &record).await?, ..record }),
        false => Err(Error::FindImage { volume: source.to_string() }),
    }
}

/// Sets aside what a snapshot may come to hold alone: all that its source holds now.
pub async fn promise<'a>(
    shared: &'a Shared,
    pool: &'a Pool,
    id: &Handle,
    source: &Handle,
    way: Way,
) -> Result<Promise<'a>, Error> {
    let image = shared.host.stat(&pool.image(source)).await.map_err(|source| pool.failed(source))?;
    let wanted = image.map_or(0, |image| image.allocated);
    let (promise, free) = pool::set_aside(shared, pool, &lock_name(id), wanted).await?;
    let free = if way == Way::Share { free.thin } else { free.thick };
    match wanted <= free {
        true => Ok(promise),
        false => Err(Error::PromiseSpace { pool: pool.name().into(), free, wanted }),
    }
}

async fn cut(
    shared: &Shared,
    pool: &Pool,
    id: &Handle,
    source: &Handle,
    plan: &Plan,
    snapshot: &mut Snapshot,
) -> Result<(), Error> {
    pool.prepare_for_snapshots().await?;
    pool.store_snapshot(id, snapshot).await?;
    if let Some(device) = &plan.flush {
        shared.host.flush_device(device).await.map_err(|error| pool.failed(error))?;
    }
    let target = pool.snapshot_image(id);
    let fill = copying::cut(shared, (pool, source), plan, (pool, &target), snapshot.size_bytes, Space::Sparse);
    let subjects: Vec<_> = plan.subject(pool, source).into_iter().collect();
    let moment = while_frozen(shared, &subjects, fill).await?;
    snapshot.cut = Some(moment.into());
    Ok(pool.store_snapshot(id, snapshot).await?)
}

/// The same name in another pool is a snapshot of another volume.
async fn refuse_twin(shared: &Shared, id: &Handle) -> Result<(), Error> {
    for pool in shared.pools.iter().filter(|pool| pool.name() != id.pool()) {
        let twin = shared.id_in(pool, id.key());
        if pool.open().await.is_ok()
            && let Some(existing) = pool.load_snapshot(&twin).await?
        {
            let (has, wanted) = (format!("source {}", existing.source), format!("a source in pool {:?}", id.pool()));
            return Err(Error::MatchExisting { volume: format!("snapshot {twin}"), has, wanted });
        }
    }
    Ok(())
}

pub async fn delete(shared: &Shared, request: &DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Error> {
    if request.snapshot_id.is_empty() {
        return Err(Error::ReadField { field: "snapshot_id" });
    }
    let Some(id) = Handle::parse(&request.snapshot_id) else { return Ok(DeleteSnapshotResponse {}) };
    let pool = shared.pool_of(&id)?;
    let _guard = lock_to_remove(shared, &id)?;
    pool.open_for_writing().await?;
    let Some(snapshot) = pool.load_snapshot(&id).await? else { return Ok(DeleteSnapshotResponse {}) };
    if let Some(group) = snapshot.group {
        return Err(Error::Belong { snapshot: id.to_string(), group });
    }
    pool.forget_snapshot(&id).await?;
    tracing::info!(snapshot = %id, "removed");
    Ok(DeleteSnapshotResponse {})
}

/// For one that is being restored CSI has a code of its own.
pub fn lock_to_remove(shared: &Shared, id: &Handle) -> Result<Guard, Error> {
    let name = lock_name(id);
    let refuse = || match shared.locks.is_shared(&name) {
        true => Error::ReadSnapshot { snapshot: id.to_string() },
        false => Error::Lock { volume: name.clone() },
    };
    shared.locks.try_lock(&name).ok_or_else(refuse)
}

/// Also one that is not cut yet: CSI wants it shown as not ready.
pub async fn get(shared: &Shared, request: &GetSnapshotRequest) -> Result<GetSnapshotResponse, Error> {
    if request.snapshot_id.is_empty() {
        return Err(Error::ReadField { field: "snapshot_id" });
    }
    let (id, snapshot) = find(shared, &request.snapshot_id).await?;
    Ok(GetSnapshotResponse { snapshot: Some(snapshot.describe(&id)) })
}

pub async fn find(shared: &Shared, text: &str) -> Result<(Handle, Snapshot), Error> {
    let missing = || Error::FindSnapshot { snapshot: text.to_owned() };
    let id = Handle::parse(text).ok_or_else(missing)?;
    let pool = shared.pool_of(&id)?;
    pool.open().await?;
    let snapshot = pool.load_snapshot(&id).await?.ok_or_else(missing)?;
    Ok((id, snapshot))
}
