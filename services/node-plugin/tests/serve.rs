//! The driver as a server: its socket, its stop, and callers that give up.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use node_plugin::args::PoolOption;
use node_plugin::{Driver, Kind, Mode, Options, run};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::identity_client::IdentityClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{self, AccessType, MountVolume};
use stowage_csi::v1::{
    CapacityRange, CreateVolumeRequest, GetPluginInfoRequest, NodeGetInfoRequest, ProbeRequest, VolumeCapability,
};
use stowage_csi::{Channel, Endpoint};
use stowage_mount::LinuxMounter;
use tokio::sync::oneshot;
use tonic::Code;

fn options(dir: &Path, mode: Mode) -> Options {
    Options {
        kind: Kind::Shared,
        driver_name: "shared.csi.stowage.dev".into(),
        endpoint: Endpoint::at(dir.join("csi.sock")).unwrap(),
        socket_mode: Default::default(),
        node_id: "a".into(),
        pools: vec![PoolOption { name: "main".into(), path: dir.into() }],
        mode,
        prepare_pools: true,
        state_dir: dir.join("state"),
        overcommit: 1.0,
        max_volumes: 0,
        target_roots: vec![dir.join("kubelet")],
    }
}

fn request(name: &str) -> CreateVolumeRequest {
    let capability = VolumeCapability {
        access_mode: Some(volume_capability::AccessMode { mode: AccessMode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    // Small, so that a nearly full machine can promise it too.
    let capacity_range = Some(CapacityRange { required_bytes: 16 << 20, limit_bytes: 0 });
    CreateVolumeRequest {
        name: name.into(),
        capacity_range,
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

/// Serves while a client asks.
async fn serve(options: &Options, client: impl Future<Output = ()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel::<()>();
    let stopping = async move {
        // The first poll of the stop signal comes with the first poll of the listening server.
        ready.send(()).unwrap();
        let _ = stopped.await;
    };
    let server = run(options.clone(), Arc::new(LinuxMounter), Box::pin(stopping));
    let client = async {
        is_ready.await.unwrap();
        client.await;
        stop.send(()).unwrap();
    };
    let (served, ()) = tokio::join!(server, client);
    served.unwrap();
}

#[tokio::test]
async fn a_server_answers_on_its_socket_until_told_to_stop_and_takes_the_socket_along() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), Mode::All);
    let channel = Channel::unix(&options.endpoint);
    serve(&options, async {
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await.unwrap();
        assert_eq!(answer.into_inner().ready, Some(true));
    })
    .await;
    assert!(!options.endpoint.path().unwrap().try_exists().unwrap());
}

#[tokio::test]
async fn a_server_answers_on_a_port_where_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    // Taken and given back, so that it is free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options { endpoint: format!("tcp://{port}").parse().unwrap(), ..options(dir.path(), Mode::All) };
    let channel = Channel::unix(&options.endpoint);
    serve(&options, async {
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await.unwrap();
        assert_eq!(answer.into_inner().ready, Some(true));
    })
    .await;
}

#[tokio::test]
async fn a_driver_whose_pool_is_away_is_alive_and_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let pools = vec![PoolOption { name: "main".into(), path: dir.path().join("away") }];
    let options = Options { pools, ..options(dir.path(), Mode::All) };
    let address = format!("unix://{}", options.endpoint.path().unwrap().display());
    let check = async |word: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_node-plugin"));
        command.args([word, &address]).output().await.unwrap()
    };
    assert!(!check("alive").await.status.success(), "nobody is there yet");
    serve(&options, async {
        let alive = check("alive").await;
        assert!(alive.status.success(), "{alive:?}");
        let ready = check("healthcheck").await;
        assert!(!ready.status.success() && String::from_utf8_lossy(&ready.stderr).contains("away"), "{ready:?}");
    })
    .await;
}

#[tokio::test]
async fn each_mode_offers_its_own_services_only() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, controller, node) in
        [(Mode::Controller, true, false), (Mode::Node, false, true), (Mode::All, true, true)]
    {
        let driver = Driver::new(&options(dir.path(), mode), Arc::new(LinuxMounter));
        let channel = Channel::in_process(driver.routes());
        let made = ControllerClient::new(channel.clone()).create_volume(request("v")).await;
        let info = NodeClient::new(channel).node_get_info(NodeGetInfoRequest {}).await;
        let offered = |code: Option<Code>| code != Some(Code::Unimplemented);
        assert_eq!(offered(made.err().map(|status| status.code())), controller, "{mode:?}");
        assert_eq!(offered(info.err().map(|status| status.code())), node, "{mode:?}");
    }
}

#[tokio::test]
async fn a_call_whose_caller_gives_up_is_finished_before_the_driver_stops() {
    let dir = tempfile::tempdir().unwrap();
    let driver = Driver::new(&options(dir.path(), Mode::All), Arc::new(LinuxMounter));
    driver.recover().await;
    let mut client = ControllerClient::new(Channel::in_process(driver.routes()));
    tokio::select! {
        biased;
        answer = client.create_volume(request("v")) => panic!("answered before it could be given up: {answer:?}"),
        () = tokio::task::yield_now() => {}
    }
    driver.drain().await;
    let names = std::fs::read_dir(dir.path().join("volumes")).unwrap();
    assert_eq!(names.count(), 2, "record and image");
}

#[tokio::test]
async fn the_driver_for_nfs_servers_answers_on_its_socket_under_the_originals_name() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("--endpoint=unix://{}", dir.path().join("csi.sock").display());
    let work = format!("--working-mount-dir={}", dir.path().display());
    let words = ["node-plugin", "--driver=nfs", "--nodeid=a", "-v=5", &socket, &work].map(Into::into);
    let args: node_plugin::args::Args = stowage_process::flags::try_parse_from(words).unwrap();
    let options = args.nfs_options().unwrap();
    let channel = Channel::unix(&options.endpoint);
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel::<()>();
    let stopping = async move {
        ready.send(()).unwrap();
        let _ = stopped.await;
    };
    let server = node_plugin::nfs::run(options, Arc::new(LinuxMounter), Box::pin(stopping));
    let client = async {
        is_ready.await.unwrap();
        let info = IdentityClient::new(channel.clone()).get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.into_inner().name, "nfs.csi.k8s.io");
        assert_eq!(
            NodeClient::new(channel).node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner().node_id,
            "a"
        );
        stop.send(()).unwrap();
    };
    let (served, ()) = tokio::join!(server, client);
    served.unwrap();
    assert!(!dir.path().join("csi.sock").try_exists().unwrap());
}
