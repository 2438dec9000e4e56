//! Snapshots of volumes, and volumes made from them.

use tonic::Status;

use stowage_csi::v1::list_snapshots_response::Entry;
use stowage_csi::v1::volume_content_source::{self as content_source, SnapshotSource, VolumeSource};
use stowage_csi::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
    Snapshot, VolumeContentSource,
};

use super::state::{Cut, Source, State};

pub(super) fn create(state: &mut State, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
    served(state.abilities.snapshots, "CreateSnapshot")?;
    let CreateSnapshotRequest { source_volume_id: volume, name, .. } = request;
    for (field, value) in [("name", &name), ("source_volume_id", &volume)] {
        if value.is_empty() {
            return Err(Status::invalid_argument(format!("{field} is empty")));
        }
    }
    let existing = state.snapshots.iter().find(|(_, cut)| cut.name == name).map(|(id, cut)| (id.clone(), cut));
    let id = match existing {
        Some((_, cut)) if cut.volume != volume => {
            let other = &cut.volume;
            return Err(Status::already_exists(format!("snapshot {name} exists and is of volume {other}")));
        }
        Some((id, _)) => id,
        None => {
            state.next_moment();
            state.cut(&volume, &name, None)?
        }
    };
    Ok(CreateSnapshotResponse { snapshot: state.look(&id) })
}

pub(super) fn delete(state: &mut State, id: &str) -> Result<DeleteSnapshotResponse, Status> {
    served(state.abilities.snapshots, "DeleteSnapshot")?;
    if id.is_empty() {
        return Err(Status::invalid_argument("snapshot_id is empty"));
    }
    if let Some(group) = state.snapshots.get(id).and_then(|cut| cut.group.as_ref()) {
        return Err(Status::invalid_argument(format!("snapshot {id} goes only with its group {group}")));
    }
    state.snapshots.remove(id);
    Ok(DeleteSnapshotResponse {})
}

pub(super) fn list(state: &mut State, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Status> {
    served(state.abilities.list_snapshots, "ListSnapshots")?;
    let most = usize::try_from(request.max_entries)
        .map_err(|_| Status::invalid_argument(format!("max_entries is {}, less than 0", request.max_entries)))?;
    let wanted = |(id, cut): &(&String, &Cut)| {
        (request.snapshot_id.is_empty() || **id == request.snapshot_id)
            && (request.source_volume_id.is_empty() || cut.volume == request.source_volume_id)
    };
    let mut ids: Vec<String> = state.snapshots.iter().filter(wanted).map(|(id, _)| id.clone()).collect();
    let token = &request.starting_token;
    if !token.is_empty() {
        // A token is the last id that was listed; it stays good when that one is deleted meanwhile.
        let Some(last) = token.strip_prefix("after ") else {
            return Err(Status::aborted(format!("starting_token {token:?} was not given by this driver; start anew")));
        };
        ids.retain(|id| number(id) > number(last));
    }
    ids.sort_by_key(|id| number(id));
    let more = most > 0 && ids.len() > most;
    if more {
        ids.truncate(most);
    }
    let next_token = ids.last().filter(|_| more).map(|id| format!("after {id}")).unwrap_or_default();
    let entries = ids.iter().map(|id| Entry { snapshot: state.look(id) }).collect();
    Ok(ListSnapshotsResponse { entries, next_token })
}

/// Ids are in the order of their numbers, not of their letters.
fn number(id: &str) -> u64 {
    id.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// What a new volume is to be made from.
pub(super) fn source(state: &State, wanted: Option<VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(wanted) = wanted else { return Ok(None) };
    match wanted.r#type {
        Some(content_source::Type::Snapshot(source)) if state.abilities.snapshots => {
            Ok(Some(Source::Snapshot(source.snapshot_id)))
        }
        Some(content_source::Type::Volume(source)) if state.abilities.clones => {
            Ok(Some(Source::Volume(source.volume_id)))
        }
        other => Err(Status::invalid_argument(format!("volume_content_source {other:?} is not supported"))),
    }
}

impl From<Source> for VolumeContentSource {
    fn from(source: Source) -> Self {
        let kind = match source {
            Source::Snapshot(snapshot_id) => content_source::Type::Snapshot(SnapshotSource { snapshot_id }),
            Source::Volume(volume_id) => content_source::Type::Volume(VolumeSource { volume_id }),
        };
        Self { r#type: Some(kind) }
    }
}

pub(super) fn served(can: bool, rpc: &str) -> Result<(), Status> {
    if can { Ok(()) } else { Err(Status::unimplemented(format!("this driver does not serve {rpc}"))) }
}

impl State {
    /// Size and content that a volume begins with.
    pub(super) fn contents_of(&mut self, source: &Source) -> Result<(i64, u64), Status> {
        match source {
            Source::Snapshot(id) => {
                let Some(cut) = self.snapshots.get(id) else {
                    return Err(Status::not_found(format!("snapshot {id} does not exist")));
                };
                let contents = (cut.bytes, cut.content);
                if !cut.is_ready() {
                    self.violation(format!("S1: asked to make a volume of snapshot {id}, which is not ready"));
                    return Err(Status::unavailable(format!("snapshot {id} is not ready")));
                }
                Ok(contents)
            }
            Source::Volume(id) => {
                let made = self.volumes.get(id);
                let missing = || Status::not_found(format!("volume {id} does not exist"));
                made.map(|made| (made.bytes, made.content)).ok_or_else(missing)
            }
        }
    }

    /// Cuts a snapshot of a volume as it is at this moment.
    pub(super) fn cut(&mut self, volume: &str, name: &str, group: Option<String>) -> Result<String, Status> {
        let Some(made) = self.volumes.get(volume) else {
            return Err(Status::not_found(format!("volume {volume} does not exist")));
        };
        let cut = Cut {
            name: name.to_owned(),
            volume: volume.to_owned(),
            bytes: made.bytes,
            content: made.content,
            moment: self.moment,
            created: self.created(),
            looks: self.ready_after,
            group,
            by_hand: false,
        };
        self.made += 1;
        let id = format!("snap-{}", self.made);
        self.snapshots.insert(id.clone(), cut);
        Ok(id)
    }

    /// What is said of a snapshot; it is nearer to being ready after each look.
    pub(super) fn look(&mut self, id: &str) -> Option<Snapshot> {
        let cut = self.snapshots.get_mut(id)?;
        let snapshot = Snapshot {
            size_bytes: cut.bytes,
            snapshot_id: id.to_owned(),
            source_volume_id: cut.volume.clone(),
            creation_time: Some(timestamp(cut.created)),
            ready_to_use: cut.is_ready(),
            group_snapshot_id: cut.group.clone().unwrap_or_default(),
        };
        cut.looks = cut.looks.saturating_sub(1);
        Some(snapshot)
    }
}

pub(super) fn timestamp(moment: jiff::Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: moment.as_second(), nanos: moment.subsec_nanosecond() }
}

#[cfg(test)]
mod tests;
