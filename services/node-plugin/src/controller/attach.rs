//! ControllerPublishVolume and ControllerUnpublishVolume: who holds a volume is one field of its record, for as long as
//! a mark lies beside it.

use std::collections::{BTreeMap, BTreeSet};

use stowage_csi::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse,
};

use super::arrivals::Arrival;
use super::{Error, volumes};
use crate::args::is_node_id;
use crate::capability::Capability;
use crate::driver::Shared;
use crate::token::{self, Publish, TOKEN_KEY};
use crate::volume::{Attachment, VolumeId};

pub async fn publish(
    shared: &Shared,
    request: &ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolumeResponse, Error> {
    if !shared.attach {
        return Err(Error::OfferAttach { rpc: "ControllerPublishVolume" });
    }
    let missing = |field| Error::ReadField { field };
    let unknown = || Error::FindVolume { volume: request.volume_id.clone() };
    if request.volume_id.is_empty() {
        return Err(missing("volume_id"));
    }
    if request.node_id.is_empty() {
        return Err(missing("node_id"));
    }
    let capability = Capability::read(request.volume_capability.as_ref()).map_err(Error::ReadCapability)?;
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let mut record = pool.load(&id).await?.ok_or_else(unknown)?;
    if !is_node_id(&request.node_id) || !pool.exists(&pool.node(&request.node_id)).await? {
        return Err(Error::FindNode { node: request.node_id.clone(), pool: pool.name().into() });
    }
    if !volumes::is_made(pool, &id, &record).await? {
        return Err(Error::FindImage { volume: id.to_string() });
    }
    capability.check_volume(shared.attach, &record).map_err(Error::ReadCapability)?;

    let several = capability.is_multi_node();
    let attachment = match token::publish(&record, &request.node_id, several, request.readonly) {
        Publish::Keep(attachment) => attachment,
        Publish::Differ(attachment) => {
            let access = match (attachment.read_only == request.readonly, attachment.read_only) {
                (false, true) => "for reading only",
                (false, false) => "for writing",
                (true, _) if several => "for one node alone",
                (true, _) => "as one of several nodes",
            };
            return Err(Error::MatchAttachment { volume: id.to_string(), node: attachment.node, access });
        }
        Publish::Refuse { holder } => return Err(Error::Attached { volume: id.to_string(), node: holder }),
        Publish::Attach => {
            let _arrival = check_count(shared, &request.node_id, &id).await?;
            let token = shared.host.unique_id().await.map_err(|source| pool.failed(source))?;
            let (node, read_only) = (request.node_id.clone(), request.readonly);
            let attachment = Attachment { node, token, read_only, several: Some(several), unmarked: false };
            pool.attach(&id, &mut record, attachment.clone()).await?;
            tracing::info!(volume = %id, node = %request.node_id, "attached");
            attachment
        }
    };
    let publish_context = BTreeMap::from([(TOKEN_KEY.to_owned(), attachment.token)]);
    Ok(ControllerPublishVolumeResponse { publish_context })
}

pub async fn unpublish(
    shared: &Shared,
    request: &ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolumeResponse, Error> {
    if !shared.attach {
        return Err(Error::OfferAttach { rpc: "ControllerUnpublishVolume" });
    }
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let done = ControllerUnpublishVolumeResponse {};
    let Some(id) = VolumeId::parse(&request.volume_id) else { return Ok(done) };
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open().await?;
    let Some(mut record) = pool.load(&id).await? else { return Ok(done) };
    for attachment in token::unpublish(&mut record, &request.node_id) {
        pool.detach(&id, &record, &attachment).await?;
        tracing::info!(volume = %id, node = %attachment.node, "detached");
    }
    Ok(done)
}

/// Only where a limit is set: it takes a look at every record.
async fn check_count<'a>(shared: &'a Shared, node: &str, id: &VolumeId) -> Result<Option<Arrival<'a>>, Error> {
    if shared.max_volumes == 0 {
        return Ok(None);
    }
    let (arrival, earlier) = shared.arrivals.set_out(node, &id.to_string());
    let mut there: BTreeSet<_> = earlier.into_iter().collect();
    for pool in &shared.pools {
        for key in pool.keys().await? {
            let other = shared.id_in(pool, &key);
            match pool.load(&other).await {
                Ok(Some(record)) if record.attachments.iter().any(|attachment| attachment.node == node) => {
                    there.insert(other.to_string());
                }
                Ok(_) => {}
                // It must not keep all other volumes from their nodes.
                Err(error) => tracing::warn!(volume = %other, %error, "a volume is not counted"),
            }
        }
    }
    match i64::try_from(there.len()).unwrap_or(i64::MAX) {
        count if count < shared.max_volumes => Ok(Some(arrival)),
        count => Err(Error::CountVolumes { node: node.into(), count }),
    }
}
