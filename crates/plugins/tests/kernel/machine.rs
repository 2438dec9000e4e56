//! One machine with an API server in memory, and what is asked of plugins on it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use stowage_apiserver::{Options, Server};
use stowage_model::attachment::VolumeAttachment;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::node_view::{NodePod, NodeVolume};
use stowage_model::object::{Key, Kind, Projection as _};
use stowage_mount::{Counting, LinuxMounter, MountTable, Stop};
use stowage_plugins::plugin::{IsSetUp, SetUp, TearDown, VolumePlugin};
use stowage_plugins::{
    CsiDrivers, Fault, Layout, RegisteredDriver, VolumeHost, VolumePluginManager, VolumeSpec, WatchedObjects, in_tree,
    translate,
};
use stowage_runtime::Context;
use stowage_runtime::tasks::Tasks;

pub const UID: &str = "0a1b";
pub const NODE: &str = "node-1";

/// Runs a test on a thread whose mounts nobody else sees; they vanish with the thread, whatever happens.
pub fn on_a_machine<F: Future<Output = ()>>(test: impl FnOnce(Machine) -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: mounts need root");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(Machine::new(dir.path().canonicalize().unwrap()).await).await });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub struct Machine {
    pub dir: PathBuf,
    pub root: PathBuf,
    pub context: Context,
    pub tasks: Tasks,
    pub plugins: VolumePluginManager,
}

struct NoDrivers;

impl CsiDrivers for NoDrivers {
    fn registered(&self, _: &str) -> Option<RegisteredDriver> {
        None
    }

    fn object(&self, _: &str) -> Option<Arc<CsiDriver>> {
        None
    }

    fn attachment(&self, _: &str) -> Option<Arc<VolumeAttachment>> {
        None
    }
}

impl Machine {
    async fn new(dir: PathBuf) -> Self {
        let server = Server::in_memory(Options::system());
        let client = kube::Client::new(server.service(), "default");
        let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "test");
        let root = dir.join("kubelet");
        let plugins = VolumePluginManager::new(in_tree()).unwrap();
        let machine = Self { dir, root, context, tasks: Tasks::new(), plugins };
        machine.create(stowage_model::object::kinds::NODE, json!({ "metadata": { "name": NODE } })).await;
        machine
    }

    pub async fn create(&self, kind: Kind, object: Value) -> Value {
        self.context.api.create_raw(kind, object).await.unwrap()
    }

    /// The node, with a port that may die.
    pub fn host(&self, stop: Option<Stop>) -> (VolumeHost, Arc<Counting>) {
        let inner = Arc::new(LinuxMounter);
        let counting = Arc::new(match stop {
            Some(stop) => Counting::stopping(inner, stop),
            None => Counting::new(inner),
        });
        let (objects, _) = WatchedObjects::new(self.context.clone(), NODE, |_| {});
        let host = VolumeHost {
            context: self.context.clone(),
            mounter: counting.clone(),
            layout: Layout::new(&self.root),
            node_name: NODE.into(),
            drivers: Arc::new(NoDrivers),
            // No test here wants a program that does not end.
            call_timeout: Duration::from_secs(60),
            recorder: self.context.recorder("test", &self.tasks.spawner()),
            tokens: Arc::default(),
            objects: Arc::new(objects),
            devices: Some(counting.clone()),
        };
        (host, counting)
    }

    pub fn volume_dir(&self, plugin: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(UID).join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    pub async fn set_up(&self, host: &VolumeHost, asked: &Asked) -> Result<IsSetUp, Fault> {
        let (plugin, _, volume) = self.plugins.describe(&asked.spec, UID, host)?;
        plugin.ready(&asked.spec, host)?;
        let request = SetUp {
            spec: &asked.spec,
            pod: &asked.pod,
            volume: &volume,
            device_path: "",
            fs_group: asked.pod.spec.security_context.fs_group,
            fs_group_change_policy: asked.pod.spec.security_context.fs_group_change_policy,
            fs_user: asked.pod.common_user(),
            se_linux_label: None,
            is_remount: asked.is_remount,
            is_reconstructed: false,
        };
        plugin.mounter().unwrap().set_up(host, &request).await
    }

    pub async fn tear_down(&self, host: &VolumeHost, asked: &Asked) -> Result<(), Fault> {
        let plugin = self.plugin(asked);
        plugin.unmounter().unwrap().tear_down(host, &TearDown { name: &asked.spec.name, pod_uid: UID }).await
    }

    pub fn plugin(&self, asked: &Asked) -> Arc<dyn VolumePlugin> {
        self.plugins.by_spec(&asked.spec).unwrap()
    }

    /// What is left of volumes: mounts, files, and directories that are no mere parents of volumes.
    pub fn left(&self) -> Vec<String> {
        let table = MountTable::read().unwrap();
        let mounts = table.under(&self.root).map(|mount| format!("mount {}", mount.target.display()));
        let mut left: Vec<String> = mounts.collect();
        let mut waiting = vec![self.root.clone()];
        while let Some(dir) = waiting.pop() {
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            for entry in entries.map(Result::unwrap) {
                let path = entry.path();
                let depth = path.strip_prefix(&self.root).unwrap().components().count();
                // Images and what was unpacked of them are the node's, and outlive pods.
                if path.ends_with("plugins/kubernetes.io/image") || path == self.root.join("images") {
                    continue;
                }
                match entry.file_type().unwrap().is_dir() {
                    // pods/<uid>/volumes/<plugin>, and the same for what plugins keep.
                    true if depth <= 4 => waiting.push(path),
                    _ => left.push(path.display().to_string()),
                }
            }
        }
        left
    }
}

/// A pod with one volume.
pub struct Asked {
    pub pod: NodePod,
    pub spec: VolumeSpec,
    pub is_remount: bool,
}

pub fn pod(volumes: Value, more: Value) -> NodePod {
    let mut spec = json!({
        "containers": [{ "name": "c", "image": "i" }], "volumes": volumes, "serviceAccountName": "default",
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let metadata = json!({ "name": "p", "namespace": "default", "uid": UID, "labels": { "app": "web" } });
    NodePod::read(json!({ "metadata": metadata, "spec": spec }).to_string().as_bytes()).unwrap()
}

impl Asked {
    /// A volume `v` that the pod names itself.
    pub fn inline(member: &str, source: Value, more: Value) -> Self {
        let pod = pod(json!([{ "name": "v", member: source }]), more);
        let spec = translate::inline(&pod, "v").unwrap().unwrap();
        Self { pod, spec, is_remount: false }
    }

    /// A volume behind a claim.
    pub fn persistent(spec: Value, read_only: bool, more: Value) -> Self {
        let volume = json!({ "metadata": { "name": "pv" }, "spec": spec });
        let volume = NodeVolume::read(volume.to_string().as_bytes()).unwrap();
        let claim = Key::namespaced("default", "c");
        let spec = translate::persistent(&volume, claim, read_only).unwrap().unwrap();
        Self { pod: pod(json!([]), more), spec, is_remount: false }
    }

    pub fn again(mut self) -> Self {
        self.is_remount = true;
        self
    }
}

pub fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

pub fn mounted(path: &Path) -> Option<stowage_mount::Mount> {
    MountTable::read().unwrap().at(path).cloned()
}
