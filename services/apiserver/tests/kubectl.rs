//! The installed kubectl against the real server: TLS, tokens, discovery, and the verbs people type.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Stdio;

use apiserver::{Options, bind};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: local.csi.stowage.dev
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: busybox, volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
"#;

/// A running server with its data and kubeconfig in a directory that goes with it.
struct Running {
    home: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), apiserver::Error>>,
}

impl Running {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = serve(home.path(), stopped).await;
        Self { home, stop: Some(stop), task }
    }

    /// Stops the server and starts another on the same data.
    async fn restart(&mut self) {
        self.stop().await;
        let (stop, stopped) = oneshot::channel::<()>();
        self.stop = Some(stop);
        self.task = serve(self.home.path(), stopped).await;
    }

    async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.task).await.unwrap().unwrap();
    }

    async fn kubectl(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let mut child = Command::new("kubectl")
            .args(arguments)
            .env("KUBECONFIG", kubeconfig(self.home.path()))
            .env("HOME", self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Runs kubectl and returns what it printed.
    async fn works(&self, arguments: &str, input: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (ok, output) = self.kubectl(&arguments, input).await;
        assert!(ok, "kubectl {arguments:?}: {output}");
        output
    }

    async fn fails(&self, arguments: &str, input: &str) -> String {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (ok, output) = self.kubectl(&arguments, input).await;
        assert!(!ok, "kubectl {arguments:?} worked: {output}");
        output
    }
}

fn kubeconfig(home: &Path) -> PathBuf {
    home.join("kubeconfig")
}

async fn serve(home: &Path, stopped: oneshot::Receiver<()>) -> JoinHandle<Result<(), apiserver::Error>> {
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: Some(home.join("data")),
        kubeconfig_out: Some(kubeconfig(home)),
    };
    let bound = bind(options).await.unwrap();
    // `run` writes the same; written here so that no test has to wait for a file.
    std::fs::write(kubeconfig(home), &bound.kubeconfig).unwrap();
    tokio::spawn(bound.run(async {
        let _stopped = stopped.await;
    }))
}

fn kubectl_is_missing() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = !std::env::split_paths(&path).any(|directory| directory.join("kubectl").is_file());
    if missing {
        println!("skipped: there is no kubectl on PATH");
    }
    missing
}

#[tokio::test]
async fn kubectl_creates_shows_changes_waits_and_deletes() {
    if kubectl_is_missing() {
        return;
    }
    let mut server = Running::start().await;
    assert!(server.works("api-resources", "").await.contains("persistentvolumeclaims"));
    assert!(server.works("create -f -", OBJECTS).await.contains("pod/web created"));
    let claims = server.works("get pvc", "").await;
    assert!(claims.contains("STORAGECLASS") && claims.contains("Pending"), "{claims}");
    assert!(server.works("get sc", "").await.contains("fast (default)"));
    let described = server.works("describe pvc data", "").await;
    assert!(described.contains("Used By:       web"), "{described}");
    server.works("apply -f -", OBJECTS).await;
    let changed = OBJECTS.replace("image: busybox", "image: busybox:2");
    assert!(server.works("apply -f -", &changed).await.contains("pod/web configured"));
    let image = server.works("get pod web -o jsonpath={.spec.containers[0].image}", "").await;
    assert_eq!(image, "busybox:2");
    assert!(server.works("apply -f -", &changed).await.contains("pod/web unchanged"));
    server.works("label pvc data tier=gold", "").await;
    server.works("annotate pvc data note=x", "").await;
    assert!(server.works("get pvc -l tier=gold -o name", "").await.contains("persistentvolumeclaim/data"));
    server.works("wait --for=jsonpath={.status.phase}=Pending pvc/data --timeout=120s", "").await;

    server.restart().await;
    assert!(server.works("get pvc -l tier=gold -o name", "").await.contains("persistentvolumeclaim/data"));
    server.works("delete pod web", "").await;
    server.works("delete pvc data --wait=false", "").await;
    assert!(server.works("get pvc data", "").await.contains("Terminating"));
    server.works(r#"patch pvc data --type=json -p=[{"op":"remove","path":"/metadata/finalizers"}]"#, "").await;
    assert!(server.fails("get pvc data", "").await.contains("NotFound"));
    server.stop().await;
}

#[tokio::test]
async fn kubectl_is_told_what_is_wrong() {
    if kubectl_is_missing() {
        return;
    }
    let mut server = Running::start().await;
    let zero = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\n\
                spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 0}}}\n";
    let refused = server.fails("create -f -", zero).await;
    assert!(refused.contains("spec.resources[storage]: Invalid value: \"0\": must be greater than zero"), "{refused}");
    let unknown = zero.replace("storage: 0", "storage: 1Gi").replace("spec: {", "spec: {colour: red, ");
    assert!(server.fails("create -f -", &unknown).await.contains("unknown field \"spec.colour\""));
    assert!(server.fails("apply --server-side -f -", OBJECTS).await.contains("server-side apply"));
    let with_another_token =
        std::fs::read_to_string(kubeconfig(server.home.path())).unwrap().replace("token: ", "token: x");
    std::fs::write(kubeconfig(server.home.path()), with_another_token).unwrap();
    assert!(server.fails("get pods", "").await.contains("Unauthorized"));
    server.stop().await;
}
