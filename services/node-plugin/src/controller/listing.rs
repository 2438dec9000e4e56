//! The calls that only look: ListVolumes, ListSnapshots, ControllerGetVolume.
//!
//! A page token is the last id of the page before: it stays good when volumes come and go between two pages.

use stowage_csi::v1::controller_get_volume_response;
use stowage_csi::v1::list_snapshots_response;
use stowage_csi::v1::list_volumes_response::{Entry, VolumeStatus};
use stowage_csi::v1::{
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ListSnapshotsRequest, ListSnapshotsResponse,
    ListVolumesRequest, ListVolumesResponse, VolumeCondition,
};

use super::{Error, volumes};
use crate::driver::Shared;
use crate::handle::Handle;
use crate::pool::Pool;
use crate::volume::{Record, VolumeId};

/// Where a page begins and how long it may be.
struct Page {
    after: Option<Handle>,
    most: usize,
}

impl Page {
    fn read(max_entries: i32, starting_token: &str) -> Result<Self, Error> {
        let most = match usize::try_from(max_entries).map_err(|_| Error::ReadPageSize { value: max_entries })? {
            0 => usize::MAX,
            most => most,
        };
        let refuse = || Error::ReadPageToken { token: starting_token.to_owned() };
        let after = match starting_token {
            "" => None,
            token => Some(Handle::parse(token).ok_or_else(refuse)?),
        };
        Ok(Page { after, most })
    }

    fn is_before(&self, id: &Handle) -> bool {
        self.after.as_ref().is_none_or(|after| id > after)
    }
}

pub async fn volumes(shared: &Shared, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Error> {
    let page = Page::read(request.max_entries, &request.starting_token)?;
    let mut ids = Vec::new();
    for pool in &shared.pools {
        pool.open().await?;
        ids.extend(pool.keys().await?.iter().map(|key| shared.id_in(pool, key)));
    }
    ids.sort();
    let mut rest = ids.into_iter().filter(|id| page.is_before(id)).peekable();
    let mut answer = ListVolumesResponse::default();
    let mut last = None;
    while answer.entries.len() < page.most
        && let Some(id) = rest.next()
    {
        let pool = shared.pool_of(&id)?;
        match pool.load(&id).await {
            Ok(Some(record)) => {
                let nodes = record.attachments.iter().map(|attachment| attachment.node.clone()).collect();
                let condition = condition(shared, pool, &id, &record).await?;
                let status = VolumeStatus { published_node_ids: nodes, volume_condition: Some(condition) };
                let volume = Some(volumes::describe(shared, &id, &record));
                answer.entries.push(Entry { volume, status: Some(status) });
            }
            // Removed since the names were read.
            Ok(None) => {}
            Err(error) => tracing::warn!(volume = %id, %error, "a volume is not listed"),
        }
        last = Some(id);
    }
    if let (Some(_), Some(last)) = (rest.peek(), last) {
        answer.next_token = last.to_string();
    }
    Ok(answer)
}

pub async fn snapshots(shared: &Shared, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Error> {
    let page = Page::read(request.max_entries, &request.starting_token)?;
    let mut ids = Vec::new();
    for pool in &shared.pools {
        pool.open().await?;
        ids.extend(pool.snapshot_keys().await?.iter().map(|key| shared.id_in(pool, key)));
    }
    ids.retain(|id| request.snapshot_id.is_empty() || id.to_string() == request.snapshot_id);
    ids.sort();
    let mut answer = ListSnapshotsResponse::default();
    let mut last: Option<Handle> = None;
    for id in ids.into_iter().filter(|id| page.is_before(id)) {
        // What is not cut yet must not be listed, and what is of other volumes was not asked for.
        let snapshot = match shared.pool_of(&id)?.load_snapshot(&id).await {
            Ok(snapshot) => snapshot.filter(|snapshot| snapshot.cut.is_some()),
            Err(error) => {
                tracing::warn!(snapshot = %id, %error, "a snapshot is not listed");
                None
            }
        };
        let of_source = |source: &str| request.source_volume_id.is_empty() || request.source_volume_id == source;
        let Some(snapshot) = snapshot.filter(|snapshot| of_source(&snapshot.source)) else { continue };
        // One more than fits shows that there is another page.
        if answer.entries.len() == page.most {
            answer.next_token = last.map(|last| last.to_string()).unwrap_or_default();
            break;
        }
        answer.entries.push(list_snapshots_response::Entry { snapshot: Some(snapshot.describe(&id)) });
        last = Some(id);
    }
    Ok(answer)
}

pub async fn volume(
    shared: &Shared,
    request: &ControllerGetVolumeRequest,
) -> Result<ControllerGetVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let unknown = || Error::FindVolume { volume: request.volume_id.clone() };
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let pool = shared.pool_of(&id)?;
    pool.open().await?;
    let record = pool.load(&id).await?.ok_or_else(unknown)?;
    let status = controller_get_volume_response::VolumeStatus {
        published_node_ids: record.attachments.iter().map(|attachment| attachment.node.clone()).collect(),
        volume_condition: Some(condition(shared, pool, &id, &record).await?),
    };
    let volume = Some(volumes::describe(shared, &id, &record));
    Ok(ControllerGetVolumeResponse { volume, status: Some(status) })
}

/// What stands between a volume and its use.
async fn condition(shared: &Shared, pool: &Pool, id: &VolumeId, record: &Record) -> Result<VolumeCondition, Error> {
    let abnormal = |message: String| Ok(VolumeCondition { abnormal: true, message });
    if !volumes::is_made(pool, id, record).await? {
        return abnormal("the volume was not made completely; repeat CreateVolume or delete it".into());
    }
    if record.is_image() {
        let image = shared.host.stat(&pool.image(id)).await.map_err(|source| pool.failed(source))?;
        let bytes = image.map_or(0, |image| image.size);
        if bytes < record.capacity_bytes {
            let message = format!("the image has {bytes} bytes instead of {}; restore it", record.capacity_bytes);
            return abnormal(message);
        }
    }
    match pool.check_room().await {
        Ok(()) => Ok(VolumeCondition { abnormal: false, message: "the volume is whole".into() }),
        Err(error) => abnormal(error.to_string()),
    }
}
