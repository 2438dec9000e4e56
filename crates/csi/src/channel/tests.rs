use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};
use tonic::{Code, Request as Call, Response as Answer};
use tower::layer::layer_fn;

use super::*;
use crate::{
    Deadline, Family, code,
    server::{Listener, Socket, SocketMode},
    v1::{
        CreateVolumeRequest, CreateVolumeResponse, Volume,
        controller_client::ControllerClient,
        controller_server::{Controller, ControllerServer},
    },
};

/// A driver that does what the volume's name says.
#[derive(Default)]
struct Driver {
    created: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(&self, request: Call<CreateVolumeRequest>) -> Result<Answer<CreateVolumeResponse>, Status> {
        self.created.fetch_add(1, Ordering::SeqCst);
        let name = request.into_inner().name;
        match name.as_str() {
            "refuse" => Err(Status::unknown("the driver's own word")),
            "hang" => std::future::pending().await,
            _ => {
                Ok(Answer::new(CreateVolumeResponse { volume: Some(Volume { volume_id: name, ..Default::default() }) }))
            }
        }
    }
}

fn routes() -> Routes {
    Routes::new(ControllerServer::new(Driver::default()))
}

async fn create(channel: &Channel, name: &str) -> Result<String, Status> {
    let mut client = ControllerClient::new(channel.clone());
    let request = CreateVolumeRequest { name: name.into(), ..Default::default() };
    let answer = Deadline(Duration::from_secs(10)).call(request, |r| client.create_volume(r)).await?;
    Ok(answer.volume.unwrap_or_default().volume_id)
}

fn place() -> (TempDir, Endpoint) {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(directory.path().join("csi.sock")).unwrap();
    (directory, endpoint)
}

fn serve(endpoint: &Endpoint) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let socket = Socket::bind(endpoint.path().unwrap(), SocketMode::default()).unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async move { stopped.await.unwrap_or_default() };
    (stop, tokio::spawn(async move { socket.serve(routes(), stopped).await.unwrap() }))
}

#[tokio::test(start_paused = true)]
async fn a_driver_in_this_process_is_called_without_a_socket() {
    let channel = Channel::in_process(routes());
    assert_eq!(create(&channel, "a").await.unwrap(), "a");
    let refused = create(&channel, "refuse").await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, "the driver's own word"));
}

#[tokio::test(start_paused = true)]
async fn a_service_the_driver_does_not_have_is_unimplemented() {
    let error = create(&Channel::in_process(Routes::default()), "a").await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_driver_in_this_process_ends_at_the_deadline() {
    let begin = tokio::time::Instant::now();
    let error = create(&Channel::in_process(routes()), "hang").await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(begin.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_sees_every_call_and_can_lose_the_answer() {
    let created = Arc::new(AtomicUsize::new(0));
    let driver = Driver { created: created.clone() };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let channel = Channel::in_process(Routes::new(ControllerServer::new(driver))).intercept(move |request, next| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        async move {
            next.send(request).await?;
            Err(Status::unavailable("the answer got lost"))
        }
    });
    let error = create(&channel, "a").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "the answer got lost"));
    assert_eq!(created.load(Ordering::SeqCst), 1, "done, though nobody heard");
    assert_eq!(*seen.lock().unwrap(), ["/csi.v1.Controller/CreateVolume"]);
}

#[tokio::test(start_paused = true)]
async fn layers_stack_and_their_errors_become_statuses() {
    let refuse = layer_fn(|_: Channel| {
        tower::service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>(Status::aborted("by a layer")) })
    });
    let error = create(&Channel::in_process(routes()).layer(refuse), "a").await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted);

    let pass = layer_fn(|inner: Channel| tower::service_fn(move |request| inner.clone().send(request)));
    assert_eq!(create(&Channel::in_process(routes()).layer(pass), "a").await.unwrap(), "a");
}

#[tokio::test]
async fn a_driver_is_called_over_a_port_where_the_endpoint_asks_for_it() {
    let free: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let Listener::Port(port) = Listener::bind(&free, SocketMode::default()).await.unwrap() else { panic!("no port") };
    let endpoint: Endpoint = format!("tcp://{}", port.address()).parse().unwrap();
    let taken = Listener::bind(&endpoint, SocketMode::default()).await.unwrap_err().to_string();
    assert!(taken.contains(&endpoint.to_string()) && taken.contains("free port"), "{taken}");
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(port.serve(routes(), async move { stopped.await.unwrap_or_default() }));
    let channel = Channel::unix(&endpoint);
    assert_eq!(create(&channel, "a").await.unwrap(), "a");
    drop(channel);
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let error = create(&Channel::unix(&endpoint), "a").await.unwrap_err();
    assert!(Unreachable::in_status(&error).is_some(), "{error:?}");
    assert!(error.message().contains(&endpoint.to_string()), "{error:?}");
}

#[tokio::test]
async fn a_socket_that_is_not_there_fails_at_once_and_says_where() {
    let (_directory, endpoint) = place();
    let error = create(&Channel::unix(&endpoint), "a").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(Unreachable::in_status(&error).is_some(), "{error:?}");
    let path = endpoint.path().unwrap().display().to_string();
    assert!(error.message().contains(&path) && error.message().contains("is the driver running"), "{error:?}");
}

