//! A volume once for the node: mount and unmount.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_mount::{Held, Mount};
use stowage_plugins::plugin::{MountDevice, UnmountDevice};
use stowage_plugins::{Fault, VolumeSpec};

use crate::actual_state::MountState;
use crate::controller::Controller;
use crate::desired_state::VolumeToMount;
use crate::executor::{Operation, OperationName};
use crate::state::States;

use super::{after_failure, device_operation, mapped_reason};

impl Controller {
    pub(crate) fn start_mount_device(
        self: Arc<Self>,
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: VolumeToMount,
    ) {
        let spec = &mount.spec;
        let noted = self.state.with(|states| {
            self.may_mount(&volume, spec, states).then(|| {
                let known = states.actual.get(&volume);
                let before = known.and_then(|known| Some((known.device?, known.se_linux_label.clone())));
                let is_reconstructed = known.is_some_and(|known| known.is_reconstructed);
                let told = known.map(|known| known.device_path.clone()).filter(|path| !path.is_empty());
                let device_path = told.or_else(|| self.listed_device(&volume)).unwrap_or_default();
                states.actual.update(&volume, spec, |known| {
                    known.device = Some(MountState::Uncertain);
                    known.device_path.clone_from(&device_path);
                    // What may be mounted has this label: without it the next attempt would find another's mount.
                    known.se_linux_label.clone_from(&mount.se_linux_label);
                    known.spec = Arc::clone(spec);
                });
                (before, is_reconstructed, device_path)
            })
        });
        let Some((before, is_reconstructed, device_path)) = noted else { return };
        let operation = device_operation(&volume, OperationName::MountDevice);
        let controller = Arc::clone(&self);
        let spec = mount.spec.clone();
        let steps = {
            let controller = Arc::clone(&controller);
            move || async move {
                let result = controller.mount_device(&pod, &mount, &device_path, is_reconstructed).await;
                controller.device_mounted(&volume, &pod, &mount, &result, before, is_reconstructed);
                result
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    async fn mount_device(
        &self,
        pod: &NodePod,
        mount: &VolumeToMount,
        device_path: &str,
        is_reconstructed: bool,
    ) -> Result<(), Fault> {
        let plugin = self.plugin_of(&mount.spec)?;
        let request = MountDevice {
            spec: &mount.spec,
            pod,
            device_path,
            fs_group: pod.spec.security_context.fs_group,
            se_linux_label: mount.se_linux_label.as_deref(),
            is_reconstructed,
        };
        match (mount.spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => mapper.set_up_device(&self.host, &request).await,
            (false, _, Some(mounter)) => mounter.mount_device(&self.host, &request).await,
            _ => Ok(()),
        }
    }

    fn device_mounted(
        &self,
        volume: &UniqueVolumeName,
        pod: &NodePod,
        mount: &VolumeToMount,
        result: &Result<(), Fault>,
        before: Option<(MountState, Option<String>)>,
        is_reconstructed: bool,
    ) {
        let with_label = |state| (state, mount.se_linux_label.clone());
        let after = match result {
            Ok(()) => Some(with_label(MountState::Mounted)),
            Err(fault) => after_failure(fault, is_reconstructed, before, with_label(MountState::Uncertain)),
        };
        let (state, label) = after.map_or((None, None), |(state, label)| (Some(state), label));
        let place = result.is_ok().then(|| self.device_place(&mount.spec)).flatten();
        self.state.with(|states| {
            if let Some(place) = place {
                states.report.explained(&place, &self.host.layout);
            }
            states.actual.update(volume, &mount.spec, |known| {
                known.device = state;
                known.se_linux_label = label;
                if result.is_ok() {
                    known.is_reconstructed = false;
                }
            });
        });
        if let Err(fault) = result {
            self.tell_failure(pod, &mount.spec, mapped_reason(&mount.spec), fault);
        }
    }

    /// Where the node has a volume that is mounted, or mapped, once for all pods.
    fn device_place(&self, spec: &VolumeSpec) -> Option<PathBuf> {
        let plugin = self.plugin_of(spec).ok()?;
        match (spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => Some(mapper.global_map_path(&self.host, &spec.name)),
            (false, _, Some(mounter)) => mounter.device_mount_path(&self.host, spec).ok(),
            _ => None,
        }
    }

    pub(crate) fn start_unmount_device(self: Arc<Self>, volume: UniqueVolumeName, spec: Arc<VolumeSpec>) {
        self.state.with(|states| states.actual.set_device(&volume, &spec, Some(MountState::Uncertain)));
        let operation = device_operation(&volume, OperationName::UnmountDevice);
        let controller = Arc::clone(&self);
        let steps = {
            let (controller, spec) = (Arc::clone(&controller), spec.clone());
            move || async move {
                if let Err(fault) = controller.unmount_device(&volume, &spec).await {
                    let place = controller.device_place(&spec).filter(|_| !spec.is_block());
                    return Err(controller.with_holders(fault, place.into_iter().collect()).await);
                }
                let mounted = device_operation(&volume, OperationName::MountDevice);
                controller.executor.forget(&Operation::Volume(mounted));
                controller.state.with(|states| states.actual.set_device(&volume, &spec, None));
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    /// Takes the volume from the node. It has left only when nobody has its device any more: what is detached while somebody
    /// writes to it loses data.
    async fn unmount_device(&self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>) -> Result<(), Fault> {
        self.note_device(volume, spec).await?;
        self.take_from_node(volume, spec).await?;
        let told = self.state.read(|states| states.actual.get(volume).map(|known| known.device_path.clone()));
        self.check_released(Path::new(&told.unwrap_or_default())).await
    }

    async fn take_from_node(&self, volume: &UniqueVolumeName, spec: &VolumeSpec) -> Result<(), Fault> {
        let plugin = self.plugin_of(spec)?;
        let request = UnmountDevice { volume, spec };
        match (spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => {
                self.check_unmapped(&mapper.global_map_path(&self.host, &spec.name)).await?;
                mapper.tear_down_device(&self.host, &request).await
            }
            (false, _, Some(mounter)) => mounter.unmount_device(&self.host, &request).await,
            _ => Ok(()),
        }
    }

    /// Where the device is by the word of whoever attached it.
    fn listed_device(&self, volume: &UniqueVolumeName) -> Option<String> {
        let node = self.caches.nodes.get(&self.node_key())?;
        let listed = node.status.volumes_attached.iter().find(|listed| listed.name == volume.as_str())?;
        Some(listed.device_path.clone())
    }

    /// Where nobody has told the device, the mount that is about to go does.
    async fn note_device(&self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>) -> Result<(), Fault> {
        let is_told = |states: &States| states.actual.get(volume).is_some_and(|known| !known.device_path.is_empty());
        if spec.is_block() || self.state.read(is_told) {
            return Ok(());
        }
        let Some(place) = self.device_place(spec) else { return Ok(()) };
        let mounter = &self.host.mounter;
        let table = mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
        let resolved = mounter.resolve(&place).await.map_err(Fault::after("resolve the staging directory"))?;
        let root = mounter.resolve(self.host.layout.root()).await.map_err(Fault::after("resolve the root"))?;
        let Some(mount) = resolved.as_deref().and_then(|place| table.at(place)) else { return Ok(()) };
        // What shows a part of a file system, or one that this machine has for itself too, is not the device's last mount.
        let is_elsewhere = |other: &Mount| root.as_deref().is_none_or(|root| !other.target.starts_with(root));
        let is_shared = table.iter().any(|other| other.device == mount.device && is_elsewhere(other));
        if mount.root == Path::new("/") && !is_shared {
            let source = mount.source.clone();
            self.state.with(|states| states.actual.update(volume, spec, |known| known.device_path = source));
        }
        Ok(())
    }

    /// Whether nobody has the device for himself: mounted in a mount namespace of his own, or as a part of something else.
    async fn check_released(&self, device: &Path) -> Result<(), Fault> {
        // The name of a loop device that is free stands for another one in the next moment.
        if !device.starts_with("/dev") || device.to_string_lossy().starts_with("/dev/loop") {
            return Ok(());
        }
        let mounter = &self.host.mounter;
        if !mounter.is_device_in_use(device).await.map_err(Fault::after("look whether the device is free"))? {
            return Ok(());
        }
        let holders = mounter.holders(&Held::DeviceNode(device.to_owned())).await.unwrap_or_default();
        Err(Fault::uncertain(format!("device {} is still in use by {holders}", device.display())))
    }
}
