use std::path::Path;
use std::pin::pin;

use stowage_csi::UnixConnector;
use stowage_csi::registration::registration_client::RegistrationClient;
use stowage_csi::registration::{InfoRequest, RegistrationStatus};
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::{GetPluginInfoRequest, GetPluginInfoResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::serve::UnixServe;

struct Driver;

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: "driver.example".into(), ..Default::default() }))
    }
}

fn options(dir: &Path) -> Options {
    Options {
        csi_address: dir.join("csi.sock").to_str().unwrap().to_owned(),
        kubelet_registration_path: "/kubelet/csi.sock".into(),
        plugin_registration_path: dir.join("registry"),
        // Real time passes in some of these tests, and the machine may be busy.
        timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

/// Runs the registrar beside a driver and lets `kubelet` talk to the registration socket.
async fn with_registrar<F: Future<Output = ()>>(
    kubelet: impl FnOnce(Process, Options, Channel) -> F,
) -> Result<(), Stop> {
    let dir = tempfile::tempdir().unwrap();
    let driver = Socket::bind(dir.path().join("csi.sock"), SocketMode::default()).unwrap();
    let (process, options) = (Process::real("test"), options(dir.path()));
    let socket = options.socket("driver.example");
    let mut run = pin!(run(process.clone(), Arc::new(UnixConnector), Arc::new(UnixServe), options.clone()));
    let registration = async {
        let channel = UnixConnector.connect(socket.to_str().unwrap()).unwrap();
        // The channel says at once that nobody is there, so ask until somebody is.
        let mut client = RegistrationClient::new(channel.clone());
        let offered = async {
            while client.get_info(InfoRequest {}).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            ended = &mut run => panic!("ended before it offered registration: {ended:?}"),
            () = offered => {}
        }
        let (result, ()) = tokio::join!(run, kubelet(process.clone(), options.clone(), channel));
        result
    };
    let result = tokio::select! {
        biased;
        result = registration => result,
        served = driver.serve(Routes::new(IdentityServer::new(Driver)), std::future::pending()) => panic!("{served:?}"),
    };
    assert!(!socket.try_exists().unwrap(), "the registration socket is left behind");
    result
}

#[tokio::test]
async fn the_kubelet_learns_the_driver_and_shutdown_takes_the_socket_away() {
    let result = with_registrar(|process, options, channel| async move {
        let mut client = RegistrationClient::new(channel);
        let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "driver.example"));
        assert_eq!(info.endpoint, "/kubelet/csi.sock");
        assert_eq!(info.supported_versions, ["1.0.0"]);
        assert!(process.readiness.check().is_err(), "ready before the kubelet has agreed");

        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.unwrap();
        process.readiness.wait().await;
        let check = options.health.check(Arc::new(UnixConnector), options.timeout);
        assert_eq!(check().await, Ok(()));
        let asked = "driver_name=\"unknown-driver\",method_name=\"/csi.v1.Identity/GetPluginInfo\",grpc_status_code=\"OK\"} 1\n";
        assert!(process.metrics.encode().contains(asked), "not counted");
        process.shutdown.trigger();
    })
    .await;
    assert!(result.is_ok(), "{result:?}");
}

/// What kubelet v1.37.0-rc.1 (grpc-go 1.82) wrote to a registration socket, from its preface to its GOAWAY: GetInfo and
/// NotifyRegistrationStatus, with the socket's path as `:authority`, in Huffman code first and from the table then.
const KUBELET: &[u8] = include_bytes!("kubelet-1.37.bin");

#[tokio::test]
async fn the_bytes_of_a_real_kubelet_register_the_driver() {
    let result = with_registrar(|process, options, _| async move {
        let mut kubelet = UnixStream::connect(options.socket("driver.example")).await.unwrap();
        kubelet.write_all(KUBELET).await.unwrap();
        let mut answers = Vec::new();
        kubelet.read_to_end(&mut answers).await.unwrap();
        let endpoint = b"/kubelet/csi.sock";
        assert!(answers.windows(endpoint.len()).any(|text| text == endpoint), "not told where the driver is");
        process.readiness.wait().await;
        process.shutdown.trigger();
    });
    let result = tokio::time::timeout(Duration::from_secs(60), result).await.expect("registered in time");
    assert!(result.is_ok(), "{result:?}");
}

#[tokio::test]
async fn a_refusal_by_the_kubelet_ends_the_run_with_its_words() {
    let result = with_registrar(|_, _, channel| async move {
        let status = RegistrationStatus { plugin_registered: false, error: "too old".into() };
        RegistrationClient::new(channel).notify_registration_status(status).await.unwrap();
    })
    .await;
    assert_eq!(result.unwrap_err().to_string(), "the kubelet refused driver driver.example: too old");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_never_comes_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let process = Process::real("test");
    let ended = run(process, Arc::new(UnixConnector), Arc::new(UnixServe), options(dir.path())).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("csi.sock") && error.contains("--csi-address"), "{error}");
}

#[tokio::test]
async fn the_health_check_misses_a_socket_that_is_not_served() {
    let check = Health::default().check(Arc::new(UnixConnector), Duration::from_secs(1));
    assert_eq!(check().await.unwrap_err().0, http::StatusCode::NOT_FOUND);
}
