//! A driver and its registration socket, in process: it makes directories and writes down what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::registration::registration_server::{Registration, RegistrationServer};
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use stowage_csi::v1::node_server::{Node, NodeServer};
use stowage_csi::v1::node_service_capability::{Rpc, Type, rpc};
use stowage_csi::v1::*;
use stowage_csi::{Channel, Connector, connect};
use stowage_testing::MemoryMounter;

pub const NAME: &str = "driver.example";
pub const REGISTRATION: &str = "/registry/driver.example-reg.sock";
const ENDPOINT: &str = "/plugins/driver.example/csi.sock";

#[derive(Clone, Default)]
pub struct Driver(Arc<Inner>);

#[derive(Default)]
struct Inner {
    calls: watch::Sender<Vec<String>>,
    failure: Mutex<Option<Status>>,
    manner: Mutex<Manner>,
    asked: Mutex<Asked>,
}

/// What the driver leaves where it publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publishes {
    #[default]
    Directory,
    /// A directory with files, made once.
    Files,
    /// A directory with a file system mounted on it, if there is none yet.
    Mount,
    /// A link to a directory or device elsewhere.
    Link,
    /// A file, which stands for a device.
    Device,
    Nothing,
}

struct Manner {
    capabilities: Vec<rpc::Type>,
    publishes: Publishes,
    failures: BTreeMap<&'static str, VecDeque<Status>>,
    /// Where it publishes, if not on the disk of this machine.
    memory: Option<MemoryMounter>,
    /// Where links lead, if not beside themselves.
    elsewhere: Option<PathBuf>,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            capabilities: vec![rpc::Type::StageUnstageVolume],
            publishes: Publishes::default(),
            failures: BTreeMap::new(),
            memory: None,
            elsewhere: None,
        }
    }
}

/// Every request, by call.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub stage: Vec<NodeStageVolumeRequest>,
    pub publish: Vec<NodePublishVolumeRequest>,
    /// When each of those came.
    pub published_at: Vec<Instant>,
    pub expand: Vec<NodeExpandVolumeRequest>,
    pub unpublish: Vec<NodeUnpublishVolumeRequest>,
    pub unstage: Vec<NodeUnstageVolumeRequest>,
}

impl Driver {
    pub fn calls(&self) -> Vec<String> {
        self.0.calls.borrow().clone()
    }

    /// Resolves when that many calls were made.
    pub async fn called(&self, times: usize) {
        self.0.calls.subscribe().wait_for(|calls| calls.len() >= times).await.unwrap();
    }

    pub fn fail_next(&self, status: Status) {
        *self.0.failure.lock().unwrap() = Some(status);
    }

    /// Lets the next call of this name fail; what it does is done all the same.
    pub fn fail(&self, call: &'static str, status: Status) {
        self.0.manner.lock().unwrap().failures.entry(call).or_default().push_back(status);
    }

    pub fn can(&self, capabilities: &[rpc::Type]) {
        self.0.manner.lock().unwrap().capabilities = capabilities.to_vec();
    }

    pub fn publishes(&self, what: Publishes) {
        self.0.manner.lock().unwrap().publishes = what;
    }

    pub fn links_to(&self, elsewhere: &Path) {
        self.0.manner.lock().unwrap().elsewhere = Some(elsewhere.to_owned());
    }

    pub fn lives_in(&self, memory: &MemoryMounter) {
        self.0.manner.lock().unwrap().memory = Some(memory.clone());
    }

    pub fn asked(&self) -> Asked {
        self.0.asked.lock().unwrap().clone()
    }

    pub fn last_publish(&self) -> NodePublishVolumeRequest {
        self.asked().publish.pop().unwrap()
    }

    fn note(&self, note: impl FnOnce(&mut Asked)) {
        note(&mut self.0.asked.lock().unwrap());
    }

    fn call(&self, name: &'static str) -> Result<(), Status> {
        self.0.calls.send_modify(|calls| calls.push(name.to_owned()));
        let next = self.0.failure.lock().unwrap().take();
        let scripted = || self.0.manner.lock().unwrap().failures.get_mut(name).and_then(VecDeque::pop_front);
        next.or_else(scripted).map_or(Ok(()), Err)
    }

