//! A CSI driver inside the test that can be held in the middle of CreateVolume.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1;
use stowage_csi::v1::controller_server::{Controller, ControllerServer};
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::plugin_capability::service::Type as Service;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// What this driver is called.
pub const NAME: &str = "held.csi.stowage.dev";

/// When the first CreateVolume is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing is made yet.
    BeforeMaking,
    /// The volume is there, the answer is not.
    AfterMaking,
}

/// What has been asked of the driver.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Names of the CreateVolume calls, in order.
    pub creations: Vec<String>,
    /// Ids of the DeleteVolume calls, in order.
    pub deletions: Vec<String>,
    /// The volumes there are: id and size by name.
    pub volumes: BTreeMap<String, (String, i64)>,
}

/// A driver whose first CreateVolume waits until it is released; clones are the same driver.
#[derive(Debug, Clone)]
pub struct HeldDriver {
    hold: Hold,
    record: Arc<Mutex<Record>>,
    released: watch::Sender<bool>,
}

impl HeldDriver {
    pub fn new(hold: Hold) -> Self {
        Self { hold, record: Arc::default(), released: watch::Sender::new(false) }
    }

    /// What has happened so far.
    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    /// Lets the first CreateVolume go on.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Serves until the future is dropped.
    pub async fn serve(&self, socket: &Path) -> anyhow::Result<()> {
        let routes = Routes::new(IdentityServer::new(self.clone())).add_service(ControllerServer::new(self.clone()));
        let socket = Socket::bind(socket, SocketMode::default()).context("cannot bind the driver's socket")?;
        socket.serve(routes, std::future::pending()).await.context("cannot serve the driver")
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same name gives the same volume, as CSI demands.
    fn make(&self, name: &str, bytes: i64) -> v1::Volume {
        let mut record = self.lock();
        let id = format!("volume-{}", record.volumes.len() + record.deletions.len());
        let (id, bytes) = record.volumes.entry(name.to_owned()).or_insert((id, bytes)).clone();
        v1::Volume { volume_id: id, capacity_bytes: bytes, ..Default::default() }
    }
}

#[tonic::async_trait]
impl Identity for HeldDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let vendor_version = "1".to_owned();
        Ok(Response::new(v1::GetPluginInfoResponse { name: NAME.to_owned(), vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let service = v1::plugin_capability::Service { r#type: Service::ControllerService.into() };
        let capability = v1::PluginCapability { r#type: Some(v1::plugin_capability::Type::Service(service)) };
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for HeldDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        let rpc = v1::controller_service_capability::Rpc { r#type: Call::CreateDeleteVolume.into() };
        let capability =
            v1::ControllerServiceCapability { r#type: Some(v1::controller_service_capability::Type::Rpc(rpc)) };
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let first = {
            let mut record = self.lock();
            record.creations.push(request.name.clone());
            record.creations.len() == 1
        };
        if first {
            if self.hold == Hold::AfterMaking {
                self.make(&request.name, bytes);
            }
            let mut released = self.released.subscribe();
            // A driver goes on when its caller hangs up; so must this one, whatever becomes of the request.
            let driver = self.clone();
            let held = tokio::spawn(async move {
                let _released = released.wait_for(|released| *released).await;
                driver.make(&request.name, bytes)
            });
            let volume = held.await.map_err(|error| Status::internal(error.to_string()))?;
            return Ok(Response::new(v1::CreateVolumeResponse { volume: Some(volume) }));
        }
        let volume = self.make(&request.name, bytes);
        Ok(Response::new(v1::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let mut record = self.lock();
        record.volumes.retain(|_, (volume, _)| *volume != id);
        record.deletions.push(id);
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }
}
