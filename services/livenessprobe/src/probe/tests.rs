use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::UnixConnector;
use stowage_csi::server::{Port, Socket, SocketMode};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::{GetPluginInfoRequest, GetPluginInfoResponse, ProbeRequest, ProbeResponse};

use super::*;

/// A driver that is as well as the test wants.
#[derive(Clone)]
struct Driver(Arc<Mutex<Result<Option<bool>, Status>>>);

impl Driver {
    fn new(state: Result<Option<bool>, Status>) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone()))
    }

    fn becomes(&self, state: Result<Option<bool>, Status>) {
        *self.0.lock().unwrap() = state;
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: "driver.example".into(), ..Default::default() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let state = self.0.lock().unwrap().clone();
        state.map(|ready| Response::new(ProbeResponse { ready }))
    }
}

fn options(socket: &Path) -> Options {
    // Real time passes, and the machine may be busy.
    Options { csi_address: socket.to_str().unwrap().to_owned(), probe_timeout: Duration::from_secs(60) }
}

async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn healthz_says_what_the_driver_says_and_the_metrics_count_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let driver = Driver::new(Ok(None));
    let socket = Socket::bind(&path, SocketMode::default()).unwrap();
    let process = Process::real("test");
    let probe = Probe::new(process.clone(), Arc::new(UnixConnector), &options(&path)).unwrap();
    let bound = process.admin().check(probe.check()).bind("127.0.0.1:0").await.unwrap();
    let address = bound.local_addr().unwrap();
    let story = async {
        process.readiness.wait().await;
        assert_eq!(get(address, "/healthz").await, (200, "ok".into()), "who does not say is ready");
        driver.becomes(Ok(Some(false)));
        assert_eq!(get(address, "/healthz").await, (500, "driver responded but is not ready".into()));
        driver.becomes(Err(Status::failed_precondition("the pool is away")));
        let (status, body) = get(address, "/healthz").await;
        assert!(status == 500 && body.contains("the pool is away") && body.contains("FailedPrecondition"), "{body}");
        driver.becomes(Ok(Some(true)));
        assert_eq!(get(address, "/healthz").await, (200, "ok".into()));
        let (_, metrics) = get(address, "/metrics").await;
        for wanted in [
            "csi_sidecar_operations_seconds_count{driver_name=\"driver.example\",method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"OK\"} 3",
            "method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"FailedPrecondition\"} 1",
            "driver_name=\"unknown-driver\",method_name=\"/csi.v1.Identity/GetPluginInfo\",grpc_status_code=\"OK\"} 1",
        ] {
            assert!(metrics.contains(wanted), "no {wanted} in\n{metrics}");
        }
    };
    let served = socket.serve(driver.routes(), std::future::pending());
    tokio::select! {
        biased;
        ended = run(probe) => panic!("{ended:?}"),
        ended = served => panic!("{ended:?}"),
        () = bound.serve(std::future::pending()) => panic!("the admin server ended"),
        () = story => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_there_has_the_whole_time_to_come_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { probe_timeout: Duration::from_secs(3), ..options(&directory.path().join("nobody.sock")) };
    let process = Process::real("test");
    let probe = Probe::new(process.clone(), Arc::new(UnixConnector), &options).unwrap();
    let begin = tokio::time::Instant::now();
    let (status, reason) = (probe.check())().await.unwrap_err();
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(reason, format!("the driver at {} did not answer within 3s", options.csi_address));
    // And it does not end for that.
    let waited = tokio::time::timeout(Duration::from_secs(3600), run(probe)).await;
    assert!(waited.is_err(), "{waited:?}");
    // Who was not reached was not called: the original waits for a connection first, and counts nothing.
    let metrics = process.metrics.encode();
    assert!(!metrics.contains("csi_sidecar_operations_seconds_count"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_lets_everybody_in_and_never_answers_is_not_well_and_does_not_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let accept = async {
        let mut guests = Vec::new();
        loop {
            guests.push(listener.accept().await.unwrap());
        }
    };
    let options = Options { probe_timeout: Duration::from_secs(3), ..options(&path) };
    let process = Process::real("test");
    let probe = Probe::new(process.clone(), Arc::new(UnixConnector), &options).unwrap();
    let story = async {
        let begin = tokio::time::Instant::now();
        let (status, reason) = (probe.check())().await.unwrap_err();
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(reason.contains("Probe: no answer from the driver"), "{reason}");
        let waited = tokio::time::timeout(Duration::from_secs(3600), run(probe)).await;
        assert!(waited.is_err(), "{waited:?}");
        assert!(process.readiness.check().is_err());
        let metrics = process.metrics.encode();
        let silent = "Identity/Probe\",grpc_status_code=\"DeadlineExceeded\"} 1";
        assert!(metrics.contains(silent), "{metrics}");
    };
    tokio::select! {
        biased;
        never = accept => never,
        () = story => {}
    }
}

#[tokio::test]
async fn a_driver_on_a_port_is_asked_there() {
    let driver = Driver::new(Ok(Some(true)));
    let port = Port::bind("127.0.0.1:0").await.unwrap();
    let options = Options { csi_address: format!("tcp://{}", port.address()), ..options(Path::new("")) };
    let probe = Probe::new(Process::real("test"), Arc::new(UnixConnector), &options).unwrap();
    tokio::select! {
        biased;
        ended = port.serve(driver.routes(), std::future::pending()) => panic!("{ended:?}"),
        healthy = (probe.check())() => assert_eq!(healthy, Ok(())),
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_the_way_out() {
    let options = Options { csi_address: "csi.sock".into(), ..Options::default() };
    let refused = Probe::new(Process::real("test"), Arc::new(UnixConnector), &options).err().unwrap().to_string();
    assert!(refused.contains("--csi-address \"csi.sock\"") && refused.contains("unix:///PATH"), "{refused}");
}

/// livenessprobe asked over one connection that it kept: a driver went on answering there when its socket was gone.
#[tokio::test]
async fn only_who_can_be_reached_by_the_socket_now_is_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let first = Driver::new(Ok(Some(true)));
    let socket = Socket::bind(&path, SocketMode::default()).unwrap();
    let process = Process::real("test");
    let probe = Probe::new(process.clone(), Arc::new(UnixConnector), &options(&path)).unwrap();
    let impatient = Options { probe_timeout: Duration::from_millis(50), ..options(&path) };
    let hasty = Probe::new(process.clone(), Arc::new(UnixConnector), &impatient).unwrap();
    let check = probe.check();
    let story = async {
        process.readiness.wait().await;
        assert_eq!(check().await, Ok(()));
        // It runs and answers whoever has a connection, and nobody else can make one.
        std::fs::remove_file(&path).unwrap();
        let (status, reason) = (hasty.check())().await.unwrap_err();
        assert!(status == StatusCode::INTERNAL_SERVER_ERROR && reason.contains("did not answer"), "{reason}");
        // Another driver in its place is the one that is asked.
        let second = Driver::new(Ok(Some(false)));
        let replaced = Socket::bind(&path, SocketMode::default()).unwrap();
        let asked = async {
            let (_, reason) = check().await.unwrap_err();
            assert_eq!(reason, "driver responded but is not ready");
            second.becomes(Ok(Some(true)));
            assert_eq!(check().await, Ok(()));
        };
        tokio::select! {
            biased;
            ended = replaced.serve(second.routes(), std::future::pending()) => panic!("{ended:?}"),
            () = asked => {}
        }
    };
    tokio::select! {
        biased;
        ended = run(probe.clone()) => panic!("{ended:?}"),
        ended = socket.serve(first.routes(), std::future::pending()) => panic!("{ended:?}"),
        () = story => {}
    }
}

/// A driver without a name is no driver.
#[tokio::test]
async fn a_driver_that_refuses_to_say_its_name_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let socket = Socket::bind(&path, SocketMode::default()).unwrap();
    let probe = Probe::new(Process::real("test"), Arc::new(UnixConnector), &options(&path)).unwrap();
    tokio::select! {
        biased;
        ended = run(probe) => {
            let reason = ended.unwrap_err().to_string();
            assert!(reason.contains("Unimplemented"), "{reason}");
        }
        ended = socket.serve(Routes::default(), std::future::pending()) => panic!("{ended:?}"),
    }
}
