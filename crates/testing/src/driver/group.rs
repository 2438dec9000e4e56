//! Snapshots of several volumes, all of one moment.

use std::collections::BTreeSet;

use tonic::{Request, Response, Status, async_trait};

use stowage_csi::v1::group_controller_server::GroupController;
use stowage_csi::v1::group_controller_service_capability::{self as capability, rpc};
use stowage_csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability,
    VolumeGroupSnapshot,
};

use super::Service;
use super::snapshots::{served, timestamp};
use super::state::{Grouped, State};

#[async_trait]
impl GroupController for Service {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        let kind = rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
        let can =
            GroupControllerServiceCapability { r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: kind })) };
        self.driver
            .answer("GroupControllerGetCapabilities", "", |state| {
                served(state.abilities.group_snapshots, "GroupControllerGetCapabilities")?;
                Ok(GroupControllerGetCapabilitiesResponse { capabilities: vec![can] })
            })
            .await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let about = request.name.clone();
        self.driver.answer("CreateVolumeGroupSnapshot", &about, |state| create(state, request)).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let about = request.group_snapshot_id.clone();
        self.driver.answer("DeleteVolumeGroupSnapshot", &about, |state| delete(state, &request)).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let about = request.group_snapshot_id.clone();
        self.driver.answer("GetVolumeGroupSnapshot", &about, |state| get(state, &request)).await
    }
}

fn create(
    state: &mut State,
    request: CreateVolumeGroupSnapshotRequest,
) -> Result<CreateVolumeGroupSnapshotResponse, Status> {
    served(state.abilities.group_snapshots, "CreateVolumeGroupSnapshot")?;
    let CreateVolumeGroupSnapshotRequest { name, source_volume_ids: volumes, .. } = request;
    if name.is_empty() {
        return Err(Status::invalid_argument("name is empty"));
    }
    if volumes.is_empty() {
        return Err(Status::invalid_argument("source_volume_ids is empty"));
    }
    let existing = state.groups.iter().find(|(_, group)| group.name == name).map(|(id, _)| id.clone());
    let id = match existing {
        Some(id) if state.volumes_of(&id) != volumes.iter().cloned().collect() => {
            let others = state.volumes_of(&id);
            return Err(Status::already_exists(format!("group snapshot {name} exists and is of volumes {others:?}")));
        }
        Some(id) => id,
        None => state.cut_group(&volumes, &name)?,
    };
    Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: state.look_at_group(&id) })
}

fn delete(
    state: &mut State,
    request: &DeleteVolumeGroupSnapshotRequest,
) -> Result<DeleteVolumeGroupSnapshotResponse, Status> {
    served(state.abilities.group_snapshots, "DeleteVolumeGroupSnapshot")?;
    let id = &request.group_snapshot_id;
    if let Some(group) = state.groups.get(id) {
        same_members(id, group, &request.snapshot_ids)?;
        let members = group.members.clone();
        state.snapshots.retain(|id, _| !members.contains(id));
        state.groups.remove(id);
    }
    Ok(DeleteVolumeGroupSnapshotResponse {})
}

fn get(state: &mut State, request: &GetVolumeGroupSnapshotRequest) -> Result<GetVolumeGroupSnapshotResponse, Status> {
    served(state.abilities.group_snapshots, "GetVolumeGroupSnapshot")?;
    let id = &request.group_snapshot_id;
    let Some(group) = state.groups.get(id) else {
        return Err(Status::not_found(format!("group snapshot {id} does not exist")));
    };
    same_members(id, group, &request.snapshot_ids)?;
    Ok(GetVolumeGroupSnapshotResponse { group_snapshot: state.look_at_group(id) })
}

fn same_members(id: &str, group: &Grouped, named: &[String]) -> Result<(), Status> {
    let members = &group.members;
    if named.iter().collect::<BTreeSet<_>>() == members.iter().collect() {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("snapshot_ids are {named:?}, but group snapshot {id} has {members:?}")))
}

impl State {
    /// Cuts snapshots of all volumes at this moment, or of none.
    pub(super) fn cut_group(&mut self, volumes: &[String], name: &str) -> Result<String, Status> {
        if let Some(missing) = volumes.iter().find(|volume| !self.volumes.contains_key(*volume)) {
            return Err(Status::not_found(format!("volume {missing} does not exist")));
        }
        self.next_moment();
        self.made += 1;
        let id = format!("group-{}", self.made);
        let volumes: BTreeSet<&String> = volumes.iter().collect();
        let members =
            volumes.into_iter().map(|volume| self.cut(volume, "", Some(id.clone()))).collect::<Result<_, _>>()?;
        let group = Grouped { name: name.to_owned(), members, created: self.created(), by_hand: false };
        self.groups.insert(id.clone(), group);
        Ok(id)
    }

    fn volumes_of(&self, group: &str) -> BTreeSet<String> {
        let members = self.groups.get(group).into_iter().flat_map(|group| &group.members);
        members.filter_map(|id| Some(self.snapshots.get(id)?.volume.clone())).collect()
    }

    fn look_at_group(&mut self, id: &str) -> Option<VolumeGroupSnapshot> {
        let Grouped { members, created, .. } = self.groups.get(id)?.clone();
        let snapshots: Vec<_> = members.iter().filter_map(|member| self.look(member)).collect();
        Some(VolumeGroupSnapshot {
            group_snapshot_id: id.to_owned(),
            ready_to_use: snapshots.iter().all(|snapshot| snapshot.ready_to_use),
            snapshots,
            creation_time: Some(timestamp(created)),
        })
    }
}

#[cfg(test)]
mod tests;
