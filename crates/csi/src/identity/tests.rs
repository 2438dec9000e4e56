use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tonic::{Request, Response, service::Routes};

use super::*;
use crate::{
    Endpoint,
    v1::{
        ControllerGetCapabilitiesResponse, ControllerServiceCapability, GetPluginCapabilitiesResponse,
        GetPluginInfoResponse, PluginCapability, ProbeResponse,
        controller_server::{Controller, ControllerServer},
        identity_server::{Identity, IdentityServer},
    },
};

const SECOND: Deadline = Deadline(Duration::from_secs(1));

enum Say {
    Ready(Option<bool>),
    Fail(Status),
    Nothing,
}

/// Answers probes in this order.
#[derive(Clone, Default)]
struct Driver {
    name: String,
    probes: Arc<Mutex<VecDeque<Say>>>,
    capabilities: Vec<PluginCapability>,
    rpcs: Vec<ControllerServiceCapability>,
}

impl Driver {
    fn probed(answers: impl IntoIterator<Item = Say>) -> Self {
        Self { probes: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    fn channel(&self) -> Channel {
        let routes = Routes::new(IdentityServer::new(self.clone()));
        Channel::in_process(routes.add_service(ControllerServer::new(self.clone())))
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: self.name.clone(), ..Default::default() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let say = self.probes.lock().unwrap().pop_front().expect("one probe more than scripted");
        match say {
            Say::Ready(ready) => Ok(Response::new(ProbeResponse { ready })),
            Say::Fail(status) => Err(status),
            Say::Nothing => std::future::pending().await,
        }
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: self.capabilities.clone() }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: self.rpcs.clone() }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_has_a_name() {
    let driver = Driver { name: "shared.csi.stowage.dev".into(), ..Default::default() };
    assert_eq!(plugin_name(&driver.channel(), SECOND).await.unwrap(), "shared.csi.stowage.dev");
    let error = plugin_name(&Driver::default().channel(), SECOND).await.unwrap_err();
    assert!(matches!(error, Error::NamelessDriver), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_say_is_ready() {
    for (answer, ready) in [(None, true), (Some(true), true), (Some(false), false)] {
        assert_eq!(probe(&Driver::probed([Say::Ready(answer)]).channel(), SECOND).await.unwrap(), ready);
    }
}

#[tokio::test(start_paused = true)]
async fn not_yet_and_silence_are_asked_again_after_a_second() {
    let driver = Driver::probed([Say::Ready(Some(false)), Say::Nothing, Say::Ready(None)]);
    let begin = Instant::now();
    wait_until_ready(&driver.channel(), SECOND, CONNECT_BUDGET).await.unwrap();
    // One second after "not yet"; one of silence and one after it.
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    assert!(driver.probes.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_there_but_not_healthy_is_not_waited_for() {
    let driver = Driver::probed([Say::Ready(Some(false)), Say::Fail(Status::failed_precondition("the disk is full"))]);
    wait_until_ready(&driver.channel(), SECOND, CONNECT_BUDGET).await.unwrap();
    assert!(driver.probes.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn any_other_answer_ends_the_wait() {
    let driver = Driver::probed([Say::Ready(Some(false)), Say::Fail(Status::internal("no disk"))]);
    let error = wait_until_ready(&driver.channel(), SECOND, CONNECT_BUDGET).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Internal));
    assert_eq!(error.to_string(), "Probe: no disk (Internal)");

    let driver = Driver::probed([Say::Fail(Status::unavailable("the driver's own word"))]);
    let error = wait_until_ready(&driver.channel(), SECOND, CONNECT_BUDGET).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_stays_away_ends_the_wait_within_the_budget() {
    let directory = tempfile::tempdir().unwrap();
    let channel = Channel::unix(&Endpoint::at(directory.path().join("csi.sock")).unwrap());
    let begin = Instant::now();
    let error = wait_until_ready(&channel, SECOND, CONNECT_BUDGET).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("is the driver running"), "{error}");
    let waited = begin.elapsed();
    assert!(waited <= CONNECT_BUDGET && waited > CONNECT_BUDGET - MAX_RETRY * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_sets_without_what_we_do_not_know() {
    use controller_service_capability::{Rpc, Type, rpc};
    use plugin_capability::{Service, VolumeExpansion, service};

    let wrap = |number| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: number })) };
    let driver = Driver {
        rpcs: vec![wrap(9), wrap(1), wrap(9), wrap(0), wrap(4711), ControllerServiceCapability { r#type: None }],
        capabilities: vec![
            PluginCapability { r#type: Some(plugin_capability::Type::Service(Service { r#type: 1 })) },
            PluginCapability { r#type: Some(plugin_capability::Type::VolumeExpansion(VolumeExpansion { r#type: 1 })) },
            PluginCapability { r#type: None },
        ],
        ..Default::default()
    };
    let channel = driver.channel();
    let expected = [rpc::Type::CreateDeleteVolume, rpc::Type::ExpandVolume].into();
    assert_eq!(controller_capabilities(&channel, SECOND).await.unwrap(), expected);
    assert_eq!(plugin_capabilities(&channel, SECOND).await.unwrap(), [service::Type::ControllerService].into());
    let error = node_capabilities(&channel, SECOND).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Unimplemented));
}
