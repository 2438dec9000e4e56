//! The volume manager's socket: HTTP for programs of this machine's administrator, and for nobody else.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use stowage_model::names::UniqueVolumeName;
use stowage_model::object::{Key, Meta};
use stowage_model::pod::Pod;
use stowage_runtime::api::{Deletion, Target};

use super::{ContainerMount, Error, Hold, Missing, PATIENCE, RUN_LABEL, VolumeManager, causes};

/// One line of the answer to somebody who holds a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// What the pod still waits for.
    Waiting(Vec<Missing>),
    /// It has its volumes; the answer goes on until the pod is let go.
    #[serde(rename_all = "camelCase")]
    Ready { uid: String, mounts: Vec<ContainerMount>, supplemental_groups: Vec<i64> },
    /// It cannot have them.
    Failed(String),
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

type Body = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;
type Sender = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

/// Answers on the socket for ever; what an earlier process left at its path goes.
pub async fn serve(manager: Arc<VolumeManager>, socket: &Path) -> io::Result<()> {
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    let _removed = Removed(socket);
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    let mut connections = JoinSet::new();
    // What outlives its connection for a moment, because it has something to put in order.
    let (holds, mut held) = mpsc::channel::<BoxFuture<'static, ()>>(16);
    loop {
        tokio::select! {
            biased;
            _ = connections.join_next(), if !connections.is_empty() => {}
            Some(hold) = held.recv() => drop(connections.spawn(hold)),
            accepted = listener.accept() => {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    // Descriptors may have run out for a moment; trying again at once would spin.
                    Err(error) => {
                        tracing::warn!(%error, "a program of this machine could not be answered");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let (manager, holds) = (Arc::clone(&manager), holds.clone());
                let service = service_fn(move |request| answer(Arc::clone(&manager), holds.clone(), request));
                connections.spawn(async move {
                    // Who goes in the middle of an answer has let go of it.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        }
    }
}

/// A socket that goes with who answers on it.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // One that is gone already is what is wanted.
        let _ = std::fs::remove_file(self.0);
    }
}

async fn answer(
    manager: Arc<VolumeManager>,
    holds: mpsc::Sender<BoxFuture<'static, ()>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    // A volume's name has slashes of its own, and may have any character that a driver likes.
    let path = decoded(request.uri().path());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (sender, receiver) = mpsc::channel(8);
    let status = match (request.method(), &parts[..]) {
        (&Method::GET, ["v1", "pods", namespace, name, "hold"]) => {
            let key = Key::namespaced(*namespace, *name);
            // Before the first word of the answer: who has heard it may make the pod.
            let held = manager.hold(key);
            // The server lives as long as its connections.
            let _ = holds.send(hold(manager, held, sender).boxed()).await;
            StatusCode::OK
        }
        (&Method::GET, ["v1", "pods", uid, "volumes"]) => volumes(&manager, uid, &sender).await,
        (&Method::GET, ["v1", "pods", uid, wait @ ("wait" | "waitUnmount")]) => {
            let is_mount = *wait == "wait";
            waited(&manager, uid, is_mount, request.uri().query(), &sender).await
        }
        (&Method::GET, ["v1", "volumes", plugin, kind, own @ ..]) if !own.is_empty() => {
            let name = UniqueVolumeName::from(format!("{plugin}/{kind}/{}", own.join("/")).as_str());
            let body = serde_json::json!({
                "attached": manager.is_attached(&name),
                "inUse": manager.volumes_in_use().iter().any(|in_use| in_use == name.as_str()),
                "operationPending": manager.is_operation_pending(&name),
            });
            say(&sender, &body).await;
            StatusCode::OK
        }
        (&Method::GET, ["v1", "pods", uid, "usage"]) => match manager.usage(uid).await {
            Ok(usage) => {
                say(&sender, &usage).await;
                StatusCode::OK
            }
            Err(_) => StatusCode::NOT_FOUND,
        },
        (&Method::GET, ["v1", "volumesInUse"]) => {
            say(&sender, &manager.volumes_in_use()).await;
            StatusCode::OK
        }
        (&Method::GET, ["v1", "synced"]) => {
            say(&sender, &manager.states_synced()).await;
            StatusCode::OK
        }
        (&Method::POST, ["v1", "pods", uid, "reprocess"]) => {
            manager.reprocess(uid);
            StatusCode::ACCEPTED
        }
        _ => StatusCode::NOT_FOUND,
    };
    let mut response = Response::new(StreamBody::new(ReceiverStream::new(receiver)));
    *response.status_mut() = status;
    Ok(response)
}

/// What is known of a pod's volumes. A pod that is gone from the API may still have some.
async fn volumes(manager: &VolumeManager, uid: &str, sender: &Sender) -> StatusCode {
    let (mounted, possibly) = (manager.mounted_volumes(uid), manager.possibly_mounted_volumes(uid));
    let missing = match manager.missing(uid) {
        Ok(missing) => missing,
        Err(error @ Error::FindPod { .. }) if possibly.is_empty() => {
            say(sender, &serde_json::json!({ "error": error.to_string() })).await;
            return StatusCode::NOT_FOUND;
        }
        Err(_) => Vec::new(),
    };
    let body = serde_json::json!({
        "mounted": mounted, "possiblyMounted": possibly, "missing": missing,
        "supplementalGroups": manager.extra_supplemental_groups(uid),
    });
    say(sender, &body).await;
    StatusCode::OK
}

/// Waits for a pod's volumes to come, or to go.
async fn waited(
    manager: &VolumeManager,
    uid: &str,
    is_mount: bool,
    query: Option<&str>,
    sender: &Sender,
) -> StatusCode {
    let Some(patience) = patience(query) else {
        say(sender, &serde_json::json!({ "error": "seconds must be a whole number" })).await;
        return StatusCode::BAD_REQUEST;
    };
    let result = match is_mount {
        true => manager.wait_for_attach_and_mount(uid, patience).await,
        false => manager.wait_for_unmount(uid, patience).await,
    };
    match &result {
        Ok(()) if is_mount => volumes(manager, uid, sender).await,
        Ok(()) => StatusCode::OK,
        Err(error) => {
            let missing = if let Error::Missing(missing) = error { &missing[..] } else { &[] };
            say(sender, &serde_json::json!({ "error": error.to_string(), "missing": missing })).await;
            status_of(error)
        }
    }
}

/// How a wait ended that did not end well: what will never be is told from what is not yet.
fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::FindPod { .. } => StatusCode::NOT_FOUND,
        Error::Missing(missing) if missing.iter().any(|missing| missing.is_final) => StatusCode::CONFLICT,
        Error::Over { .. } => StatusCode::CONFLICT,
        Error::Missing(_) | Error::Mounted { .. } => StatusCode::GATEWAY_TIMEOUT,
        Error::Prepare { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// How long a request wants to wait: `seconds`, or as long as the kubelet does.
fn patience(query: Option<&str>) -> Option<Duration> {
    let pairs = query.into_iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('='));
    let seconds = pairs.into_iter().find(|(name, _)| *name == "seconds");
    seconds.map_or(Some(PATIENCE), |(_, seconds)| seconds.parse().ok().map(Duration::from_secs))
}

/// The path with its `%2F` and the like as what they stand for; what is no such escape stays as it is.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn say(sender: &Sender, line: &impl Serialize) -> bool {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    sender.send(Ok(Frame::data(text.into()))).await.is_ok()
}

/// Says what the pod waits for and where its volumes are, and lets go of it when nobody listens any more.
async fn hold(manager: Arc<VolumeManager>, held: Hold, sender: Sender) {
    let mut uid = None;
    tokio::select! {
        biased;
        () = sender.closed() => {}
        () = follow(&manager, held.pod(), &sender, &mut uid) => {}
    }
    let key = held.pod().clone();
    drop(held);
    if let Err(error) = let_go(&manager, &key, uid.as_deref()).await {
        tracing::warn!(pod = %key, %error, "who held the pod has let go of it, but it cannot be deleted");
    }
}

/// Deletes a pod that nobody holds any more, where deciding on it does not do that.
async fn let_go(manager: &VolumeManager, key: &Key, uid: Option<&str>) -> Result<(), stowage_runtime::api::Error> {
    let api = &manager.host.context.api;
    let delete = async |meta: &Meta| api.delete(&manager.pods, &Target::any_version(meta), Deletion::default()).await;
    let is_run = |meta: &Meta| meta.labels.contains_key(RUN_LABEL);
    match manager.pods.get(key) {
        // A namesake that was made meanwhile is somebody else's.
        Some(pod) if pod.meta.is_deleting() || uid.is_some_and(|uid| uid != pod.meta.uid) => Ok(()),
        // One with the label is deleted by the decision on it; any other is not there because it is held.
        Some(_) => Ok(()),
        // It was here and is gone.
        None if uid.is_some() => Ok(()),
        // It may have been made and not have come to a node yet. One that is still to be made is deleted when it comes.
        None => match api.get::<Pod>(key).await? {
            Some(pod) if is_run(&pod.meta) && !pod.is_scheduled() && !pod.meta.is_deleting() => delete(&pod.meta).await,
            _ => Ok(()),
        },
    }
}

/// Ends when the pod cannot have its volumes, or is about to lose them.
async fn follow(manager: &VolumeManager, key: &Key, sender: &Sender, held: &mut Option<String>) {
    let pod = manager.wait_for_pod(key).await;
    let uid = pod.meta.uid.clone();
    *held = Some(uid.clone());
    let mut said = Vec::new();
    let mut changes = manager.state.changes();
    loop {
        changes.borrow_and_update();
        match manager.missing(&uid) {
            Ok(missing) if missing.is_empty() => break,
            Ok(missing) if missing.iter().any(|missing| missing.is_final) => {
                say(sender, &Line::Failed(causes(&missing))).await;
                return;
            }
            Ok(missing) if missing != said => {
                said.clone_from(&missing);
                say(sender, &Line::Waiting(missing)).await;
            }
            Ok(_) => {}
            Err(error) => {
                say(sender, &Line::Failed(error.to_string())).await;
                return;
            }
        }
        // The sender lives in the state, so the wait cannot fail.
        let _ = changes.changed().await;
    }
    let line = match manager.container_mounts(&uid).await {
        Ok(mounts) => {
            let supplemental_groups = manager.extra_supplemental_groups(&uid);
            Line::Ready { uid: uid.clone(), mounts, supplemental_groups }
        }
        Err(error) => Line::Failed(error.to_string()),
    };
    let is_ready = matches!(line, Line::Ready { .. });
    say(sender, &line).await;
    // The end of the answer tells who holds the pod that its volumes go.
    while is_ready && manager.is_live(&uid) {
        changes.borrow_and_update();
        let _ = changes.changed().await;
    }
}
