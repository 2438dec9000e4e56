use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use node_plugin::args::PoolOption;
use node_plugin::{Driver, Kind, Mode, Options};
use stowage_csi::Channel;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::group_controller_client::GroupControllerClient;
use stowage_csi::v1::identity_client::IdentityClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::snapshot_metadata_client::SnapshotMetadataClient;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{self, AccessType, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::{Host, LinuxMounter, Mount, MountTable, Targets, run_program};
use tonic::Status;

pub const MIB: i64 = 1 << 20;
pub const SIZE: i64 = 32 * MIB;

/// Runs a test on a thread whose mounts nobody else sees; afterwards nothing of it is left on the machine, and if the
/// test itself passed, it must have left nothing to clean up.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(World) -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: mounts and loop devices need root");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let cleaner = Cleaner(root.clone());
        for name in ["pool", "kubelet"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(body(World { root }));
        cleaner.assert_nothing_left();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a test whose pool is a file system of its own, of this kind and size.
pub fn test_on<F: Future<Output = ()>>(kind: &'static str, bytes: i64, body: impl FnOnce(World) -> F + Send + 'static) {
    test_on_made(kind, &[], bytes, body);
}

/// The same with further words for its mkfs.
pub fn test_on_made<F: Future<Output = ()>>(
    kind: &'static str,
    words: &'static [&'static str],
    bytes: i64,
    body: impl FnOnce(World) -> F + Send + 'static,
) {
    test(move |world| async move {
        let (image, pool) = (world.root.join("disk"), world.pool());
        fs::File::create_new(&image).unwrap().set_len(bytes as u64).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").args(words).arg(&image));
        // The loop device goes with the mount.
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&pool));
        body(World { root: world.root }).await;
        unmount(&pool);
    });
}

/// Nothing under this directory can be written until it is unmounted.
pub fn make_read_only(directory: &Path) {
    mount(Some(directory), directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, directory, None::<&str>, read_only, None::<&str>).unwrap();
}

/// How often to look for what nothing tells the moment of.
pub const MOST_LOOKS: usize = 100_000;

/// What another test forks has a copy of this one's open files until it executes its program, so a file system may be busy
/// for a moment; nothing tells when it no longer is.
pub fn unmount(path: &Path) {
    let unless_busy = |_| match umount2(path, MntFlags::empty()) {
        Err(Errno::EBUSY) => {
            std::thread::yield_now();
            None
        }
        other => Some(other),
    };
    (0..MOST_LOOKS).find_map(unless_busy).unwrap_or(Err(Errno::EBUSY)).unwrap();
}

/// Freezes what is mounted at a path, as a driver that is killed then would leave it.
pub async fn freeze(path: &Path) -> Result<(), stowage_mount::Error> {
    let target = LinuxMounter.hold(path).await?.unwrap();
    let seen = LinuxMounter.look_at(&target).await?.unwrap();
    LinuxMounter.freeze(&target, &seen).await
}

