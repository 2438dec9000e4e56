//! The GroupController service: snapshots of several volumes at one moment.
//!
//! All members stand still before the first is cut and until the last is. The group's record comes first, then those
//! of its members, then the images; the moment of the cut in the group's record makes it exist. What a kill leaves
//! before that is cut anew, what it leaves after is finished.

use std::sync::Arc;

use stowage_csi::v1::group_controller_server::GroupController;
use stowage_csi::v1::group_controller_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::*;
use stowage_mount::Space;
use tonic::{Request, Response, Status};

use crate::calls::Side;
use crate::controller::copying::{self, Plan};
use crate::controller::{Error, check_name, snapshots};
use crate::driver::Shared;
use crate::freezing::{Use, while_frozen};
use crate::handle::Handle;
use crate::parameters;
use crate::pool::{self, Pool, Promise};
use crate::snapshot::{Group, Member, Snapshot as Record};
use crate::volume::RECORD_VERSION;

pub struct Service(pub Arc<Shared>);

#[tonic::async_trait]
impl GroupController for Service {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        let kind = rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
        let capability = GroupControllerServiceCapability {
            r#type: Some(group_controller_service_capability::Type::Rpc(Rpc { r#type: kind })),
        };
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { create(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "CreateVolumeGroupSnapshot", call).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { delete(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "DeleteVolumeGroupSnapshot", call).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        Ok(Response::new(get(&self.0, &request.into_inner()).await?))
    }
}

/// One volume on its way into a group.
struct Part<'a> {
    volume: Handle,
    snapshot: Handle,
    pool: &'a Pool,
    record: Record,
    plan: Plan,
    /// The space it may come to need; none before all parts are known to be possible.
    promise: Option<Promise<'a>>,
}

async fn create(
    shared: &Shared,
    request: &CreateVolumeGroupSnapshotRequest,
) -> Result<CreateVolumeGroupSnapshotResponse, Error> {
    check_name(&request.name)?;
    let freeze = parameters::freeze_for_copy(&request.parameters).map_err(Error::ReadParameters)?;
    let sources = read_sources(&request.source_volume_ids)?;
    let home = shared.pool_of(&sources[0])?;
    let id = shared.id_in(home, &Handle::key_of(&request.name));
    let lock = |name: &str| shared.locks.try_lock(name).ok_or_else(|| Error::Lock { volume: name.to_owned() });
    let mut guards = vec![lock(&lock_name(&id))?];
    for source in &sources {
        guards.push(lock(source.key())?);
    }
    let wanted = describe_members(shared, &request.name, &sources)?;
    for pool in &shared.pools {
        // The same name is the same group, in whichever pool its first volume is.
        let found_id = shared.id_in(pool, id.key());
        let found = pool.load_group(&found_id).await?;
        if let Some(group) = found.filter(|group| group.members != wanted || group.name != request.name) {
            if group.cut.is_none() {
                // A kill has left it, and nobody ever heard of it.
                forget(shared, pool, &found_id, &group).await?;
                continue;
            }
            let has = group.members.iter().map(|member| member.volume.as_str()).collect::<Vec<_>>().join(", ");
            let wanted = sources.iter().map(Handle::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::MatchExisting { volume: format!("group {id}"), has, wanted });
        }
    }
    let existing = home.load_group(&id).await?;
    let group = match existing {
        Some(group) if group.cut.is_some() => group,
        unfinished => {
            let wanted = Group { version: RECORD_VERSION, name: request.name.clone(), members: wanted, cut: None };
            let parts = match prepare_all(shared, &id, &sources, &wanted, freeze).await {
                Err(cause) if unfinished.is_some() => return Err(undo(shared, home, &id, &wanted, cause).await),
                parts => parts?,
            };
            cut_all(shared, home, &id, wanted, parts).await?
        }
    };
    Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(finish(shared, &id, &group).await?) })
}

/// In order, each once: the same volumes are the same group however they are listed.
fn read_sources(texts: &[String]) -> Result<Vec<Handle>, Error> {
    if texts.is_empty() {
        return Err(Error::ReadField { field: "source_volume_ids" });
    }
    let parse = |text: &String| Handle::parse(text).ok_or_else(|| Error::FindVolume { volume: text.clone() });
    let mut sources = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    sources.sort();
    sources.dedup();
    Ok(sources)
}

