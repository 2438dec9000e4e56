//! What a pod's containers are given: volumes, parts of volumes, devices.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::{NodeContainer, NodePod};
use stowage_mount::SubPath;
use stowage_runtime::operation::Ended;

use crate::actual_state::MountState;
use crate::decide::pod::is_live;
use crate::executor::{OperationName, VolumeOperation};

use super::{Error, VolumeManager, variables};

/// One mount or device of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMount {
    pub container: String,
    /// Where the container sees it.
    pub path: String,
    /// Where it is on the node.
    pub host_path: PathBuf,
    pub read_only: bool,
    pub is_device: bool,
}

/// A pod's volume on the node.
struct Place {
    volume: UniqueVolumeName,
    /// The volume's own name, which its directories have.
    name: String,
    path: PathBuf,
    read_only: bool,
}

impl VolumeManager {
    /// The mounts and devices of the pod's containers; parts of volumes are bound where containers can have them.
    pub async fn container_mounts(&self, uid: &str) -> Result<Vec<ContainerMount>, Error> {
        let pod = self.pod(uid).ok_or_else(|| Error::FindPod { uid: uid.to_owned() })?;
        // Nothing is made inside what is about to go, or is not there.
        if !is_live(&pod) {
            return Err(Error::FindPod { uid: uid.to_owned() });
        }
        match self.missing(uid)? {
            missing if missing.is_empty() => {}
            missing => return Err(Error::Missing(missing)),
        }
        let places = self.places(&pod);
        let mut mounts = Vec::new();
        for container in &pod.containers {
            for (index, mount) in container.volume_mounts.iter().enumerate() {
                let Some(place) = places.get(mount.name.as_str()) else { continue };
                let unprepared =
                    |message| Error::Prepare { container: container.name.clone(), volume: mount.name.clone(), message };
                let part = match mount.sub_path_expr.as_str() {
                    "" => mount.sub_path.clone(),
                    expression => variables::expand(expression, container, &pod).map_err(unprepared)?,
                };
                let host_path = match part.as_str() {
                    "" => place.path.clone(),
                    part => self.bind_part(uid, place, container, index, part).await.map_err(unprepared)?,
                };
                let (container, path) = (container.name.clone(), mount.mount_path.clone());
                let read_only = place.read_only || mount.read_only;
                mounts.push(ContainerMount { container, path, host_path, read_only, is_device: false });
            }
            for device in &container.volume_devices {
                let Some(place) = places.get(device.name.as_str()) else { continue };
                mounts.push(ContainerMount {
                    container: container.name.clone(),
                    path: device.device_path.clone(),
                    host_path: place.path.clone(),
                    read_only: place.read_only,
                    is_device: true,
                });
            }
        }
        Ok(mounts)
    }

    /// Where the pod's volumes are on the node, by their names in the pod.
    fn places(&self, pod: &NodePod) -> BTreeMap<String, Place> {
        let uid = &pod.meta.uid;
        let volumes = self.state.read(|states| states.desired.pod(uid).cloned()).unwrap_or_default();
        let mut places = BTreeMap::new();
        for (volume, mount) in &volumes.volumes {
            let Ok(plugin) = self.plugins.by_spec(&mount.spec) else { continue };
            let path = match plugin.mounter() {
                Some(mounter) if !mount.spec.is_block() => mounter.path(&self.host, &mount.spec, uid),
                _ => self.host.layout.pod_device(uid, plugin.name(), &mount.spec.name),
            };
            for outer in &mount.outer_names {
                let read_only = mount.spec.read_only || mount.traits.attributes.read_only;
                let (volume, name, path) = (volume.clone(), mount.spec.name.clone(), path.clone());
                places.insert(outer.clone(), Place { volume, name, path, read_only });
            }
        }
        places
    }

    /// Shows a part of a volume where a container can have it. An operation as any other on the volume: it never runs
    /// beside one that takes the volume away, so what it binds is found by whoever does.
    async fn bind_part(
        &self,
        uid: &str,
        place: &Place,
        container: &NodeContainer,
        index: usize,
        part: &str,
    ) -> Result<PathBuf, String> {
        let target = self.host.layout.volume_sub_paths(uid, &place.name).join(&container.name).join(index.to_string());
        let part = SubPath { volume: place.path.clone(), path: part.to_owned(), target: target.clone() };
        let operation = VolumeOperation::of(&place.volume, uid, OperationName::BindPart);
        let mut changes = self.state.changes();
        loop {
            changes.borrow_and_update();
            let (tell, told) = oneshot::channel();
            let (mounter, part) = (std::sync::Arc::clone(&self.host.mounter), part.clone());
            let work = async move {
                let bound = mounter.prepare_sub_path(&part).await.map(drop).map_err(|error| error.to_string());
                // Nobody is left to hear it only where this service ends.
                let _ = tell.send(bound);
                Ended::Done(())
            };
            // Looked at under the same lock under which it is started: no other operation has changed that meanwhile.
            let is_there = || self.is_live(uid) && self.has(uid, &place.volume);
            match self.executor.start_on_volume_if(operation.clone(), is_there, work) {
                None => return Err("the pod's volumes go, or are gone".to_owned()),
                Some(true) => {
                    let bound = told.await.unwrap_or_else(|_| Err("it was interrupted".to_owned()));
                    return bound.map(|()| target);
                }
                Some(false) => {}
            }
            // The sender lives in the state, so the wait cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Whether the volume certainly is mounted for the pod.
    fn has(&self, uid: &str, volume: &UniqueVolumeName) -> bool {
        self.state.read(|states| {
            let mounted = states.actual.get(volume).and_then(|known| known.pods.get(uid));
            mounted.is_some_and(|mounted| mounted.state == MountState::Mounted)
        })
    }
}
