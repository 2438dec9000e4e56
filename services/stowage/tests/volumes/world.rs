//! A stack of one node, and what a user of it does.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::FutureExt;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use stowage::clean;
use stowage::root::Root;
use stowage::stack::{Options, Stack};
use stowage_model::event::EventType;
use stowage_model::object::{Key, kinds};
use stowage_model::phase::PodPhase;
use stowage_model::{Event, Kind, Pod};
use stowage_mount::Digest;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{Scope, feed};

pub const NODE: &str = "node-1";

/// Longer than any step takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

const KINDS: [Kind; 6] =
    [kinds::STORAGE_CLASS, kinds::VOLUME, kinds::CLAIM, kinds::CONFIG_MAP, kinds::SECRET, kinds::POD];

pub struct World {
    pub root: PathBuf,
    pub stack: Stack,
    pods: Cache<Pod>,
    events: Cache<Event>,
}

/// Runs a test on a stack that is stopped in the end whatever happens, and leaves nothing.
pub fn on_a_stack(test: impl AsyncFnOnce(&World) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").try_exists().unwrap() {
        eprintln!("skipped: volumes are mounted, which needs root and loop devices");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        // Sockets have short names: the directory does too.
        let dir = tempfile::Builder::new().prefix("stw-").tempdir_in("/tmp").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::start(dir.path()).await;
            let told = AssertUnwindSafe(test(&world)).catch_unwind().await;
            let root = world.root.clone();
            let stopped = world.stack.stop().await;
            if let Err(panic) = told {
                std::panic::resume_unwind(panic);
            }
            stopped.unwrap();
            clean::nothing_left(&root).await.unwrap();
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl World {
    async fn start(dir: &Path) -> Self {
        let root = Root::take(dir).unwrap();
        let path = root.path().to_owned();
        let options = Options {
            listen: ([127, 0, 0, 1], 0).into(),
            kubeconfig_out: None,
            nodes: vec![NODE.to_owned()],
            csi_endpoint: None,
            durable: false,
            remembers_calls: false,
        };
        let stack = Stack::start(root, options).await.unwrap();
        let world = Self { root: path, stack, pods: Cache::new(), events: Cache::new() };
        let api = &world.stack.api;
        tokio::spawn(feed(api.clone(), world.pods.clone(), Scope::all(), Random::from_os()));
        tokio::spawn(feed(api.clone(), world.events.clone(), Scope::all(), Random::from_os()));
        world
    }

    /// The objects of an example, with the paths of this stack.
    pub fn read(&self, example: &Path) -> Vec<Value> {
        let text = fs::read_to_string(example).unwrap().replace("/var/lib/stowage", self.root.to_str().unwrap());
        serde_saphyr::from_multiple(&text).unwrap()
    }

    pub async fn apply(&self, objects: &[Value]) {
        for object in objects {
            self.stack.api.create_raw(kind_of(object), object.clone()).await.unwrap();
        }
    }

    /// Deletes in the other direction, and waits for the pods to be gone.
    pub async fn delete(&self, objects: &[Value]) {
        for object in objects.iter().rev() {
            let (kind, key) = (kind_of(object), key_of(object));
            let path = format!("{}/{}", kind.collection_path(&key.namespace), key.name);
            let body = json!({ "gracePeriodSeconds": 1 }).to_string().into_bytes();
            let request = http::Request::delete(path).header("content-type", "application/json").body(body).unwrap();
            let _: Value = self.stack.api.client().request(request).await.unwrap();
            if kind == kinds::POD {
                self.gone(&key).await;
            }
        }
    }

    /// Waits for a pod to be gone.
    pub async fn gone(&self, pod: &Key) {
        let gone = self.until(|| self.pods.get(pod).is_none());
        tokio::time::timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("pod {pod} does not go"));
    }

    /// The pods there are.
    pub fn pods(&self) -> Vec<Key> {
        self.pods.list().iter().map(|pod| pod.meta.key()).collect()
    }

    /// The driver of the stack.
    pub fn driver(&self) -> &str {
        &self.stack.driver
    }

    /// Waits for something that pods or events show.
    pub async fn until(&self, holds: impl Fn() -> bool) {
        while !holds() {
            let (pods, events) = (self.pods.position() + 1, self.events.position() + 1);
            tokio::select! {
                biased;
                () = self.pods.reached(pods) => {}
                () = self.events.reached(events) => {}
            }
        }
    }

    fn told_of(&self, pod: &str) -> Vec<String> {
        let about = format!("{pod}.");
        let events = self.events.list();
        events.iter().filter(|event| event.meta.name.starts_with(&about)).map(|event| event.message.clone()).collect()
    }

    /// Waits for a warning about an object.
    pub async fn is_warned(&self, name: &str) {
        let about = format!("{name}.");
        let told = || {
            let events = self.events.list();
            events.iter().any(|event| event.meta.name.starts_with(&about) && event.event_type == EventType::Warning)
        };
        let told = tokio::time::timeout(PATIENCE, self.until(told)).await;
        told.unwrap_or_else(|_| panic!("{name} was not warned: {:?}", self.told_of(name)));
    }

    /// Waits for a pod to have a node.
    pub async fn placed(&self, pod: &str) {
        let key = Key::namespaced("default", pod);
        let placed = self.until(|| self.pods.get(&key).is_some_and(|pod| pod.is_scheduled()));
        let placed = tokio::time::timeout(PATIENCE, placed).await;
        placed.unwrap_or_else(|_| panic!("pod {pod} has no node: {:?}", self.told_of(pod)));
    }

    /// Waits for a pod to run and returns its directory.
    pub async fn runs(&self, pod: &str) -> PathBuf {
        let key = Key::namespaced("default", pod);
        let running = || self.pods.get(&key).is_some_and(|pod| pod.status.phase == PodPhase::Running);
        let runs = tokio::time::timeout(PATIENCE, self.until(running)).await;
        runs.unwrap_or_else(|_| panic!("pod {pod} does not run: {:?}", self.told_of(pod)));
        let uid = self.pods.get(&key).unwrap().meta.uid.clone();
        self.root.join("nodes").join(NODE).join("pods").join(uid)
    }

    /// Waits for an event about a pod that says this; the pod does not run.
    pub async fn is_refused(&self, pod: &str, says: &str) {
        let told = || self.told_of(pod).iter().any(|message| message.contains(says));
        let refused = tokio::time::timeout(PATIENCE, self.until(told)).await;
        refused.unwrap_or_else(|_| panic!("pod {pod} was not told {says:?}: {:?}", self.told_of(pod)));
        let found = self.pods.get(&Key::namespaced("default", pod)).unwrap();
        assert_ne!(found.status.phase, PodPhase::Running, "{pod}");
    }

    /// What the examples say has to be there.
    pub fn prepare(&self) {
        fs::create_dir_all(self.root.join("disk-1")).unwrap();
        fs::write(self.root.join("disk-1/kept"), "kept").unwrap();
        let driver = self.root.join("volume-plugins/example~memory");
        fs::create_dir_all(&driver).unwrap();
        fs::copy(examples().join("volumes/flex-driver.sh"), driver.join(".memory")).unwrap();
        fs::rename(driver.join(".memory"), driver.join("memory")).unwrap();
        self.write_layout(&self.root.join("images/app"));
    }

    /// An image of one layer with one file, as other tools write it.
    fn write_layout(&self, layout: &Path) {
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        let made = tempfile::tempdir().unwrap();
        fs::create_dir(made.path().join("sub")).unwrap();
        fs::write(made.path().join("sub/file"), "from an image").unwrap();
        let words = ["-czf", "-", "--owner=7", "--group=8", "--mode=u=rwX,go=rX", "sub"];
        let layer = Command::new("tar").args(words).current_dir(made.path()).output().unwrap();
        let blob = |bytes: &[u8], kind: &str| {
            let digest = Digest::of(bytes);
            fs::write(layout.join(digest.blob()), bytes).unwrap();
            json!({ "mediaType": kind, "digest": digest.to_string(), "size": bytes.len() })
        };
        let layer = blob(&layer.stdout, "application/vnd.oci.image.layer.v1.tar+gzip");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "layers": [layer] });
        let mut named = blob(manifest.to_string().as_bytes(), kind);
        named["annotations"] = json!({ "org.opencontainers.image.ref.name": "v1" });
        let index = json!({ "schemaVersion": 2, "manifests": [named] });
        fs::write(layout.join("index.json"), index.to_string()).unwrap();
    }
}

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn kind_of(object: &Value) -> Kind {
    let is = |kind: &&Kind| object["kind"] == kind.kind && object["apiVersion"].as_str() == Some(&kind.api_version());
    *KINDS.iter().find(is).unwrap_or_else(|| panic!("what is {object}?"))
}

fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    match text("namespace") {
        namespace if namespace.is_empty() => Key::cluster(text("name")),
        namespace => Key::namespaced(namespace, text("name")),
    }
}
