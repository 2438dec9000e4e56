//! The volume manager's socket: HTTP for programs of this machine's administrator, and for nobody else.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

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

use stowage_model::object::{Key, Meta};
use stowage_model::pod::Pod;
use stowage_runtime::api::{Deletion, Target};

use super::{ContainerMount, Hold, Missing, RUN_LABEL, VolumeManager};

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

const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

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
    let path = request.uri().path().to_owned();
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
        (&Method::GET, ["v1", "pods", uid, "volumes"]) => {
            let mounted = manager.mounted_volumes(uid);
            let possibly = manager.possibly_mounted_volumes(uid);
            let groups = manager.extra_supplemental_groups(uid);
            let body = serde_json::json!({
                "mounted": mounted, "possiblyMounted": possibly, "supplementalGroups": groups,
                "missing": manager.missing(uid).unwrap_or_default(),
            });
            say(&sender, &body).await;
            StatusCode::OK
        }
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
        Some(pod) if is_run(&pod.meta) => Ok(()),
        Some(pod) => delete(&pod.meta).await,
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
                let causes: Vec<&str> = missing.iter().map(|missing| missing.cause.as_str()).collect();
                say(sender, &Line::Failed(causes.join("; "))).await;
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
