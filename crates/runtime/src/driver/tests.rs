use std::path::{Path, PathBuf};
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
    /// How many questions it fails to answer first.
    stumbles: usize,
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
        if self.asked.fetch_add(1, Ordering::Relaxed) < self.stumbles {
            return Err(Status::internal("not yet"));
        }
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

fn place() -> (tempfile::TempDir, PathBuf, Channel) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let channel = Channel::unix(&stowage_csi::Endpoint::at(&path).unwrap());
    (folder, path, channel)
}

/// Waits until the driver was asked so often what it can do.
async fn asked(plugin: &Plugin, times: usize) {
    while plugin.asked.load(Ordering::Relaxed) < times {
        tokio::task::yield_now().await;
    }
}

/// An attacher whose driver attaches nothing makes no calls: it went on with what the driver had been.
#[tokio::test]
async fn a_driver_that_comes_back_is_asked_though_no_call_is_made_and_one_that_can_do_more_ends_the_service() {
    let (process, (_folder, path, channel)) = (Process::real("test"), place());
    let first = start(&path, &Plugin::default());
    let driver = Driver::ask(&process, channel, DEADLINE, UNKNOWN_DRIVER).await.unwrap();
    let changed = driver.changed(&process, DEADLINE.0);
    let story = async {
        kill(first).await;
        let same = Plugin::default();
        let second = start(&path, &same);
        asked(&same, 1).await;
        kill(second).await;
        let _third = start(&path, &Plugin { clones: true, ..Plugin::default() });
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = Driver::unless_changed(changed, std::future::pending()) => ended,
        () = story => unreachable!("it never ends"),
    };
    let said = ended.unwrap_err().to_string();
    assert!(said.contains("driver \"driver.test\" was restarted and has another name or capabilities"), "{said}");
    // At the start and after each return; whoever was not reached meanwhile was not called.
    let numbers = process.metrics.encode();
    for (driver, method, times) in [
        ("unknown-driver", "Identity/Probe", 1),
        ("unknown-driver", "Identity/GetPluginInfo", 1),
        ("driver.test", "Identity/Probe", 2),
        ("driver.test", "Identity/GetPluginInfo", 2),
        ("driver.test", "Identity/GetPluginCapabilities", 3),
        ("driver.test", "Controller/ControllerGetCapabilities", 3),
    ] {
        let labels = format!("{{driver_name=\"{driver}\",method_name=\"/csi.v1.{method}\",grpc_status_code=\"OK\"}}");
        let wanted = format!("csi_sidecar_operations_seconds_count{labels} {times}\n");
        assert!(numbers.contains(&wanted), "no {wanted} in\n{numbers}");
    }
}

#[tokio::test]
async fn a_restart_while_the_lease_is_waited_for_is_not_missed() {
    let (process, (_folder, path, channel)) = (Process::real("test"), place());
    let first = start(&path, &Plugin::default());
    let driver = Driver::ask(&process, channel, DEADLINE, UNKNOWN_DRIVER).await.unwrap();
    let changed = driver.changed(&process, DEADLINE.0);
    kill(first).await;
    let _second = start(&path, &Plugin { clones: true, ..Plugin::default() });
    let said = Driver::unless_changed(changed, std::future::pending()).await.unwrap_err().to_string();
    assert!(said.contains("was restarted"), "{said}");
}

#[tokio::test]
async fn a_driver_that_comes_back_and_cannot_say_is_asked_again() {
    let (process, (_folder, path, channel)) = (Process::real("test"), place());
    let first = start(&path, &Plugin::default());
    let driver = Driver::ask(&process, channel, DEADLINE, UNKNOWN_DRIVER).await.unwrap();
    kill(first).await;
    let starting = Plugin { stumbles: 3, ..Plugin::default() };
    let second = start(&path, &starting);
    tokio::select! {
        stop = driver.changed(&process, DEADLINE.0) => panic!("{stop}"),
        () = asked(&starting, 4) => {}
    }
    assert_eq!(starting.asked.load(Ordering::Relaxed), 4);
    kill(second).await;
}

/// Virtual time passes whenever nothing else can happen, so that an hour of a driver that is away is seen at once.
#[tokio::test(start_paused = true)]
async fn a_driver_that_stays_away_is_asked_once_a_second_and_one_that_is_there_never() {
    let (_folder, path, channel) = place();
    let first = start(&path, &Plugin::default());
    let driver = Driver { channel, ..introduced() };
    identity::probe(&driver.channel, DEADLINE).await.unwrap();
    let questions = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&questions);
    let channel = driver.channel.clone();
    let changes = driver.changes("mood", move || {
        count.fetch_add(1, Ordering::Relaxed);
        let channel = channel.clone();
        Box::pin(async move { identity::probe(&channel, DEADLINE).await })
    });
    let story = async {
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(questions.load(Ordering::Relaxed), 0, "nothing happened");
        kill(first).await;
        sleep(Duration::from_secs(3600)).await;
        let asked = questions.load(Ordering::Relaxed);
        assert!((3600..3610).contains(&asked), "{asked}");
    };
    tokio::select! {
        stop = changes => panic!("{stop}"),
        () = story => {}
    }
}

/// A driver that has been met.
fn introduced() -> Driver {
    Driver {
        channel: Channel::in_process(Routes::default()),
        name: "driver.test".into(),
        plugin: PluginCapabilities::new(),
        controller: ControllerCapabilities::new(),
    }
}

/// Virtual time passes whenever nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_driver_that_answers_and_hangs_up_is_not_asked_all_the_time() {
    let (_folder, path, channel) = place();
    let driver = Driver { channel: channel.clone(), ..introduced() };
    let questions = Arc::new(AtomicUsize::new(0));
    let (count, path) = (Arc::clone(&questions), path.clone());
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let changes = driver.changes("mood", move || {
        count.fetch_add(1, Ordering::Relaxed);
        let channel = channel.clone();
        // Whatever came back, the connection was made and is gone.
        Box::pin(async move { Ok(identity::probe(&channel, DEADLINE).await.is_err()) })
    });
    let hang_up = async {
        loop {
            drop(listener.accept().await.unwrap());
        }
    };
    let story = async {
        identity::probe(&driver.channel, DEADLINE).await.unwrap_err();
        sleep(Duration::from_secs(3600)).await;
        let asked = questions.load(Ordering::Relaxed);
        assert!((1000..3610).contains(&asked), "{asked}");
    };
    tokio::select! {
        stop = changes => panic!("{stop}"),
        () = hang_up => {}
        () = story => {}
    }
}
