//! A driver and its registration socket, in process: it makes directories and writes down what it was asked.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::registration::registration_server::{Registration, RegistrationServer};
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use stowage_csi::v1::node_server::{Node, NodeServer};
use stowage_csi::v1::node_service_capability::{Rpc, Type, rpc};
use stowage_csi::v1::*;
use stowage_csi::{Channel, Connector, connect};

pub const NAME: &str = "driver.example";
pub const REGISTRATION: &str = "/registry/driver.example-reg.sock";
const ENDPOINT: &str = "/plugins/driver.example/csi.sock";

#[derive(Clone, Default)]
pub struct Driver(Arc<Inner>);

#[derive(Default)]
struct Inner {
    calls: watch::Sender<Vec<String>>,
    failure: Mutex<Option<Status>>,
    published: Mutex<Option<NodePublishVolumeRequest>>,
}

impl Driver {
    pub fn calls(&self) -> Vec<String> {
        self.0.calls.borrow().clone()
    }

    /// Resolves when that many calls were made.
    pub async fn called(&self, times: usize) {
        self.0.calls.subscribe().wait_for(|calls| calls.len() >= times).await.unwrap();
    }

    pub fn fail_next(&self, status: Status) {
        *self.0.failure.lock().unwrap() = Some(status);
    }

    pub fn last_publish(&self) -> NodePublishVolumeRequest {
        self.0.published.lock().unwrap().clone().unwrap()
    }

    fn call(&self, name: &str) -> Result<(), Status> {
        self.0.calls.send_modify(|calls| calls.push(name.to_owned()));
        self.0.failure.lock().unwrap().take().map_or(Ok(()), Err)
    }
}

impl Connector for Driver {
    fn connect(&self, endpoint: &str) -> Result<Channel, connect::Error> {
        match endpoint {
            REGISTRATION => Ok(Channel::in_process(Routes::new(RegistrationServer::new(self.clone())))),
            ENDPOINT => Ok(Channel::in_process(Routes::new(NodeServer::new(self.clone())))),
            _ => Err(connect::Error::FindDriver { endpoint: endpoint.to_owned() }),
        }
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: NAME.into(),
            endpoint: ENDPOINT.into(),
            supported_versions: vec!["1.0.0".into()],
        }))
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
        let segments = BTreeMap::from([("topology.example/host".to_owned(), "h1".to_owned())]);
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "node-1".into(),
            max_volumes_per_node: 9,
            accessible_topology: Some(Topology { segments }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let stage = Rpc { r#type: rpc::Type::StageUnstageVolume.into() };
        let capabilities = vec![NodeServiceCapability { r#type: Some(Type::Rpc(stage)) }];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        assert!(fs::metadata(&request.get_ref().staging_target_path).unwrap().is_dir());
        self.call("stage")?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        fs::create_dir_all(&request.target_path).unwrap();
        *self.0.published.lock().unwrap() = Some(request);
        self.call("publish")?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let _ = fs::remove_dir(&request.get_ref().target_path);
        self.call("unpublish")?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.call("unstage")?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
}
