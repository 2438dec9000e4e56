//! Between a driver and whoever calls it: calls go through, and the answers to some of them can be kept back, so that a
//! call is in flight for as long as a test wants.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api::PATIENCE;

/// Listens where a driver would.
pub struct Relay {
    kept: watch::Sender<Kept>,
    _serving: JoinSet<()>,
}

/// The calls, by name, of which one answer each is to be kept back.
type Kept = BTreeMap<&'static str, Answer>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Here,
}

impl Relay {
    /// Passes what comes to `socket` on to `driver`, which may come and go.
    pub fn listen(socket: &Path, driver: PathBuf) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).context("cannot open the socket")?;
        let kept = watch::Sender::new(Kept::new());
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, driver, kept.clone()));
        Ok(Self { kept, _serving: serving })
    }

    /// From now on the next answer to each of these calls is kept back.
    pub fn keep(&self, calls: &[&'static str]) {
        self.kept.send_replace(calls.iter().map(|call| (*call, Answer::Awaited)).collect());
    }

    /// Waits until the driver has answered this call and its caller has not heard it.
    pub async fn in_flight(&self, call: &'static str) -> anyhow::Result<()> {
        let mut kept = self.kept.subscribe();
        let here = kept.wait_for(|kept| kept.get(call) == Some(&Answer::Here));
        let here = timeout(PATIENCE, here).await;
        here.with_context(|| format!("waited {} s in vain for {call} to be in flight", PATIENCE.as_secs()))?
            .context("the relay is gone")
            .map(drop)
    }

    /// Hands out what was kept back, to callers that still wait.
    pub fn release(&self) {
        self.kept.send_replace(Kept::new());
    }
}

async fn accept(listener: UnixListener, driver: PathBuf, kept: watch::Sender<Kept>) {
    let mut connections = JoinSet::new();
    while let Ok((caller, _)) = listener.accept().await {
        connections.spawn(serve(caller, driver.clone(), kept.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// One caller, until it or the driver goes: each sees the other's end as it would without us.
async fn serve(caller: UnixStream, driver: PathBuf, kept: watch::Sender<Kept>) {
    let Ok(driver) = UnixStream::connect(driver).await else { return };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(driver)).await;
    let Ok((sender, driver)) = handshake else { return };
    let service = service_fn(move |request| pass_on(sender.clone(), request, kept.clone()));
    let caller =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(caller), service);
    tokio::select! {
        biased;
        _ = driver => {}
        _ = caller => {}
    }
}

async fn pass_on(
    mut driver: SendRequest<Incoming>,
    request: Request<Incoming>,
    kept: watch::Sender<Kept>,
) -> hyper::Result<Response<Incoming>> {
    let call = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let answer = driver.send_request(request).await?;
    let mut ours = false;
    kept.send_if_modified(|kept| {
        if let Some(state) = kept.get_mut(call.as_str())
            && *state == Answer::Awaited
        {
            *state = Answer::Here;
            ours = true;
        }
        ours
    });
    if ours {
        // The sender is ours too, so there is always one.
        _ = kept.subscribe().wait_for(|kept| !kept.contains_key(call.as_str())).await;
    }
    Ok(answer)
}
