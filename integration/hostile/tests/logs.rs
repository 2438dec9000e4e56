//! A standard error that takes nothing: a full disk, a reader that has gone.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use hostile_suite::Server;
use local_suite::process::Process;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

fn start(binary: &str, arguments: &[String], home: &Path) -> Process {
    Process::start_with(binary, binary, arguments, home, Some(full())).unwrap()
}

/// What the admin server says, once it says it with 200.
async fn answered(process: &mut Process, port: u16, path: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let mut answer = String::new();
            let asked = stream.write_all(request.as_bytes()).await.is_ok();
            if asked && stream.read_to_string(&mut answer).await.is_ok() && answer.starts_with("HTTP/1.1 200") {
                return answer;
            }
        }
        let ended = process.exited().unwrap();
        assert!(ended.is_none(), "{} ended: {ended:?}", process.name());
        assert!(Instant::now() < deadline, "{} does not answer {path}", process.name());
        sleep(LOOK).await;
    }
}

fn lost(metrics: &str) -> u64 {
    let counter = metrics.lines().find_map(|line| line.strip_prefix("stowage_log_lines_dropped_total "));
    counter.unwrap().parse().unwrap()
}

async fn stops_well(mut process: Process) {
    process.signal(Signal::SIGTERM).unwrap();
    let status = process.ended(PATIENCE).await.unwrap();
    assert!(status.success(), "{}: {status}", process.name());
}

#[tokio::test]
async fn an_api_server_that_cannot_log_serves_and_stops_as_ever() {
    let server = Server::start_with_errors(full()).await;
    let map = json!({ "metadata": { "name": "a" } });
    let made = server.call("POST", "/api/v1/namespaces/default/configmaps", map).await;
    assert_eq!(made.code, 201, "{:?}", made.body);
    stops_well(server.into_process()).await;
}

#[tokio::test]
async fn services_that_cannot_log_work_and_count_what_was_lost() {
    let server = Server::start(&[]).await;
    let home = tempfile::tempdir().unwrap();
    for binary in ["pv-controller", "scheduler", "attach-detach-controller"] {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port();
        let arguments =
            [format!("--kubeconfig={}", server.kubeconfig().display()), format!("--http-endpoint=127.0.0.1:{port}")];
        let mut process = start(binary, &arguments, home.path());
        // It has something to say when it begins to lead.
        let deadline = Instant::now() + PATIENCE;
        while lost(&answered(&mut process, port, "/metrics").await) == 0 {
            assert!(Instant::now() < deadline, "{binary} has lost nothing");
            sleep(LOOK).await;
        }
        answered(&mut process, port, "/readyz").await;
        stops_well(process).await;
    }
}

#[tokio::test]
async fn a_driver_that_cannot_log_serves_and_stops_as_ever() {
    let home = tempfile::tempdir().unwrap();
    let (pool, socket) = (home.path().join("pool"), home.path().join("csi.sock"));
    std::fs::create_dir(&pool).unwrap();
    let arguments = [
        format!("--endpoint=unix://{}", socket.display()),
        format!("--pool=default={}", pool.display()),
        format!("--state-dir={}", home.path().join("state").display()),
        "--mode=controller".to_owned(),
        "--nodeid=n1".to_owned(),
        "--driver=shared".to_owned(),
    ];
    let mut process = start("node-plugin", &arguments, home.path());
    let deadline = Instant::now() + PATIENCE;
    while !socket.try_exists().unwrap() {
        assert!(process.exited().unwrap().is_none(), "{}", process.said().unwrap());
        assert!(Instant::now() < deadline, "no socket");
        sleep(LOOK).await;
    }
    stops_well(process).await;
}