fn describe_members(shared: &Shared, name: &str, sources: &[Handle]) -> Result<Vec<Member>, Error> {
    let member = |source: &Handle| {
        let key = Handle::key_of_part(name, &source.to_string());
        let snapshot = shared.id_in(shared.pool_of(source)?, &key);
        Ok(Member { volume: source.to_string(), snapshot: snapshot.to_string() })
    };
    sources.iter().map(member).collect()
}

/// Changes nothing.
async fn prepare_all<'a>(
    shared: &'a Shared,
    id: &Handle,
    sources: &[Handle],
    group: &Group,
    freeze: bool,
) -> Result<Vec<Part<'a>>, Error> {
    let mut parts = Vec::new();
    for (source, member) in sources.iter().zip(&group.members) {
        let snapshot = Handle::parse(&member.snapshot).expect("made from a pool's name and digests");
        parts.push(prepare(shared, id, &group.name, source, snapshot, freeze, sources.len() > 1).await?);
    }
    for part in &mut parts {
        let promise = snapshots::promise(shared, part.pool, &part.snapshot, &part.volume, part.plan.way).await?;
        part.promise = Some(promise);
    }
    Ok(parts)
}

/// As for a volume: after a final error code there is nothing, also of what a killed driver had begun.
async fn undo(shared: &Shared, home: &Pool, id: &Handle, group: &Group, cause: Error) -> Error {
    cause.once_undone(format!("group {id}"), forget(shared, home, id, group).await)
}

/// The members first: whatever a kill leaves has a record that names them.
async fn forget(shared: &Shared, home: &Pool, id: &Handle, group: &Group) -> Result<(), pool::Error> {
    let snapshots: Vec<_> = group.members.iter().filter_map(|member| Handle::parse(&member.snapshot)).collect();
    // In a pool that is away nothing would be found to be removed.
    for snapshot in &snapshots {
        shared.pool_of(snapshot)?.open_for_writing().await?;
    }
    for snapshot in &snapshots {
        shared.pool_of(snapshot)?.forget_snapshot(snapshot).await?;
    }
    home.forget_group(id).await
}

/// Removes a group that a killed driver had begun and not cut: nobody ever got its id, and its images take space.
pub async fn forget_unfinished(shared: &Shared, pool: &Pool, id: &Handle) -> Result<(), pool::Error> {
    let Some(_guard) = shared.locks.try_lock(&lock_name(id)) else { return Ok(()) };
    if let Some(group) = pool.load_group(id).await?.filter(|group| group.cut.is_none()) {
        forget(shared, pool, id, &group).await?;
        tracing::info!(group = %id, "removed what an earlier run had begun");
    }
    Ok(())
}

async fn cut_all(
    shared: &Shared,
    home: &Pool,
    id: &Handle,
    mut group: Group,
    parts: Vec<Part<'_>>,
) -> Result<Group, Error> {
    let cut = async {
        home.prepare_for_snapshots().await?;
        home.store_group(id, &group).await?;
        for part in &parts {
            part.pool.prepare_for_snapshots().await?;
            part.pool.store_snapshot(&part.snapshot, &part.record).await?;
        }
        let subjects: Vec<_> = parts.iter().filter_map(|part| part.plan.subject(part.pool, &part.volume)).collect();
        let fill = async {
            let mut moment = shared.host.now();
            for part in &parts {
                let (pool, bytes) = (part.pool, part.record.size_bytes);
                let target = pool.snapshot_image(&part.snapshot);
                moment = copying::cut(shared, (pool, &part.volume), &part.plan, (pool, &target), bytes, Space::Sparse)
                    .await?;
            }
            Ok::<_, Error>(moment)
        };
        group.cut = Some(while_frozen(shared, &subjects, fill).await?.into());
        Ok(home.store_group(id, &group).await?)
    };
    if let Err(cause) = cut.await {
        return Err(undo(shared, home, id, &group, cause).await);
    }
    tracing::info!(group = %id, members = parts.len(), "cut");
    Ok(group)
}

