//! What is between the network and the API: who comes in, and how many at a time.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::{Access, Authorization, Options, bind_with};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use stowage_apiserver::{Front, Identity, Limits, Server, Tls, User};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A running server; its clients are made from its kubeconfig.
struct Running {
    config: Config,
    token: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), apiserver::Error>>,
}

impl Running {
    async fn start(home: &Path, access: Access) -> Self {
        let options =
            Options { listen: "127.0.0.1:0".parse().unwrap(), data_dir: Some(home.join("data")), kubeconfig_out: None };
        let bound = bind_with(options, access).await.unwrap();
        let token = bound.kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
        let token = token.unwrap().to_owned();
        let kubeconfig = Kubeconfig::from_yaml(&bound.kubeconfig).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        // What the server says is to be seen, not tried again.
        config.default_retry = false;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(bound.run(async {
            let _either_way = stopped.await;
        }));
        Self { config, token, stop, task }
    }

    /// A bare connection.
    async fn connect(&self) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        for certificate in self.config.root_cert.iter().flatten() {
            roots.add(certificate.clone().into()).unwrap();
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = self.config.cluster_url.authority().unwrap().as_str();
        let stream = TcpStream::connect(address).await.unwrap();
        TlsConnector::from(Arc::new(tls)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    fn admin(&self) -> Client {
        Client::try_from(self.config.clone()).unwrap()
    }

    fn client(&self, auth_info: AuthInfo) -> Client {
        let mut config = self.config.clone();
        config.auth_info = auth_info;
        Client::try_from(config).unwrap()
    }

    fn bearer(&self, token: &str) -> Client {
        self.client(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() })
    }

    async fn stop(self) {
        let _asked = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

async fn send(client: &Client, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
    let (code, body) = whole(client.send(request).await.unwrap()).await;
    (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn whole(response: Response<Body>) -> (u16, Bytes) {
    let code = response.status().as_u16();
    (code, response.into_body().collect().await.unwrap().to_bytes())
}

async fn who(client: &Client) -> Value {
    let (_, answer) = send(client, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    answer["status"]["userInfo"].clone()
}

/// Base64, as kubeconfigs hold certificates.
fn encoded(pem: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(pem)
}

#[tokio::test]
async fn a_client_certificate_of_the_authority_says_who_comes() {
    let home = tempfile::tempdir().unwrap();
    let server = Running::start(home.path(), Access::default()).await;
    let read = |name: &str| std::fs::read_to_string(home.path().join("data").join(name)).unwrap();
    let with = |tls: &Tls| {
        let (certificate, key) = tls.client_certificate(&User::new("alice", ["dev"])).unwrap();
        AuthInfo {
            client_certificate_data: Some(encoded(&certificate)),
            client_key_data: Some(encoded(&key).into()),
            ..AuthInfo::default()
        }
    };
    let authority = Tls::from_authority(&read("ca.crt"), &read("ca.key"), &[]).unwrap();
    let alice = who(&server.client(with(&authority))).await;
    assert_eq!(alice, json!({"username": "alice", "groups": ["dev", "system:authenticated"]}));
    let stranger = server.client(with(&Tls::generate(&[]).unwrap()));
    let request = Request::builder().uri(MAPS).body(Body::empty()).unwrap();
    assert!(stranger.send(request).await.is_err(), "a certificate of another authority ends the connection");
    server.stop().await;
}

#[tokio::test]
async fn static_tokens_name_users_and_nobody_may_only_ask_about_health() {
    let home = tempfile::tempdir().unwrap();
    let tokens = home.path().join("tokens");
    std::fs::write(&tokens, "secret,bob,7,\"ops,night\"\n").unwrap();
    let access = Access { token_auth_file: Some(tokens), authorization: Authorization::Rbac, ..Access::default() };
    let server = Running::start(home.path(), access).await;
    let bob = who(&server.bearer("secret")).await;
    assert_eq!(bob, json!({"username": "bob", "uid": "7", "groups": ["ops", "night", "system:authenticated"]}));
    assert_eq!(send(&server.bearer("secret"), "GET", MAPS, Value::Null).await.0, 403);
    assert_eq!(send(&server.bearer("wrong"), "GET", MAPS, Value::Null).await.0, 401);
    let nobody = server.client(AuthInfo::default());
    assert_eq!(send(&nobody, "GET", "/readyz", Value::Null).await.0, 200);
    for path in [MAPS, "/metrics", "/version", "/nowhere"] {
        assert_eq!(send(&nobody, "GET", path, Value::Null).await.0, 401, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_service_accounts_token_outlives_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let server = Running::start(home.path(), Access::default()).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    send(&server.admin(), "POST", accounts, json!({"metadata": {"name": "robot"}})).await;
    let (code, made) = send(&server.admin(), "POST", &format!("{accounts}/robot/token"), json!({})).await;
    assert_eq!(code, 201, "{made}");
    let token = made["status"]["token"].as_str().unwrap();
    assert_eq!(who(&server.bearer(token)).await["username"], "system:serviceaccount:default:robot");
    server.stop().await;
    let server = Running::start(home.path(), Access::default()).await;
    assert_eq!(who(&server.bearer(token)).await["username"], "system:serviceaccount:default:robot");
    server.stop().await;
}

#[tokio::test]
async fn too_many_requests_at_a_time_are_sent_away_and_told_when_to_come_back() {
    let home = tempfile::tempdir().unwrap();
    let limits = Limits { mutating: 0, ..Limits::default() };
    let server = Running::start(home.path(), Access { limits, ..Access::default() }).await;
    let client = server.admin();
    let request = Request::post(format!("{MAPS}?dryRun=All")).body(Body::from(b"{}".to_vec())).unwrap();
    let refused = client.send(request).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    let (_, status) = whole(refused).await;
    let status: Value = serde_json::from_slice(&status).unwrap();
    assert_eq!((&status["reason"], &status["details"]["retryAfterSeconds"]), (&json!("TooManyRequests"), &json!(1)));
    assert_eq!(send(&client, "GET", MAPS, Value::Null).await.0, 200, "reads have places of their own");
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=4");
    assert_eq!(send(&client, "GET", &watch, Value::Null).await.0, 200, "and watches need none");
    server.stop().await;
}

#[tokio::test]
async fn a_request_takes_a_place_only_when_its_body_is_there() {
    let home = tempfile::tempdir().unwrap();
    let access = Access { limits: Limits { reading: 1, mutating: 1, ..Limits::default() }, ..Access::default() };
    let server = Running::start(home.path(), access).await;
    let body = br#"{"metadata":{"name":"late"}}"#;
    let mut slow = server.connect().await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        server.token,
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body when it begins to read it.
    let mut asked = [0; 25];
    slow.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    slow.write_all(&body[..1]).await.unwrap();
    slow.flush().await.unwrap();
    let (code, made) = send(&server.admin(), "POST", MAPS, json!({"metadata": {"name": "early"}})).await;
    assert_eq!(code, 201, "{made}");
    slow.write_all(&body[1..]).await.unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 201");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let home = tempfile::tempdir().unwrap();
    let limits = Limits { request_timeout: Duration::from_millis(200), ..Limits::default() };
    let server = Running::start(home.path(), Access { limits, ..Access::default() }).await;
    let mut slow = server.connect().await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 9\r\n\r\n{{",
        server.token
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 504");
    server.stop().await;
}

#[tokio::test]
async fn who_does_not_say_who_they_are_is_let_go() {
    let home = tempfile::tempdir().unwrap();
    // Who is known has as long to say so, also on a busy machine.
    let limits = Limits { header_timeout: Duration::from_secs(3), ..Limits::default() };
    let server = Running::start(home.path(), Access { limits, ..Access::default() }).await;
    let mut half = server.connect().await;
    half.write_all(b"GET /readyz HTTP/1.1\r\nhost: loc").await.unwrap();
    half.flush().await.unwrap();
    let address = server.config.cluster_url.authority().unwrap().as_str().to_owned();
    let mut silent = TcpStream::connect(address).await.unwrap();
    for ended in [half.read(&mut [0; 64]).await, silent.read(&mut [0; 64]).await] {
        assert!(ended.as_ref().is_err() || matches!(ended, Ok(0)), "{ended:?}");
    }
    // One who is known stays: a watch outlasts the time, and after it the connection is as good as before.
    let mut known = server.connect().await;
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n", server.token)
    };
    for (path, end) in [(format!("{MAPS}?watch=1&timeoutSeconds=4"), "\r\n0\r\n\r\n"), (MAPS.to_owned(), "]}")] {
        known.write_all(get(&path).as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            assert!(known.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off_and_can_begin_again() {
    // Few events are kept, and large ones: soon more than buffers on the way hold.
    const KEPT: usize = 64;
    const WRITTEN: usize = 400;
    let settings = stowage_apiserver::Options { window: KEPT, ..stowage_apiserver::Options::system() };
    let server = Server::in_memory(settings);
    let identity = Identity::generate(&[]).unwrap();
    let front = Front::new(identity.tls(), identity.credentials(), Limits::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&identity.kubeconfig(listener.local_addr().unwrap())).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        async move { server.serve(listener, front, std::future::pending()).await }
    });
    let client = Client::try_from(config).unwrap();
    let inside = Client::new(server.service(), "default");
    let watch = Request::get(format!("{MAPS}?watch=1&resourceVersion=0")).body(Body::empty()).unwrap();
    let watch = client.send(watch).await.unwrap();
    let filler = "x".repeat(100_000);
    send(&inside, "POST", MAPS, json!({"metadata": {"name": "m"}})).await;
    for number in 0..WRITTEN {
        let body = json!({"metadata": {"name": "m"}, "data": {"n": number.to_string(), "x": filler}});
        assert_eq!(send(&inside, "PUT", &format!("{MAPS}/m"), body).await.0, 200);
    }
    let all = tokio::time::timeout(Duration::from_secs(60), watch.into_body().collect()).await;
    let all = all.expect("the watch ends").unwrap().to_bytes();
    let events: Vec<Value> = serde_json::Deserializer::from_slice(&all).into_iter().map(Result::unwrap).collect();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(events.len() < WRITTEN, "nobody kept all of them for it");
    let (_, list) = send(&client, "GET", MAPS, Value::Null).await;
    assert_eq!(list["items"][0]["data"]["n"], (WRITTEN - 1).to_string());
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={version}");
    assert_eq!(send(&client, "GET", &path, Value::Null).await.0, 200);
    serving.abort();
}
