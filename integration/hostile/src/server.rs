//! An API server to attack: the real binary, with its data in a directory that outlives its restarts.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use local_suite::process::Process;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// How long a start or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// A running API server with an administrator's client.
pub struct Server {
    /// An administrator's client, which tries nothing again.
    pub client: Client,
    /// Where it listens, with TLS.
    pub address: SocketAddr,
    process: Process,
    arguments: Vec<String>,
    home: tempfile::TempDir,
}

/// What the server said.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub code: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body: JSON, or what came instead as a string.
    pub body: Value,
}

impl Server {
    /// Starts a server with RBAC, durable, and these further arguments.
    pub async fn start(more: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), more).await
    }

    /// The same in this directory; its data is in `data`.
    pub async fn start_in(home: tempfile::TempDir, more: &[&str]) -> Self {
        Self::start_whole(home, more, None).await
    }

    /// The same with another standard error.
    pub async fn start_with_errors(errors: File) -> Self {
        Self::start_whole(tempfile::tempdir().unwrap(), &[], Some(errors)).await
    }

    async fn start_whole(home: tempfile::TempDir, more: &[&str], errors: Option<File>) -> Self {
        let mut arguments = vec![
            // The server itself takes a free port: one that was looked for before may be another's by then.
            "--listen=127.0.0.1:0".to_owned(),
            format!("--data-dir={}", home.path().join("data").display()),
            format!("--kubeconfig-out={}", home.path().join("kubeconfig").display()),
            "--authorization-mode=RBAC".to_owned(),
        ];
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let process = Process::start_with("apiserver", "apiserver", &arguments, home.path(), errors).unwrap();
        let (client, address) = connect(&home.path().join("kubeconfig")).await;
        let server = Self { client, address, process, arguments, home };
        server.answers().await;
        server
    }

    /// Ends it as a service manager would and starts it again on the same data.
    pub async fn restart(&mut self) {
        self.process.signal(Signal::SIGTERM).unwrap();
        self.process.ended(PATIENCE).await.unwrap();
        // It comes back at another port, and says so.
        std::fs::remove_file(self.kubeconfig()).unwrap();
        self.process = Process::start("apiserver", "apiserver", &self.arguments, self.home.path()).unwrap();
        (self.client, self.address) = connect(&self.kubeconfig()).await;
        self.answers().await;
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    /// The process alone, to be stopped.
    pub fn into_process(self) -> Process {
        self.process
    }

    /// The process, to look at or to send signals to.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until it answers at all.
    async fn answers(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = self.client.send(Request::get("/readyz").body(Body::empty()).unwrap()).await;
            if asked.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            assert!(Instant::now() < deadline, "no answer: {}", self.process.said().unwrap());
            sleep(LOOK).await;
        }
    }

    /// A request with a JSON body, or without one.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send(method, path, &[("content-type", "application/json")], body).await
    }

    /// A patch of this type (`merge`, `json`, `strategic-merge`).
    pub async fn patch(&self, kind: &str, path: &str, patch: Value) -> Answer {
        let content_type = format!("application/{kind}-patch+json");
        self.send("PATCH", path, &[("content-type", &content_type)], patch.to_string().into_bytes()).await
    }

    /// A request with any headers and body.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let sent = self.client.send(request.body(Body::from(body)).unwrap()).await;
        let answer = sent.unwrap_or_else(|error| panic!("{method} {path}: {error}; {}", self.process.said().unwrap()));
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The most memory it ever had resident, in MiB.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }
}

async fn connect(kubeconfig: &Path) -> (Client, SocketAddr) {
    let deadline = Instant::now() + PATIENCE;
    let file = loop {
        match Kubeconfig::read_from(kubeconfig) {
            Ok(file) => break file,
            Err(error) => assert!(Instant::now() < deadline, "no kubeconfig: {error}"),
        }
        sleep(LOOK).await;
    };
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    // What the server says is to be seen, not tried again.
    config.default_retry = false;
    let address = config.cluster_url.authority().unwrap().as_str().parse().unwrap();
    (Client::try_from(config).unwrap(), address)
}
