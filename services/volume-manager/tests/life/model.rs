//! A node driver over the mount table in memory: what is mounted is all that it knows, as of a real one. It watches its
//! caller, and grows volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tonic::{Request, Response, Status};

use stowage_csi::registration::registration_server::Registration;
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use stowage_csi::v1::node_server::Node;
use stowage_csi::v1::node_service_capability::{Rpc, Type, rpc};
use stowage_csi::v1::volume_capability::AccessType;
use stowage_csi::v1::*;
use stowage_mount::{Access, MountOptions};
use stowage_testing::MemoryMounter;

use crate::driver::NAME;

pub const SOCKET: &str = "/plugins/driver.example/csi.sock";

#[derive(Clone)]
pub struct Model {
    pub node: MemoryMounter,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The size of each file system and device that was asked to grow.
    sizes: BTreeMap<String, i64>,
    /// Where each device is staged: it is there without being mounted anywhere.
    staged: BTreeMap<String, PathBuf>,
    violations: BTreeSet<String>,
}

impl Model {
    pub fn new(node: MemoryMounter) -> Self {
        Self { node, state: Arc::default() }
    }

    pub fn violations(&self) -> Vec<String> {
        self.state.lock().unwrap().violations.iter().cloned().collect()
    }

    pub fn size(&self, volume: &str) -> Option<i64> {
        self.state.lock().unwrap().sizes.get(volume).copied()
    }

    pub fn is_staged(&self, volume: &str) -> bool {
        self.state.lock().unwrap().staged.contains_key(volume)
    }

    /// What a reboot leaves of devices that were staged.
    pub fn reboot(&self) {
        self.state.lock().unwrap().staged.clear();
    }

    fn violation(&self, text: String) -> Status {
        self.state.lock().unwrap().violations.insert(text.clone());
        Status::failed_precondition(text)
    }

    fn targets_of(&self, source: &str) -> Vec<PathBuf> {
        let table = self.node.snapshot().mounts();
        table.iter().filter(|mount| mount.source == source).map(|mount| mount.target.clone()).collect()
    }

    fn unmount(&self, target: &Path) -> Result<(), Status> {
        let unmounted = self.node.with(|tree| tree.unmount(target));
        unmounted.map_err(|error| Status::internal(error.to_string()))
    }
}

fn device_of(volume: &str) -> PathBuf {
    Path::new("/dev").join(volume)
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    matches!(capability.and_then(|capability| capability.access_type.as_ref()), Some(AccessType::Block(_)))
}

#[tonic::async_trait]
impl Registration for Model {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: NAME.into(),
            endpoint: SOCKET.into(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Model {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse { node_id: "node".into(), ..Default::default() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let can = [rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: can.map(capability).into() }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let target = Path::new(&request.staging_target_path);
        if is_block(request.volume_capability.as_ref()) {
            self.state.lock().unwrap().staged.insert(request.volume_id, target.to_owned());
        } else if self.node.snapshot().mounts().at(target).is_none() {
            let mounted =
                self.node.with(|tree| tree.mount(&request.volume_id, target, "test", &MountOptions::default()));
            mounted.map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (target, staging) = (Path::new(&request.target_path), Path::new(&request.staging_target_path));
        let tree = self.node.snapshot();
        if target.parent().is_none_or(|parent| tree.stat(parent).is_none()) {
            return Err(self.violation(format!("the parent of {} is not there", target.display())));
        }
        if tree.mounts().at(target).is_some() {
            return Ok(Response::new(NodePublishVolumeResponse {}));
        }
        let published = if is_block(request.volume_capability.as_ref()) {
            let staged = self.state.lock().unwrap().staged.get(&request.volume_id).cloned();
            if staged.as_deref() != Some(staging) {
                return Err(self.violation(format!("M1: published device {} without being staged", request.volume_id)));
            }
            self.node.with(|tree| {
                let device = device_of(&request.volume_id);
                tree.create_dir(Path::new("/dev"))?;
                tree.make_file(&device, 0o600)?;
                tree.make_file(target, 0o600)?;
                tree.bind(&device, target, Access::ReadWrite)
            })
        } else if staging == Path::new("") {
            self.node.with(|tree| {
                tree.create_dir(target)?;
                tree.mount(&request.volume_id, target, "test", &MountOptions::default())
            })
        } else {
            if tree.mounts().at(staging).is_none() {
                return Err(self.violation(format!("M1: published {} without being staged", request.volume_id)));
            }
            self.node.with(|tree| {
                tree.create_dir(target)?;
                tree.bind(staging, target, Access::ReadWrite)
            })
        };
        published.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = Path::new(&request.volume_path);
        if self.node.snapshot().mounts().at(path).is_none() {
            return Err(self.violation(format!("M1: asked to grow at {}, which is not mounted", path.display())));
        }
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let mut state = self.state.lock().unwrap();
        let size = state.sizes.entry(request.volume_id).or_default();
        *size = bytes.max(*size);
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: *size }))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let target = PathBuf::from(request.into_inner().target_path);
        self.unmount(&target)?;
        let removed = self.node.with(|tree| tree.remove_all(&target));
        removed.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let staging = Path::new(&request.staging_target_path);
        let device = device_of(&request.volume_id);
        let mut used = self.targets_of(&request.volume_id);
        used.extend(self.targets_of(&device.to_string_lossy()));
        used.retain(|target| target != staging);
        if !used.is_empty() {
            return Err(self.violation(format!("M1: unstaged {} while it is at {used:?}", request.volume_id)));
        }
        let staged = self.state.lock().unwrap().staged.remove(&request.volume_id);
        if let Some(staged) = staged.filter(|staged| staged != staging) {
            return Err(self.violation(format!("M1: unstaged {} at another place than {staged:?}", request.volume_id)));
        }
        self.unmount(staging)?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
}
