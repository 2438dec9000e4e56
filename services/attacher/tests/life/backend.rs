//! A driver that attaches and detaches as slowly as a test wants or refuses to, writes down what it was asked, and lists
//! what is published page by page.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::v1::controller_server::{Controller, ControllerServer};
pub use stowage_csi::v1::controller_service_capability::rpc;
use stowage_csi::v1::controller_service_capability::{self, Rpc};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::list_volumes_response::{Entry, VolumeStatus};
use stowage_csi::v1::plugin_capability::{self, Service, service};
use stowage_csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse,
    GetPluginInfoRequest, GetPluginInfoResponse, ListVolumesRequest, ListVolumesResponse, PluginCapability,
    ProbeRequest, ProbeResponse, Volume,
};

pub const DRIVER: &str = "backend.example";

#[derive(Default)]
pub struct State {
    pub published: BTreeMap<String, BTreeSet<String>>,
    /// When each publish was answered.
    pub attached_at: Vec<Instant>,
    pub publishes: BTreeMap<String, usize>,
    /// Volume and node of each unpublish, also of those that were refused.
    pub unpublishes: Vec<(String, String)>,
    /// Ids of nodes that are gone.
    pub unknown: BTreeSet<String>,
    pub detaching: usize,
    /// The most detaches that were under way at once.
    pub most_detaching: usize,
    pub pages: Vec<(i32, String)>,
    /// What the next calls that attach or detach are refused with; nothing is done then.
    pub refusals: VecDeque<Status>,
    /// Every request, whatever came of it.
    pub publish_requests: Vec<ControllerPublishVolumeRequest>,
    pub unpublish_requests: Vec<ControllerUnpublishVolumeRequest>,
}

#[derive(Clone, Default)]
pub struct Backend {
    /// If it is another than usual.
    pub name: Option<&'static str>,
    /// What it can do, if that is not all.
    pub calls: Option<&'static [rpc::Type]>,
    pub state: Arc<Mutex<State>>,
    pub publish_takes: Duration,
    pub unpublish_takes: Duration,
    /// What it can do besides.
    pub can: Vec<rpc::Type>,
    /// What each publish gives to the node.
    pub publish_context: BTreeMap<String, String>,
}

impl Backend {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn name(&self) -> &'static str {
        self.name.unwrap_or(DRIVER)
    }

    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone())).add_service(ControllerServer::new(self.clone()))
    }
}

#[tonic::async_trait]
impl Identity for Backend {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: self.name().into(), ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = Service { r#type: service::Type::ControllerService.into() };
        let capability = PluginCapability { r#type: Some(plugin_capability::Type::Service(controller)) };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Backend {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        use rpc::Type;
        let all = [Type::PublishUnpublishVolume, Type::ListVolumes, Type::ListVolumesPublishedNodes];
        let kinds = self.calls.unwrap_or(&all).iter().chain(&self.can).copied();
        let capability = |kind: Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: kinds.map(capability).collect() }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        tokio::time::sleep(self.publish_takes).await;
        let request = request.into_inner();
        let mut state = self.lock();
        state.publish_requests.push(request.clone());
        if let Some(refusal) = state.refusals.pop_front() {
            return Err(refusal);
        }
        if state.unknown.contains(&request.node_id) {
            return Err(Status::not_found("there is no such node"));
        }
        *state.publishes.entry(request.volume_id.clone()).or_default() += 1;
        state.published.entry(request.volume_id).or_default().insert(request.node_id);
        state.attached_at.push(Instant::now());
        Ok(Response::new(ControllerPublishVolumeResponse { publish_context: self.publish_context.clone() }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        {
            let mut state = self.lock();
            state.detaching += 1;
            state.most_detaching = state.most_detaching.max(state.detaching);
        }
        tokio::time::sleep(self.unpublish_takes).await;
        let mut state = self.lock();
        state.detaching -= 1;
        let request = request.into_inner();
        state.unpublish_requests.push(request.clone());
        if let Some(refusal) = state.refusals.pop_front() {
            return Err(refusal);
        }
        let ControllerUnpublishVolumeRequest { volume_id, node_id, .. } = request;
        state.unpublishes.push((volume_id.clone(), node_id.clone()));
        if state.unknown.contains(&node_id) {
            return Err(Status::not_found("there is no such node"));
        }
        if let Some(nodes) = state.published.get_mut(&volume_id) {
            nodes.remove(&node_id);
        }
        state.published.retain(|_, nodes| !nodes.is_empty());
        Ok(Response::new(ControllerUnpublishVolumeResponse::default()))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let mut state = self.lock();
        state.pages.push((max_entries, starting_token.clone()));
        let start: usize = if starting_token.is_empty() { 0 } else { starting_token.parse().unwrap() };
        let count = if max_entries == 0 { usize::MAX } else { max_entries as usize };
        let entry = |(volume, nodes): (&String, &BTreeSet<String>)| Entry {
            volume: Some(Volume { volume_id: volume.clone(), ..Default::default() }),
            status: Some(VolumeStatus { published_node_ids: nodes.iter().cloned().collect(), ..Default::default() }),
        };
        let entries: Vec<Entry> = state.published.iter().skip(start).take(count).map(entry).collect();
        let end = start + entries.len();
        let next_token = if end < state.published.len() { end.to_string() } else { String::new() };
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }
}