    fn put(&self, target: &Path) {
        let manner = self.0.manner.lock().unwrap();
        let elsewhere = manner.elsewhere.clone().unwrap_or_else(|| target.with_file_name("elsewhere"));
        if let Some(memory) = &manner.memory {
            memory.with(|tree| match manner.publishes {
                Publishes::Device => tree.make_file(target, 0o600).unwrap(),
                Publishes::Link => {
                    tree.make_file(&elsewhere, 0o600).unwrap();
                    tree.symlink(&elsewhere, target).unwrap();
                }
                Publishes::Nothing => {}
                Publishes::Directory | Publishes::Files | Publishes::Mount => tree.create_dir(target).unwrap(),
            });
            return;
        }
        match manner.publishes {
            Publishes::Directory => fs::create_dir_all(target).unwrap(),
            Publishes::Mount => {
                fs::create_dir_all(target).unwrap();
                if !is_mounted(target) {
                    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(target));
                }
            }
            Publishes::Files if target.join("inner").is_dir() => {}
            Publishes::Files => {
                fs::create_dir_all(target.join("inner")).unwrap();
                fs::set_permissions(target, fs::Permissions::from_mode(0o755)).unwrap();
                fs::write(target.join("inner/file"), "data").unwrap();
                fs::set_permissions(target.join("inner/file"), fs::Permissions::from_mode(0o600)).unwrap();
                symlink("/etc/hostname", target.join("link")).unwrap();
            }
            Publishes::Link => {
                fs::create_dir_all(&elsewhere).unwrap();
                let _ = symlink(&elsewhere, target);
            }
            Publishes::Device => fs::write(target, "").unwrap(),
            Publishes::Nothing => {}
        }
    }

    /// As much as a driver removes; what it forgets is the caller's.
    fn take_away(&self, target: &Path) {
        let manner = self.0.manner.lock().unwrap();
        match (&manner.memory, manner.publishes) {
            (Some(memory), _) => memory.with(|tree| {
                // What a test has mounted there stays, as what is held does.
                if tree.mounts().at(target).is_none() {
                    tree.remove_all(target).unwrap();
                }
            }),
            (None, Publishes::Files) => drop(fs::remove_dir_all(target)),
            (None, Publishes::Link) => {}
            (None, Publishes::Mount) => {
                unmount(target);
                drop(fs::remove_dir(target));
            }
            (None, _) => drop(fs::remove_dir(target)),
        }
    }

    fn has_dir(&self, path: &str) -> bool {
        let manner = self.0.manner.lock().unwrap();
        match &manner.memory {
            Some(memory) => memory.snapshot().stat(Path::new(path)).is_some(),
            None => fs::metadata(path).is_ok_and(|found| found.is_dir()),
        }
    }
}

fn is_mounted(target: &Path) -> bool {
    let about = |path: &Path| fs::metadata(path).unwrap().dev();
    about(target) != about(target.parent().unwrap())
}

fn unmount(target: &Path) {
    if target.try_exists().unwrap() && is_mounted(target) {
        run(Command::new("umount").arg(target));
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

impl Connector for Driver {
    fn connect(&self, endpoint: &str) -> Result<Channel, connect::Error> {
        match endpoint {
            REGISTRATION => Ok(Channel::in_process(Routes::new(RegistrationServer::new(self.clone())))),
            ENDPOINT => Ok(Channel::in_process(Routes::new(NodeServer::new(self.clone())))),
            _ => Err(connect::Error::FindDriver { endpoint: endpoint.to_owned() }),
        }
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: NAME.into(),
            endpoint: ENDPOINT.into(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        assert!(request.get_ref().plugin_registered, "{request:?}");
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = BTreeMap::from([("topology.example/host".to_owned(), "h1".to_owned())]);
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "node-1".into(),
            max_volumes_per_node: 9,
            accessible_topology: Some(Topology { segments }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = self.0.manner.lock().unwrap().capabilities.clone();
        let capability = |kind: rpc::Type| Rpc { r#type: kind.into() };
        let capabilities = capabilities.into_iter().map(capability);
        let capabilities = capabilities.map(|rpc| NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) }).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        assert!(self.has_dir(&request.staging_target_path), "the caller makes the staging directory");
        self.note(|asked| asked.stage.push(request));
        self.call("stage")?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.put(Path::new(&request.target_path));
        self.note(|asked| {
            asked.publish.push(request);
            asked.published_at.push(Instant::now());
        });
        self.call("publish")?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let capacity_bytes = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        self.note(|asked| asked.expand.push(request));
        self.call("expand")?;
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.take_away(Path::new(&request.target_path));
        self.note(|asked| asked.unpublish.push(request));
        self.call("unpublish")?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        if self.0.manner.lock().unwrap().publishes == Publishes::Mount {
            unmount(Path::new(&request.staging_target_path));
        }
        self.note(|asked| asked.unstage.push(request));
        self.call("unstage")?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
}
