//! A driver that answers at once, counts what it is asked, and knows when it published.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stowage_csi::registration::registration_server::{Registration, RegistrationServer};
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::node_server::{Node, NodeServer};
use stowage_csi::v1::node_service_capability::{Rpc, Type, rpc};
use stowage_csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::world::Running;

pub const DRIVER: &str = "bench.csi.example";

#[derive(Clone, Default)]
pub struct Driver(Arc<Inner>);

#[derive(Default)]
struct Inner {
    endpoint: String,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    /// When each volume was last published, by its handle.
    published: Mutex<BTreeMap<String, Instant>>,
}

impl Driver {
    /// Listens below the root of a node, where its registration will be found.
    pub fn start(root: &Path) -> (Self, [Running; 2]) {
        let (registry, plugin) = (root.join("plugins_registry"), root.join("plugins").join(DRIVER));
        std::fs::create_dir_all(&registry).unwrap();
        std::fs::create_dir_all(&plugin).unwrap();
        let endpoint = plugin.join("csi.sock");
        let driver = Self(Arc::new(Inner { endpoint: endpoint.display().to_string(), ..Inner::default() }));
        let serve = |path: &Path, routes| {
            let socket = Socket::bind(path, SocketMode::default()).unwrap();
            Running(tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() }))
        };
        let served = serve(&endpoint, Routes::new(NodeServer::new(driver.clone())));
        let registration = registry.join(format!("{DRIVER}-reg.sock"));
        let registered = serve(&registration, Routes::new(RegistrationServer::new(driver.clone())));
        (driver, [served, registered])
    }

    /// What was asked since the last look, by call.
    pub fn take_calls(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.0.calls.lock().unwrap())
    }

    pub fn published(&self, handle: &str) -> Option<Instant> {
        self.0.published.lock().unwrap().get(handle).copied()
    }

    fn count(&self, call: &'static str) {
        *self.0.calls.lock().unwrap().entry(call).or_default() += 1;
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let (name, endpoint) = (DRIVER.to_owned(), self.0.endpoint.clone());
        let supported_versions = vec!["1.0.0".to_owned()];
        Ok(Response::new(PluginInfo { r#type: "CSIPlugin".to_owned(), name, endpoint, supported_versions }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        assert!(request.get_ref().plugin_registered, "{request:?}");
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.count("NodeGetInfo");
        Ok(Response::new(NodeGetInfoResponse { node_id: "node".to_owned(), ..Default::default() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        self.count("NodeGetCapabilities");
        let rpc = Type::Rpc(Rpc { r#type: rpc::Type::StageUnstageVolume.into() });
        let capabilities = vec![NodeServiceCapability { r#type: Some(rpc) }];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.count("NodeStageVolume");
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.count("NodePublishVolume");
        let request = request.into_inner();
        // The directory is the driver's to make; nothing is mounted on it, so that only our own steps are measured.
        std::fs::create_dir_all(&request.target_path).map_err(|error| Status::internal(error.to_string()))?;
        self.0.published.lock().unwrap().insert(request.volume_id, Instant::now());
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.count("NodeUnpublishVolume");
        match std::fs::remove_dir(&request.get_ref().target_path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Status::internal(error.to_string())),
            _ => Ok(Response::new(NodeUnpublishVolumeResponse {})),
        }
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.count("NodeUnstageVolume");
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
}
