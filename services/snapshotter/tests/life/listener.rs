//! A driver that does nothing but listen: it keeps every request as it came.

use std::sync::{Arc, Mutex};

use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::v1::controller_server::{Controller, ControllerServer};
use stowage_csi::v1::controller_service_capability::rpc::Type;
use stowage_csi::v1::group_controller_server::{GroupController, GroupControllerServer};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::list_snapshots_response::Entry;
use stowage_csi::v1::*;

use crate::stage::DRIVER;

/// What was asked, call by call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    pub create: Vec<CreateSnapshotRequest>,
    pub delete: Vec<DeleteSnapshotRequest>,
    pub list: Vec<ListSnapshotsRequest>,
    pub create_group: Vec<CreateVolumeGroupSnapshotRequest>,
    pub delete_group: Vec<DeleteVolumeGroupSnapshotRequest>,
    pub get_group: Vec<GetVolumeGroupSnapshotRequest>,
}

#[derive(Clone, Default)]
pub struct Listener(Arc<Mutex<Heard>>);

impl Listener {
    pub fn heard(&self) -> Heard {
        self.0.lock().unwrap().clone()
    }

    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(GroupControllerServer::new(self.clone()))
    }
}

fn snapshot(id: &str) -> Option<Snapshot> {
    Some(Snapshot { snapshot_id: id.into(), ready_to_use: true, ..Snapshot::default() })
}

fn group(id: &str) -> Option<VolumeGroupSnapshot> {
    let snapshots = ["m1", "m2"].into_iter().filter_map(snapshot).collect();
    Some(VolumeGroupSnapshot { group_snapshot_id: id.into(), ready_to_use: true, snapshots, ..Default::default() })
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Identity for Listener {
    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse::default()))
    }

    async fn get_plugin_info(&self, _: Request<GetPluginInfoRequest>) -> Answer<GetPluginInfoResponse> {
        Ok(Response::new(GetPluginInfoResponse { name: DRIVER.into(), ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        use plugin_capability::{Service, Type, service};
        let kinds = [service::Type::ControllerService, service::Type::GroupControllerService];
        let capabilities =
            kinds.map(|kind| PluginCapability { r#type: Some(Type::Service(Service { r#type: kind.into() })) });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.into() }))
    }
}

#[tonic::async_trait]
impl Controller for Listener {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        use controller_service_capability::{Rpc, Type as Kind};
        let capabilities = [Type::CreateDeleteSnapshot, Type::ListSnapshots]
            .map(|kind| ControllerServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn create_snapshot(&self, request: Request<CreateSnapshotRequest>) -> Answer<CreateSnapshotResponse> {
        self.0.lock().unwrap().create.push(request.into_inner());
        Ok(Response::new(CreateSnapshotResponse { snapshot: snapshot("snap-1") }))
    }

    async fn delete_snapshot(&self, request: Request<DeleteSnapshotRequest>) -> Answer<DeleteSnapshotResponse> {
        self.0.lock().unwrap().delete.push(request.into_inner());
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        let request = request.into_inner();
        let entries = vec![Entry { snapshot: snapshot(&request.snapshot_id) }];
        self.0.lock().unwrap().list.push(request);
        Ok(Response::new(ListSnapshotsResponse { entries, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl GroupController for Listener {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        use group_controller_service_capability::{Rpc, Type as Kind, rpc};
        let kind = rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
        let capabilities = vec![GroupControllerServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind })) }];
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        self.0.lock().unwrap().create_group.push(request.into_inner());
        Ok(Response::new(CreateVolumeGroupSnapshotResponse { group_snapshot: group("group-1") }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        self.0.lock().unwrap().delete_group.push(request.into_inner());
        Ok(Response::new(DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let group_snapshot = group(&request.group_snapshot_id);
        self.0.lock().unwrap().get_group.push(request);
        Ok(Response::new(GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}
