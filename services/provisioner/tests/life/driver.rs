//! A driver in memory: volumes by name, and a way to be slow, to fail, or to fall silent after doing its work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use stowage_csi::v1::controller_server::{Controller, ControllerServer};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::node_server::{Node, NodeServer};
use stowage_csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, NodeGetInfoRequest, NodeGetInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
    Topology, TopologyRequirement, Volume, controller_service_capability, plugin_capability,
};
use stowage_csi::{Channel, Connector, connect};
use tokio::sync::Barrier;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

pub const DRIVER: &str = "test.csi.example";

/// Every code with which a call can fail.
pub const CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// How the next CreateVolume goes; without one it goes well.
#[derive(Debug, Clone)]
pub enum Next {
    /// The volume is made, the answer never comes.
    DoneAndSilent,
    /// Not made.
    Fails(Code, &'static str),
    /// Made, but too small by this many bytes.
    TooSmall(i64),
    /// Made, but empty, whatever it was to be filled from.
    Unfilled,
}

#[derive(Clone, Default)]
pub struct Driver(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    volumes: BTreeMap<String, i64>,
    next: VecDeque<Next>,
    calls: Vec<&'static str>,
    /// Every CreateVolume, without its secrets.
    requests: Vec<CreateVolumeRequest>,
    /// Whether it knows snapshots and clones.
    fills: bool,
    /// Whether it changes volumes.
    modifies: bool,
    /// Its name, if it is another than usual.
    name: Option<&'static str>,
    /// How the next DeleteVolume calls fail.
    keeping: VecDeque<Code>,
    seen_secrets: BTreeMap<String, String>,
    /// Set for a driver whose volumes are on one node.
    node: Option<String>,
    /// Whether ids are the names as they are, on each node.
    plain: bool,
    asked_for: Vec<TopologyRequirement>,
    /// GetCapacity is answered when all drivers that share this were asked.
    together: Option<Arc<Barrier>>,
    /// Bytes that GetCapacity speaks of; without it the call is not known.
    room: Option<i64>,
    /// The largest volume that it speaks of.
    largest: Option<i64>,
    /// How the next GetCapacity calls fail.
    unwilling: VecDeque<Code>,
    /// Every GetCapacity.
    questions: Vec<GetCapacityRequest>,
    /// GetCapacity is never answered.
    mute: bool,
}

/// The topology key of drivers with places.
pub const KEY: &str = "test.csi.example/node";

fn place(node: &str) -> Topology {
    Topology { segments: BTreeMap::from([(KEY.to_owned(), node.to_owned())]) }
}

impl Driver {
    /// The driver of one node.
    pub fn on(node: &str) -> Self {
        let driver = Self::default();
        driver.0.lock().unwrap().node = Some(node.to_owned());
        driver
    }

    /// The driver of one node, whose ids do not tell the node, as csi-driver-lvm's.
    pub fn plain_on(node: &str) -> Self {
        let driver = Self::on(node);
        driver.0.lock().unwrap().plain = true;
        driver
    }

    /// A driver that makes volumes from snapshots and from volumes.
    pub fn filling(self) -> Self {
        self.0.lock().unwrap().fills = true;
        self
    }

    /// A driver of another name.
    pub fn named(self, name: &'static str) -> Self {
        self.0.lock().unwrap().name = Some(name);
        self
    }

    /// A driver that changes volumes.
    pub fn modifying(self) -> Self {
        self.0.lock().unwrap().modifies = true;
        self
    }

    /// The next DeleteVolume fails so.
    pub fn will_not_delete(&self, code: Code) {
        self.0.lock().unwrap().keeping.push_back(code);
    }

    pub fn requests(&self) -> Vec<CreateVolumeRequest> {
        self.0.lock().unwrap().requests.clone()
    }

    /// The places the last CreateVolume asked for, best first.
    pub fn asked_for(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        let places = state.asked_for.last().map(|asked| asked.preferred.clone()).unwrap_or_default();
        places.iter().map(|place| place.segments[KEY].clone()).collect()
    }

    /// Answers GetCapacity with this, together with all others that have the same barrier.
    pub fn has_room(&self, bytes: i64, together: Option<Arc<Barrier>>) {
        let mut state = self.0.lock().unwrap();
        (state.room, state.together) = (Some(bytes), together);
    }

    /// The largest volume that GetCapacity speaks of.
    pub fn has_largest(&self, bytes: Option<i64>) {
        self.0.lock().unwrap().largest = bytes;
    }

    /// The next GetCapacity fails so.
    pub fn will_not_say(&self, code: Code) {
        self.0.lock().unwrap().unwilling.push_back(code);
    }

    /// From now on GetCapacity is never answered.
    pub fn falls_mute(&self) {
        self.0.lock().unwrap().mute = true;
    }

