//! The answer of a volume manager that holds a pod, line by line.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use stowage_model::object::Key;
use volume_manager::api::Line;

/// The socket of a node's volume manager, below the node's root.
pub const SOCKET: &str = "volume-manager.sock";

/// How long a volume manager may take to answer for the first time.
const START: Duration = Duration::from_secs(5);

/// Between two looks at one that does not answer yet.
const LOOK: Duration = Duration::from_millis(100);

/// A pod that is to come, held by every node that it may come to.
pub struct Holders(BTreeMap<String, Held>);

impl Holders {
    /// Asks the volume managers below the root, or that of one node, to hold the pod.
    pub async fn of(root: &Path, only: Option<&str>, pod: &Key) -> anyhow::Result<Self> {
        let nodes = match only {
            Some(node) => vec![node.to_owned()],
            None => names_in(&root.join("nodes"))?,
        };
        let folders: Vec<(String, PathBuf)> =
            nodes.into_iter().map(|node| (node.clone(), root.join("nodes").join(node))).collect();
        let deadline = Instant::now() + START;
        loop {
            let (mut held, mut refused) = (BTreeMap::new(), String::new());
            for (node, folder) in &folders {
                match Held::of(&folder.join(SOCKET), pod).await {
                    Ok(holds) => drop(held.insert(node.clone(), holds)),
                    // The pod does not go there.
                    Err(error) => refused = format!(": {error:#}"),
                }
            }
            if !held.is_empty() {
                return Ok(Self(held));
            }
            // A stack that has just been started may have its nodes and not their volume managers yet.
            if Instant::now() > deadline || !folders.iter().any(|(_, folder)| folder.is_dir()) {
                let root = root.display();
                bail!("no volume manager answers below --root {root}{refused}; start `stowage up --root {root}` first");
            }
            sleep(LOOK).await;
        }
    }

    /// The nodes that the pod may come to.
    pub fn nodes(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// The pod has come to this one; the others let go.
    pub fn keep(mut self, node: &str) -> anyhow::Result<Held> {
        self.0.remove(node).with_context(|| format!("the pod came to node {node}, which does not hold it"))
    }
}

fn names_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || {
        format!(
            "cannot list {}; is it below the --root of a running `stowage up`, and are you its user?",
            folder.display()
        )
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        names.extend(entry.with_context(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// A pod that is there for as long as this is.
pub struct Held {
    body: Incoming,
    text: Vec<u8>,
    lines: VecDeque<Line>,
    /// The connection; its end lets go of the pod.
    _connection: JoinSet<()>,
}

impl Held {
    /// Asks the volume manager behind the socket to hold the pod.
    pub async fn of(socket: &Path, pod: &Key) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("the volume manager does not answer at {}", socket.display()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let request = http::Request::get(format!("/v1/pods/{}/{}/hold", pod.namespace, pod.name))
            .header(http::header::HOST, "volume-manager")
            .body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await.context("the volume manager gave no answer")?;
        if !response.status().is_success() {
            bail!(
                "the volume manager at {} answered {}; look at the log of `stowage up`, or stop it and start it again",
                socket.display(),
                response.status()
            );
        }
        Ok(Self { body: response.into_body(), text: Vec::new(), lines: VecDeque::new(), _connection: tasks })
    }

    /// The next line; an answer that ends is an error.
    pub async fn next(&mut self) -> anyhow::Result<Line> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(line);
            }
            let frame = self.body.frame().await.context("the volume manager let go of the pod")??;
            self.text.extend_from_slice(frame.data_ref().map(|data| &data[..]).unwrap_or_default());
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                self.lines.push_back(serde_json::from_slice(&line).context("the volume manager's answer is odd")?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_root_without_a_stack_is_refused_with_the_way_out() {
        let root = tempfile::tempdir().unwrap();
        let pod = Key::namespaced("default", "p");
        let none = Holders::of(root.path(), Some("node-1"), &pod).await.err().unwrap().to_string();
        let way_out = format!("start `stowage up --root {}` first", root.path().display());
        assert!(none.contains("no volume manager answers below --root") && none.contains(&way_out), "{none}");
        let unlisted = Holders::of(root.path(), None, &pod).await.err().unwrap().to_string();
        assert!(unlisted.contains("cannot list") && unlisted.contains("`stowage up`"), "{unlisted}");
    }
}
