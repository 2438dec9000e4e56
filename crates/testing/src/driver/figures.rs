//! What the driver tells of itself: its volumes, where they are published, and how much room there is.

use tonic::Status;

use stowage_csi::v1::list_volumes_response::{Entry, VolumeStatus};
use stowage_csi::v1::{GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, Volume};

use super::State;

/// All volumes together have at most so many bytes: 100 GiB. Only what is told of the room follows it.
pub const POOL: i64 = 100 << 30;

pub(super) fn room(state: &State) -> Result<GetCapacityResponse, Status> {
    if !state.abilities.capacity {
        return Err(Status::unimplemented("nobody counts the room here"));
    }
    let taken: i64 = state.volumes.values().map(|made| made.bytes).sum();
    Ok(GetCapacityResponse { available_capacity: (POOL - taken).max(0), ..GetCapacityResponse::default() })
}

/// A token is the first id of its page.
pub(super) fn list(state: &State, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
    if !state.abilities.listing {
        return Err(Status::unimplemented("volumes are not listed here"));
    }
    let most = match usize::try_from(request.max_entries) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(most) => most,
    };
    let mut left = state.volumes.range(request.starting_token.clone()..);
    let entries = left.by_ref().take(most).map(|(id, made)| {
        let nodes = state.attached.get(id).into_iter().flatten().cloned().collect();
        let volume = Volume { volume_id: id.clone(), capacity_bytes: made.bytes, ..Volume::default() };
        let status = VolumeStatus { published_node_ids: nodes, ..VolumeStatus::default() };
        Entry { volume: Some(volume), status: Some(status) }
    });
    let entries = entries.collect();
    Ok(ListVolumesResponse { entries, next_token: left.next().map(|(id, _)| id.clone()).unwrap_or_default() })
}