pub fn run(command: &mut Command) {
    let output = run_program(command).unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Unmounts and detaches whatever lies under a directory.
struct Cleaner(PathBuf);

impl Cleaner {
    fn mounts(&self) -> Vec<PathBuf> {
        let table = MountTable::read().unwrap();
        table.under(&self.0).map(|mount| mount.target.clone()).collect()
    }

    fn loops(&self) -> Vec<PathBuf> {
        loops_under(&self.0)
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new(), "mounts are left");
        // One that goes with its last user may be looked at by another test at this moment.
        for _ in 0..MOST_LOOKS {
            if !self.loops().iter().any(|device| is_leaving(device)) {
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(self.loops(), Vec::<PathBuf>::new(), "loop devices are left");
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        // Found before: without its pool mounted an image has no path that would tell whose it is.
        let devices = self.loops();
        for target in self.mounts().iter().rev() {
            let _ = umount2(target, MntFlags::MNT_DETACH);
        }
        for device in devices {
            let _ = run_program(Command::new("losetup").arg("-d").arg(device));
        }
    }
}

/// Whether the kernel lets go of a device when nobody uses it any more.
fn is_leaving(device: &Path) -> bool {
    let name = device.file_name().unwrap().to_string_lossy().into_owned();
    fs::read_to_string(format!("/sys/block/{name}/loop/autoclear")).is_ok_and(|text| text.trim() == "1")
}

fn loops_under(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap() {
        let entry = entry.unwrap();
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(&backing).starts_with(root) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    found
}

/// A machine with one pool and room for nodes.
pub struct World {
    pub root: PathBuf,
}

impl World {
    pub fn pool(&self) -> PathBuf {
        self.root.join("pool")
    }

    pub fn state(&self, node: &str) -> PathBuf {
        self.root.join("state").join(node)
    }

    pub fn options(&self, node: &str) -> Options {
        Options {
            kind: Kind::Shared,
            driver_name: "shared.csi.stowage.dev".into(),
            endpoint: format!("unix://{}", self.root.join(node).with_extension("sock").display()).parse().unwrap(),
            socket_mode: Default::default(),
            node_id: node.into(),
            pools: vec![PoolOption { name: "main".into(), path: self.pool() }],
            mode: Mode::All,
            prepare_pools: true,
            state_dir: self.state(node),
            overcommit: 1.0,
            max_volumes: 0,
            target_roots: vec![self.root.join("kubelet").join(node)],
        }
    }

    /// A driver that the controller knows as a node.
    pub async fn node(&self, name: &str) -> Client {
        self.introduced(self.options(name)).await
    }

    /// A driver with these options, started as a process would be.
    pub async fn introduced(&self, options: Options) -> Client {
        let driver = Driver::new(&options, Arc::new(LinuxMounter));
        driver.recover().await;
        let kubelet = self.kubelet(&options);
        let client = Client { channel: Channel::in_process(driver.routes()), kubelet };
        client.info().await.unwrap();
        client
    }

    pub fn node_on(&self, name: &str, host: Arc<dyn Host>) -> Client {
        self.start(self.options(name), host)
    }

    pub fn start(&self, options: Options, host: Arc<dyn Host>) -> Client {
        let driver = Driver::new(&options, host);
        let kubelet = self.kubelet(&options);
        Client { channel: Channel::in_process(driver.routes()), kubelet }
    }

    /// The kubelet makes the folder of its pods before it asks for a volume in it.
    fn kubelet(&self, options: &Options) -> PathBuf {
        let kubelet = self.root.join("kubelet").join(&options.node_id);
        fs::create_dir_all(kubelet.join("pods")).unwrap();
        kubelet
    }

    /// The loop devices of volumes.
    pub fn loops(&self) -> Vec<PathBuf> {
        loops_under(&self.pool())
    }

    pub fn mount_at(&self, path: &Path) -> Option<Mount> {
        MountTable::read().unwrap().at(path).cloned()
    }

    /// The names of the files in the pool, without the node records.
    pub fn files(&self) -> Vec<String> {
        let list = fs::read_dir(self.pool().join("volumes")).unwrap();
        let mut names: Vec<_> = list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn only_image(&self) -> PathBuf {
        let name = self.files().into_iter().find(|name| name.ends_with(".img")).unwrap();
        self.pool().join("volumes").join(name)
    }
}

/// Speaks to one node's driver as a cluster would.
pub struct Client {
    pub channel: Channel,
    pub kubelet: PathBuf,
}

pub type Answer<T> = Result<T, Status>;
/// A volume and what its attachment handed out.
pub type Staged = (String, BTreeMap<String, String>);

impl Client {
    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub fn staging(&self) -> PathBuf {
        self.kubelet.join("globalmount")
    }

    pub fn target(&self, pod: &str) -> PathBuf {
        self.kubelet.join("pods").join(pod)
    }

    pub async fn info(&self) -> Answer<NodeGetInfoResponse> {
        Ok(self.node().node_get_info(NodeGetInfoRequest {}).await?.into_inner())
    }

    pub async fn create(&self, request: CreateVolumeRequest) -> Answer<Volume> {
        Ok(self.controller().create_volume(request).await?.into_inner().volume.unwrap())
    }

    pub async fn delete(&self, volume: &str) -> Answer<()> {
        let request = DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub async fn attach(&self, volume: &str, node: &str) -> Answer<BTreeMap<String, String>> {
        self.attach_as(volume, node, capability(AccessMode::SingleNodeWriter)).await
    }

    pub async fn attach_as(
        &self,
        volume: &str,
        node: &str,
        capability: VolumeCapability,
    ) -> Answer<BTreeMap<String, String>> {
        let (volume_id, node_id, volume_capability) = (volume.into(), node.into(), Some(capability));
        let request = ControllerPublishVolumeRequest { volume_id, node_id, volume_capability, ..Default::default() };
        Ok(self.controller().controller_publish_volume(request).await?.into_inner().publish_context)
    }

    pub async fn detach(&self, volume: &str, node: &str) -> Answer<()> {
        let (volume_id, node_id) = (volume.into(), node.into());
        let request = ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.controller().controller_unpublish_volume(request).await.map(drop)
    }

    pub fn stage_request(&self, volume: &str, context: &BTreeMap<String, String>) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: volume.into(),
            publish_context: context.clone(),
            staging_target_path: text(&self.staging()),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            ..Default::default()
        }
    }

    pub async fn stage(&self, volume: &str, context: &BTreeMap<String, String>) -> Answer<()> {
        self.node().node_stage_volume(self.stage_request(volume, context)).await.map(drop)
    }

    pub async fn unstage(&self, volume: &str) -> Answer<()> {
        let (volume_id, staging_target_path) = (volume.into(), text(&self.staging()));
        self.node().node_unstage_volume(NodeUnstageVolumeRequest { volume_id, staging_target_path }).await.map(drop)
    }

    pub fn publish_request(
        &self,
        volume: &str,
        context: &BTreeMap<String, String>,
        pod: &str,
    ) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: volume.into(),
            publish_context: context.clone(),
            staging_target_path: text(&self.staging()),
            target_path: text(&self.target(pod)),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            ..Default::default()
        }
    }

    pub async fn publish(&self, volume: &str, context: &BTreeMap<String, String>, pod: &str) -> Answer<()> {
        self.node().node_publish_volume(self.publish_request(volume, context, pod)).await.map(drop)
    }

    pub async fn publish_as(&self, (volume, context): &Staged, pod: &str, mode: AccessMode) -> Answer<()> {
        let volume_capability = Some(capability(mode));
        let request = self.publish_request(volume, context, pod);
        self.node().node_publish_volume(NodePublishVolumeRequest { volume_capability, ..request }).await.map(drop)
    }

    pub async fn unpublish(&self, volume: &str, pod: &str) -> Answer<()> {
        let (volume_id, target_path) = (volume.into(), text(&self.target(pod)));
        self.node().node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id, target_path }).await.map(drop)
    }

    pub fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub fn metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    pub async fn snapshot(&self, volume: &str, name: &str) -> Answer<Snapshot> {
        self.snapshot_with(volume, name, &[]).await
    }

    pub async fn snapshot_with(&self, volume: &str, name: &str, parameters: &[(&str, &str)]) -> Answer<Snapshot> {
        let (source_volume_id, name, parameters) = (volume.into(), name.into(), map(parameters));
        let request = CreateSnapshotRequest { source_volume_id, name, parameters, ..Default::default() };
        Ok(self.controller().create_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    pub async fn delete_snapshot(&self, snapshot: &str) -> Answer<()> {
        let request = DeleteSnapshotRequest { snapshot_id: snapshot.into(), ..Default::default() };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    pub async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Answer<ListSnapshotsResponse> {
        Ok(self.controller().list_snapshots(request).await?.into_inner())
    }

    pub async fn expand(&self, volume: &str, bytes: i64) -> Answer<ControllerExpandVolumeResponse> {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(self.controller().controller_expand_volume(request).await?.into_inner())
    }

    pub async fn modify(&self, volume: &str, parameters: &[(&str, &str)]) -> Answer<()> {
        let (volume_id, mutable_parameters) = (volume.into(), map(parameters));
        let request = ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
        self.controller().controller_modify_volume(request).await.map(drop)
    }

    pub async fn capacity(&self, parameters: &[(&str, &str)]) -> i64 {
        let request = GetCapacityRequest { parameters: map(parameters), ..Default::default() };
        self.controller().get_capacity(request).await.unwrap().into_inner().available_capacity
    }

    /// Attaches a volume and stages it at a place of its own, which is returned.
    pub async fn stage_beside(&self, volume: &str, node: &str) -> PathBuf {
        let context = self.attach(volume, node).await.unwrap();
        let path = self.kubelet.join("stages").join(volume);
        let mut request = self.stage_request(volume, &context);
        request.staging_target_path = text(&path);
        self.node().node_stage_volume(request).await.unwrap();
        path
    }

    /// The way back from `stage_beside`.
    pub async fn unstage_beside(&self, volume: &str) {
        let staging_target_path = text(&self.kubelet.join("stages").join(volume));
        let request = NodeUnstageVolumeRequest { volume_id: volume.into(), staging_target_path };
        self.node().node_unstage_volume(request).await.unwrap();
        self.detach(volume, "").await.unwrap();
    }

    /// Creates, attaches and stages a volume on this node.
    pub async fn staged(&self, name: &str, node: &str) -> Staged {
        let volume = self.create(request(name)).await.unwrap().volume_id;
        let context = self.attach(&volume, node).await.unwrap();
        self.stage(&volume, &context).await.unwrap();
        (volume, context)
    }

    /// Takes a staged volume all the way back.
    pub async fn remove(&self, volume: &str) {
        self.unstage(volume).await.unwrap();
        self.detach(volume, "").await.unwrap();
        self.delete(volume).await.unwrap();
    }
}

pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub fn capability(mode: AccessMode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(volume_capability::AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

/// A good request, to be spoiled one field per test.
pub fn request(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![capability(AccessMode::SingleNodeWriter)],
        ..Default::default()
    }
}

/// The code of a refusal, after checking that its message says something about each of `words`.
pub fn refused<T: std::fmt::Debug>(answer: Answer<T>, words: &[&str]) -> tonic::Code {
    let status = answer.unwrap_err();
    for word in words {
        assert!(status.message().contains(word), "{:?} does not say {word:?}", status.message());
    }
    status.code()
}

pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub fn block() -> VolumeCapability {
    let access_type = Some(AccessType::Block(volume_capability::BlockVolume {}));
    VolumeCapability { access_type, ..capability(AccessMode::SingleNodeWriter) }
}

pub fn request_with(name: &str, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest { parameters: map(parameters), ..request(name) }
}

/// A request for a copy, as large as its source.
pub fn request_from(name: &str, source: volume_content_source::Type) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        capacity_range: None,
        ..request(name)
    }
}

pub fn of_snapshot(id: &str) -> volume_content_source::Type {
    volume_content_source::Type::Snapshot(volume_content_source::SnapshotSource { snapshot_id: id.into() })
}

pub fn of_volume(id: &str) -> volume_content_source::Type {
    volume_content_source::Type::Volume(volume_content_source::VolumeSource { volume_id: id.into() })
}