#[tokio::test]
async fn a_driver_that_comes_later_or_again_is_found() {
    let (_directory, endpoint) = place();
    let channel = Channel::unix(&endpoint);
    create(&channel, "a").await.unwrap_err();
    for round in ["first", "second", "third"] {
        let (stop, served) = serve(&endpoint);
        // The old connection may be found dead only by using it; the next call must then have a new one.
        let mut answer = create(&channel, round).await;
        if answer.as_ref().is_err_and(|e| e.code() == Code::Unavailable) {
            answer = create(&channel, round).await;
        }
        assert_eq!(answer.unwrap(), round);
        stop.send(()).unwrap();
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_is_told_while_no_call_is_made() {
    let (_directory, endpoint) = place();
    let (stop, served) = serve(&endpoint);
    let channel = Channel::unix(&endpoint);
    let mut connections = channel.connections().unwrap();
    let expected = connections.borrow().in_use();
    create(&channel, "a").await.unwrap();
    assert_eq!(*connections.borrow_and_update(), expected, "a call makes one connection");
    assert_eq!(expected.in_use(), expected, "and the next goes over it");
    stop.send(()).unwrap();
    served.await.unwrap();
    let lost = *connections.wait_for(|now| *now != expected).await.unwrap();
    assert_eq!(lost, Connections { lost: 1, ..expected });
    let (stop, served) = serve(&endpoint);
    create(&channel, "b").await.unwrap();
    assert_eq!(*connections.borrow(), lost.in_use());
    stop.send(()).unwrap();
    served.await.unwrap();
}

#[tokio::test]
async fn the_driver_s_own_error_comes_through_unchanged() {
    let (_directory, endpoint) = place();
    let (stop, served) = serve(&endpoint);
    let error = create(&Channel::unix(&endpoint), "refuse").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "the driver's own word"));
    assert_eq!(code::outcome_of(Family::CreateVolume, &error), code::Outcome::Final);
    stop.send(()).unwrap();
    served.await.unwrap();
}

/// Takes one call on a bare socket, answers with these HTTP/2 frames, and hangs up: a driver dying at that point.
async fn dies_after(frames: &[Vec<u8>]) -> Status {
    let (_directory, endpoint) = place();
    let listener = UnixListener::bind(endpoint.path().unwrap()).unwrap();
    let channel = Channel::unix(&endpoint);
    let call = tokio::spawn(async move { create(&channel, "a").await });
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    read_call(&mut stream).await;
    for frame in frames {
        stream.write_all(frame).await.unwrap();
    }
    drop((stream, listener));
    call.await.unwrap().unwrap_err()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `:status 200` and `content-type: application/grpc`, in HPACK.
fn headers(flags: u8) -> Vec<u8> {
    let block = [&[0x88, 0x00, 12][..], b"content-type", &[16], b"application/grpc"].concat();
    frame(HEADERS, END_HEADERS | flags, 1, &block)
}

/// Reads up to the end of the first request.
async fn read_call(stream: &mut UnixStream) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        if head[8] == 1 && matches!(head[3], DATA | HEADERS) && head[4] & END_STREAM != 0 {
            return;
        }
    }
}

#[tokio::test]
async fn a_driver_that_dies_during_a_call_leaves_it_uncertain_wherever_it_was() {
    let internal_error = 2_u32.to_be_bytes();
    let message_of_nine_bytes = [0, 0, 0, 0, 9];
    let deaths = [
        ("before any answer", vec![]),
        ("with a reset", vec![frame(RST_STREAM, 0, 1, &internal_error)]),
        ("with a goodbye", vec![frame(GOAWAY, 0, 0, &[[0; 4], internal_error].concat())]),
        ("after the headers", vec![headers(0)]),
        ("within the message", vec![headers(0), frame(DATA, 0, 1, &message_of_nine_bytes)]),
        ("after the message, before its status", vec![headers(0), frame(DATA, END_STREAM, 1, &[0; 5])]),
        ("with headers and no status", vec![headers(END_STREAM)]),
        ("with a reset after the headers", vec![headers(0), frame(RST_STREAM, 0, 1, &internal_error)]),
    ];
    for (when, frames) in deaths {
        let error = dies_after(&frames).await;
        assert_eq!(error.code(), Code::Unavailable, "{when}: {error:?}");
        assert!(error.message().starts_with("lost the connection to unix:///"), "{when}: {error:?}");
        assert!(Unreachable::in_status(&error).is_none(), "{when}: the request may have been heard");
        assert!(code::outcome_of(Family::CreateVolume, &error).may_be_running(), "{when}");
    }
}

#[tokio::test]
async fn a_hanging_driver_behind_a_socket_ends_at_the_deadline() {
    let (_directory, endpoint) = place();
    let (stop, served) = serve(&endpoint);
    let mut client = ControllerClient::new(Channel::unix(&endpoint));
    let request = CreateVolumeRequest { name: "hang".into(), ..Default::default() };
    let error = Deadline(Duration::from_millis(20)).call(request, |r| client.create_volume(r)).await.unwrap_err();
    assert!(code::outcome_of(Family::CreateVolume, &error).may_be_running(), "{error:?}");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error:?}");
    stop.send(()).unwrap();
    served.await.unwrap();
}

#[test]
fn a_channel_can_be_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Channel>();
}