async fn prepare<'a>(
    shared: &'a Shared,
    group: &Handle,
    name: &str,
    source: &Handle,
    snapshot: Handle,
    freeze: bool,
    together: bool,
) -> Result<Part<'a>, Error> {
    let pool = shared.pool_of(source)?;
    pool.open_for_writing().await?;
    let volume = snapshots::find_source(pool, source).await?;
    if together {
        // Only what stands still can be cut at the same moment as others.
        let refuse = |reason| Err(Error::CutTogether { volume: source.to_string(), reason });
        match Use::find(shared, pool, source, &volume).await? {
            Use::Nobody | Use::Mounted(_) => {}
            Use::Device(_) => return refuse("it is a block device in use, which cannot be made to stand still"),
            Use::Elsewhere { .. } => return refuse("it is in use on another node"),
        }
    }
    let plan = copying::plan(shared, pool, source, &volume, pool.can_clone().await?, freeze).await?;
    let record = Record::of(source, &volume, name, Some(group));
    Ok(Part { volume: source.clone(), snapshot, pool, record, plan, promise: None })
}

/// Gives each member the moment of its group, and shows the group.
async fn finish(shared: &Shared, id: &Handle, group: &Group) -> Result<VolumeGroupSnapshot, Error> {
    let mut shown = Vec::new();
    for member in &group.members {
        let (snapshot, mut record) = snapshots::find(shared, &member.snapshot).await?;
        if record.cut.is_none() {
            record.cut = group.cut;
            shared.pool_of(&snapshot)?.store_snapshot(&snapshot, &record).await?;
        }
        shown.push(record.describe(&snapshot));
    }
    Ok(describe(id, group, shown))
}

fn describe(id: &Handle, group: &Group, snapshots: Vec<Snapshot>) -> VolumeGroupSnapshot {
    VolumeGroupSnapshot {
        group_snapshot_id: id.to_string(),
        ready_to_use: group.cut.is_some() && snapshots.iter().all(|snapshot| snapshot.ready_to_use),
        snapshots,
        creation_time: group.cut.map(Into::into),
    }
}

fn lock_name(id: &Handle) -> String {
    format!("group {}", id.key())
}

/// CSI wants all members named, and a mismatch told: "none" is one.
fn check_members(id: &Handle, group: &Group, given: &[String]) -> Result<(), Error> {
    let mut has: Vec<_> = group.members.iter().map(|member| member.snapshot.clone()).collect();
    let mut given = given.to_vec();
    has.sort();
    given.sort();
    match has == given {
        true => Ok(()),
        false => Err(Error::MatchMembers { group: id.to_string(), has, given }),
    }
}

async fn delete(
    shared: &Shared,
    request: &DeleteVolumeGroupSnapshotRequest,
) -> Result<DeleteVolumeGroupSnapshotResponse, Error> {
    if request.group_snapshot_id.is_empty() {
        return Err(Error::ReadField { field: "group_snapshot_id" });
    }
    let done = DeleteVolumeGroupSnapshotResponse {};
    let Some(id) = Handle::parse(&request.group_snapshot_id) else { return Ok(done) };
    let home = shared.pool_of(&id)?;
    let name = lock_name(&id);
    let _guard = shared.locks.try_lock(&name).ok_or_else(|| Error::Lock { volume: name.clone() })?;
    home.open_for_writing().await?;
    let Some(group) = home.load_group(&id).await? else { return Ok(done) };
    check_members(&id, &group, &request.snapshot_ids)?;
    let snapshots: Vec<_> = group.members.iter().filter_map(|member| Handle::parse(&member.snapshot)).collect();
    let lock = |snapshot| snapshots::lock_to_remove(shared, snapshot);
    let _guards = snapshots.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    for snapshot in snapshots {
        shared.pool_of(&snapshot)?.forget_snapshot(&snapshot).await?;
    }
    home.forget_group(&id).await?;
    tracing::info!(group = %id, "removed");
    Ok(done)
}

async fn get(
    shared: &Shared,
    request: &GetVolumeGroupSnapshotRequest,
) -> Result<GetVolumeGroupSnapshotResponse, Error> {
    if request.group_snapshot_id.is_empty() {
        return Err(Error::ReadField { field: "group_snapshot_id" });
    }
    let missing = || Error::FindGroup { group: request.group_snapshot_id.clone() };
    let id = Handle::parse(&request.group_snapshot_id).ok_or_else(missing)?;
    let home = shared.pool_of(&id)?;
    home.open().await?;
    let group = home.load_group(&id).await?.ok_or_else(missing)?;
    check_members(&id, &group, &request.snapshot_ids)?;
    let mut shown = Vec::new();
    for member in &group.members {
        let (snapshot, record) = snapshots::find(shared, &member.snapshot).await?;
        shown.push(record.describe(&snapshot));
    }
    Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(describe(&id, &group, shown)) })
}
