use std::os::unix::net::UnixListener as StdListener;

use tempfile::TempDir;
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tonic::{Request, Response, Status};

use super::*;
use crate::{
    Channel,
    v1::{
        ProbeRequest, ProbeResponse,
        identity_client::IdentityClient,
        identity_server::{Identity as IdentityService, IdentityServer},
    },
};

/// Says that a probe has come in, and answers once told to.
struct Held {
    entered: mpsc::Sender<oneshot::Sender<()>>,
}

#[tonic::async_trait]
impl IdentityService for Held {
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let (release, released) = oneshot::channel();
        self.entered.send(release).await.map_err(|_| Status::internal("the test is gone"))?;
        released.await.map_err(|_| Status::internal("the test is gone"))?;
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), Error>>,
}

fn serve(socket: Socket, routes: Routes) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(socket.serve(routes, async move {
        let _ = stopped.await;
    }));
    Running { stop, served }
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    (directory, path)
}

fn bind(path: &Path) -> Socket {
    Socket::bind(path, SocketMode::default()).unwrap()
}

#[test]
fn modes_are_octal_and_default_to_owner_and_group() {
    assert_eq!(SocketMode::default().to_string(), "0660");
    for (text, bits) in [("0660", 0o660), ("600", 0o600), ("0o777", 0o777), ("0", 0)] {
        assert_eq!(text.parse::<SocketMode>().unwrap().bits(), bits, "{text}");
    }
    for text in ["", "0888", "rw", "1777", "-1", "+660", "0x1ff"] {
        let message = text.parse::<SocketMode>().unwrap_err().to_string();
        assert!(message.contains("write 0660"), "{message}");
    }
}

#[tokio::test]
async fn the_socket_has_the_mode_asked_for_whatever_the_umask() {
    let (_directory, path) = place();
    for mode in [0o660, 0o600, 0o777] {
        let socket = Socket::bind(&path, SocketMode::new(mode)).unwrap();
        let data = fs::symlink_metadata(socket.path()).unwrap();
        assert!(data.file_type().is_socket());
        assert_eq!(data.permissions().mode() & 0o7777, mode);
    }
}

#[tokio::test]
async fn a_bound_socket_that_does_not_listen_yet_lets_nobody_in() {
    // What the order bind, chmod, listen rests on.
    let (_directory, path) = place();
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    assert_eq!(knock(&path), Err(Errno::ECONNREFUSED));
}

#[tokio::test]
async fn a_socket_left_by_a_dead_server_is_replaced() {
    let (_directory, path) = place();
    drop(StdListener::bind(&path).unwrap());
    assert!(path.try_exists().unwrap());
    let _socket = bind(&path);
    UnixStream::connect(&path).await.unwrap();
}

#[tokio::test]
async fn a_socket_somebody_answers_on_is_left_alone() {
    let (_directory, path) = place();
    let _first = bind(&path);
    let error = Socket::bind(&path, SocketMode::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("another process answers on {path:?}; stop it or choose another path"));
    UnixStream::connect(&path).await.unwrap();
}

#[tokio::test]
async fn a_server_too_busy_to_accept_is_not_taken_for_dead() {
    let (_directory, path) = place();
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let _listener = socket.listen(0).unwrap();
    let _waiting = UnixStream::connect(&path).await.unwrap();
    assert_eq!(knock(&path), Err(Errno::EAGAIN), "the backlog is full");
    assert!(matches!(Socket::bind(&path, SocketMode::default()), Err(Error::InUse { .. })));
}

#[tokio::test]
async fn a_file_or_link_in_the_way_is_named_and_kept() {
    let (directory, path) = place();
    fs::write(&path, "precious").unwrap();
    let error = Socket::bind(&path, SocketMode::default()).unwrap_err();
    assert!(error.to_string().contains("is not a socket; remove it"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

    let link = directory.path().join("link.sock");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Socket::bind(&link, SocketMode::default()), Err(Error::NotASocket { .. })));
}

#[tokio::test]
async fn a_missing_directory_and_a_long_path_are_told_with_the_way_out() {
    let (directory, _) = place();
    let error = Socket::bind(directory.path().join("none/csi.sock"), SocketMode::default()).unwrap_err();
    assert!(error.to_string().contains("none\" for a socket") && error.to_string().contains("create it"), "{error}");
    let error = Socket::bind(directory.path().join("x".repeat(120)), SocketMode::default()).unwrap_err();
    assert!(error.to_string().contains("the kernel allows 107; choose a shorter directory"), "{error}");
}

#[tokio::test]
async fn a_stop_lets_the_call_in_flight_finish_and_removes_the_socket() {
    let (_directory, path) = place();
    let (entered, mut calls) = mpsc::channel(1);
    let running = serve(bind(&path), Routes::new(IdentityServer::new(Held { entered })));
    let mut client = IdentityClient::new(Channel::unix(&Endpoint::at(&path).unwrap()));
    let call = tokio::spawn(async move { client.probe(ProbeRequest {}).await });
    let release = calls.recv().await.unwrap();

    let Running { stop, served } = running;
    stop.send(()).unwrap();
    // Far more turns than the server needs to end, were it not waiting for the call.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!served.is_finished(), "the server must wait for the call");

    release.send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap().into_inner().ready, Some(true));
    served.await.unwrap().unwrap();
    assert!(!path.try_exists().unwrap());
}

#[tokio::test]
async fn an_abort_removes_the_socket_too() {
    let (_directory, path) = place();
    let running = serve(bind(&path), Routes::default());
    UnixStream::connect(&path).await.unwrap();
    running.served.abort();
    assert!(running.served.await.unwrap_err().is_cancelled());
    assert!(!path.try_exists().unwrap());
}

#[tokio::test]
async fn a_successor_s_socket_survives_our_end() {
    let (_directory, path) = place();
    let first = bind(&path);
    fs::remove_file(&path).unwrap();
    let _second = bind(&path);
    drop(first);
    UnixStream::connect(&path).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_start_together_exactly_one_serves() {
    for _ in 0..50 {
        let (_directory, path) = place();
        let attempts: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                tokio::spawn(async move { Socket::bind(path, SocketMode::default()) })
            })
            .collect();
        let mut winners = Vec::new();
        for attempt in attempts {
            match attempt.await.unwrap() {
                Ok(socket) => winners.push(socket),
                Err(error) => assert!(matches!(error, Error::InUse { .. }), "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
    }
}

#[tokio::test]
async fn nothing_but_the_socket_is_left_beside_it() {
    let (directory, path) = place();
    let running = serve(bind(&path), Routes::default());
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["csi.sock"]);
    running.stop().await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