    pub fn questions(&self) -> Vec<GetCapacityRequest> {
        self.0.lock().unwrap().questions.clone()
    }

    /// How often it was asked since the last time this was asked.
    pub fn take_questions(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().questions).len()
    }

    pub fn next(&self, next: Next) {
        self.0.lock().unwrap().next.push_back(next);
    }

    /// What was to come next does not come.
    pub fn takes_next(&self) -> Option<Next> {
        self.0.lock().unwrap().next.pop_front()
    }

    pub fn volumes(&self) -> Vec<String> {
        self.0.lock().unwrap().volumes.keys().cloned().collect()
    }

    pub fn calls(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().calls.clone()
    }

    /// Its three services.
    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()))
    }

    pub fn seen_secrets(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap().seen_secrets.clone()
    }
}

impl Connector for Driver {
    fn connect(&self, _endpoint: &str) -> Result<Channel, connect::Error> {
        Ok(Channel::in_process(self.routes()))
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse::default()))
    }

    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.0.lock().unwrap().name.unwrap_or(DRIVER).to_owned();
        Ok(Response::new(GetPluginInfoResponse { name, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        use plugin_capability::{Service, Type, service};
        let mut kinds = vec![service::Type::ControllerService];
        kinds.extend(self.0.lock().unwrap().node.as_ref().map(|_| service::Type::VolumeAccessibilityConstraints));
        let capability =
            |kind: service::Type| PluginCapability { r#type: Some(Type::Service(Service { r#type: kind.into() })) };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        use controller_service_capability::{Rpc, Type, rpc};
        let (fills, modifies) = {
            let state = self.0.lock().unwrap();
            (state.fills, state.modifies)
        };
        let modifying = modifies.then_some(rpc::Type::ModifyVolume);
        let filling = [rpc::Type::CreateDeleteSnapshot, rpc::Type::CloneVolume].into_iter().filter(|_| fills);
        let capability = |kind: rpc::Type| {
            let r#type = kind.into();
            ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type })) }
        };
        let capabilities = [rpc::Type::CreateDeleteVolume, rpc::Type::GetCapacity]
            .into_iter()
            .chain(filling)
            .chain(modifying)
            .map(capability)
            .collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let mut request = request.into_inner();
        let asked = request.capacity_range.map_or(0, |range| range.required_bytes);
        let (next, bytes) = {
            let mut state = self.0.lock().unwrap();
            state.calls.push("CreateVolume");
            state.seen_secrets = std::mem::take(&mut request.secrets);
            state.requests.push(request.clone());
            state.asked_for.extend(request.accessibility_requirements.clone());
            let next = state.next.pop_front();
            let bytes = match next {
                Some(Next::Fails(code, message)) => return Err(Status::new(code, message)),
                Some(Next::TooSmall(by)) => asked - by,
                _ => asked,
            };
            (next, *state.volumes.entry(request.name.clone()).or_insert(bytes))
        };
        if let Some(Next::DoneAndSilent) = next {
            std::future::pending::<()>().await;
        }
        let (node, plain) = {
            let state = self.0.lock().unwrap();
            (state.node.clone(), state.plain)
        };
        // Ids are unique in the cluster, as Kubernetes wants them.
        let volume_id = node.iter().filter(|_| !plain).fold(request.name, |name, node| format!("{node}/{name}"));
        let accessible_topology = node.iter().map(|node| place(node)).collect();
        let content_source = request.volume_content_source.filter(|_| !matches!(next, Some(Next::Unfilled)));
        let volume =
            Volume { volume_id, capacity_bytes: bytes, content_source, accessible_topology, ..Default::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let (together, room, maximum_volume_size, mute) = {
            let mut state = self.0.lock().unwrap();
            state.calls.push("GetCapacity");
            state.questions.push(request.into_inner());
            if let Some(code) = state.unwilling.pop_front() {
                return Err(Status::new(code, "no comment"));
            }
            (state.together.clone(), state.room, state.largest, state.mute)
        };
        let Some(available_capacity) = room else { return Err(Status::unimplemented("GetCapacity")) };
        if mute {
            std::future::pending::<()>().await;
        }
        if let Some(together) = together {
            together.wait().await;
        }
        Ok(Response::new(GetCapacityResponse { available_capacity, maximum_volume_size, ..Default::default() }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        state.calls.push("DeleteVolume");
        if let Some(code) = state.keeping.pop_front() {
            return Err(Status::new(code, "it is needed"));
        }
        let id = request.into_inner().volume_id;
        state.volumes.remove(id.rsplit('/').next().unwrap_or(&id));
        Ok(Response::new(DeleteVolumeResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.0.lock().unwrap().node.clone().unwrap_or_default();
        let accessible_topology = Some(place(&node_id));
        Ok(Response::new(NodeGetInfoResponse { node_id, accessible_topology, ..Default::default() }))
    }
}
