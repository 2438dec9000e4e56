//! What stands between the service and the world, and does as the test wishes.

use std::io;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use volume_manager::plugin_watcher::{PluginEvent, PluginSource};

use crate::driver::REGISTRATION;
use crate::stage::within;

/// Registration sockets as the test wishes.
#[derive(Clone, Default)]
pub struct Sockets(Arc<Mutex<SocketState>>);

#[derive(Default)]
struct SocketState {
    plugged: bool,
    watchers: Vec<mpsc::UnboundedSender<PluginEvent>>,
}

impl Sockets {
    pub fn plug(&self, plugged: bool) {
        let mut state = self.0.lock().unwrap();
        state.plugged = plugged;
        let event = if plugged { PluginEvent::Appeared } else { PluginEvent::Vanished };
        state.watchers.retain(|watcher| watcher.send(event(REGISTRATION.into())).is_ok());
    }

    /// Ends what is told about them.
    pub fn unwatch(&self) {
        self.0.lock().unwrap().watchers.clear();
    }
}

impl PluginSource for Sockets {
    fn watch(&self) -> io::Result<BoxStream<'static, io::Result<PluginEvent>>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock().unwrap();
        if state.plugged {
            sender.send(PluginEvent::Appeared(REGISTRATION.into())).unwrap();
        }
        state.watchers.push(sender);
        Ok(futures::stream::unfold(receiver, |mut receiver| async { Some((Ok(receiver.recv().await?), receiver)) })
            .boxed())
    }
}

/// A server that refuses one write of the service, when the test says so.
#[derive(Clone, Default)]
pub struct Refusal(Arc<RefusalState>);

#[derive(Default)]
struct RefusalState {
    /// What the write to be refused contains.
    of: Mutex<Option<&'static str>>,
    /// What the writes to be refused at once contain, and how many of them.
    often: Mutex<(&'static str, usize)>,
    reached: Notify,
    goes_on: Notify,
    /// What was read by another way than a watch.
    reads: Mutex<Vec<String>>,
    /// Paths that are not answered until the test says so.
    silent: Mutex<Option<&'static str>>,
}

impl Refusal {
    /// Refuses the next write that contains this, once it is told to go on.
    pub fn of(&self, text: &'static str) {
        *self.0.of.lock().unwrap() = Some(text);
    }

    /// Refuses as many writes that contain this, each at once.
    pub fn of_many(&self, text: &'static str, times: usize) {
        *self.0.often.lock().unwrap() = (text, times);
    }

    /// Waits until the service has sent the write.
    pub async fn reached(&self) {
        within(self.0.reached.notified()).await;
    }

    /// Answers nothing at this path until it is told to go on.
    pub fn keep_silent_about(&self, path: &'static str) {
        *self.0.silent.lock().unwrap() = Some(path);
    }

    /// What the service has read so far by another way than a watch.
    pub fn reads(&self) -> Vec<String> {
        self.0.reads.lock().unwrap().clone()
    }

    pub fn go_on(&self) {
        self.0.goes_on.notify_one();
    }

    pub fn before(&self, client: kube::Client) -> kube::Client {
        let refusal = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (client, refusal) = (client.clone(), refusal.clone());
            async move {
                let (parts, body) = request.into_parts();
                let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch="));
                if parts.method == http::Method::GET && !is_watch {
                    refusal.0.reads.lock().unwrap().push(parts.uri.to_string());
                }
                let is_silent = refusal.0.silent.lock().unwrap().is_some_and(|path| parts.uri.path() == path);
                if is_silent {
                    refusal.0.reached.notify_one();
                    refusal.0.goes_on.notified().await;
                    *refusal.0.silent.lock().unwrap() = None;
                }
                let body = body.collect_bytes().await?;
                let text = String::from_utf8_lossy(&body);
                let refused = refusal.0.of.lock().unwrap().take_if(|of| text.contains(*of)).is_some();
                let refused_at_once = {
                    let mut often = refusal.0.often.lock().unwrap();
                    let is_refused = often.1 > 0 && text.contains(often.0);
                    often.1 -= usize::from(is_refused);
                    is_refused
                };
                if refused {
                    refusal.0.reached.notify_one();
                    refusal.0.goes_on.notified().await;
                }
                if refused || refused_at_once {
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                        "reason": "Forbidden", "message": "not now",
                    });
                    let body = kube::client::Body::from(status.to_string().into_bytes());
                    return Ok::<_, tower::BoxError>(http::Response::builder().status(403).body(body).unwrap());
                }
                Ok(client.send(http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()))).await?)
            }
        });
        kube::Client::new(tower::ServiceExt::boxed_clone(service), "default")
    }
}
