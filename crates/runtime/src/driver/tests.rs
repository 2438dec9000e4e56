use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::controller_server::{Controller, ControllerServer};
use stowage_csi::v1::controller_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::plugin_capability::{self, Service as PluginService, service};
use stowage_csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::*;

const DEADLINE: Deadline = Deadline(Duration::from_secs(60));

/// A driver that says what it can do, and counts how often it was asked for that.
#[derive(Clone, Default)]
struct Plugin {
    clones: bool,
    asked: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: "driver.test".into(), ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = PluginService { r#type: service::Type::ControllerService.into() };
        let capability = PluginCapability { r#type: Some(plugin_capability::Type::Service(controller)) };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for Plugin {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let kinds = [rpc::Type::CreateDeleteVolume].into_iter().chain(self.clones.then_some(rpc::Type::CloneVolume));
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = kinds.map(capability).collect();
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }
}

/// Serves the driver until it is killed.
fn start(path: &Path, plugin: &Plugin) -> JoinHandle<()> {
    let routes = Routes::new(IdentityServer::new(plugin.clone())).add_service(ControllerServer::new(plugin.clone()));
    let socket = Socket::bind(path, SocketMode::default()).unwrap();
    tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() })
}

async fn kill(driver: JoinHandle<()>) {
    driver.abort();
    drop(driver.await);
}

/// Calls, as a service makes them: the first may find out that the connection is gone, and another makes one.
async fn call(channel: &Channel) {
    while identity::probe(channel, DEADLINE).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_driver_that_comes_back_as_it_was_is_used_on_and_one_that_can_do_more_ends_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let first = start(&path, &Plugin::default());
    let channel = Channel::unix(&stowage_csi::Endpoint::at(&path).unwrap());
    let driver = Driver::ask(channel.clone(), DEADLINE).await.unwrap();
    let story = async {
        kill(first).await;
        let same = Plugin::default();
        let second = start(&path, &same);
        call(&channel).await;
        while same.asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        kill(second).await;
        let _third = start(&path, &Plugin { clones: true, ..Plugin::default() });
        call(&channel).await;
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = driver.unless_changed(DEADLINE.0, std::future::pending()) => ended,
        () = story => unreachable!("it never ends"),
    };
    let said = ended.unwrap_err().to_string();
    assert!(said.contains("driver \"driver.test\" was restarted and has another name or capabilities"), "{said}");
}
