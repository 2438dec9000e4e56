//! The four calls to a driver, each with what goes before it and what must hold after it.
//!
//! Metadata is on disk before the driver is called and goes only after the kernel's mount table shows the mount gone,
//! so that a restart at any moment finds out what may be mounted.

mod fault;
mod request;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stowage_csi::Family;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use stowage_model::attachment::VolumeAttachment;
use stowage_model::object::{Key, ObjectRef, Projection};
use stowage_model::pod::Pod;
use stowage_runtime::caller::{Caller, Rpc};
use stowage_runtime::events::Note;
use stowage_runtime::operation::Ended;

use self::fault::Fault;
use self::request::{capability, path_text, pod_info};
use crate::controller::Controller;
use crate::decide::Operation;
use crate::desired::{Use, VolumeId};
use crate::layout::data_file;
use crate::vol_data;
use crate::world::{DriverInfo, Hold, Published, Staged};

const STAGE: Rpc = Rpc { path: "/csi.v1.Node/NodeStageVolume", family: Family::NodeStage };
const PUBLISH: Rpc = Rpc { path: "/csi.v1.Node/NodePublishVolume", family: Family::NodePublish };
const UNPUBLISH: Rpc = Rpc { path: "/csi.v1.Node/NodeUnpublishVolume", family: Family::NodeUnpublish };
const UNSTAGE: Rpc = Rpc { path: "/csi.v1.Node/NodeUnstageVolume", family: Family::NodeUnpublish };

impl Controller {
    pub(crate) async fn stage(self: Arc<Self>, usage: Use, pod: ObjectRef, before: Option<Staged>) -> Ended<()> {
        let volume = &usage.volume;
        let reconstructed = before.as_ref().is_some_and(|staged| staged.reconstructed);
        let (staged, ended) = match self.try_stage(&usage).await {
            Ok(()) => (Some(Staged { hold: Hold::Mounted, reconstructed: false }), Ended::Done(())),
            Err(fault) => {
                self.tell_failure(&usage, &pod, &fault);
                let staged = match &fault {
                    Fault::Before(_) => before,
                    fault if fault.is_uncertain() || reconstructed => {
                        Some(Staged { hold: Hold::Uncertain, reconstructed })
                    }
                    _ => self
                        .after_final_error(&self.layout.staging_dir(volume), &self.layout.global_mount(volume))
                        .await
                        .err()
                        .map(|still_there| {
                            tracing::warn!(%volume, still_there, "the driver failed to stage, yet traces are left");
                            Staged { hold: Hold::Uncertain, reconstructed }
                        }),
                };
                (staged, fault.ended())
            }
        };
        self.state.with(|world| world.set_staged(volume, staged));
        ended
    }

    pub(crate) async fn publish(self: Arc<Self>, usage: Use, pod: Arc<Pod>, before: Option<Published>) -> Ended<()> {
        let (volume, uid) = (&usage.volume, &pod.meta.uid);
        let reconstructed = before.as_ref().is_some_and(|published| published.reconstructed);
        let held = |hold, reconstructed| Some(Published { spec_name: usage.spec_name.clone(), hold, reconstructed });
        let (published, ended) = match self.try_publish(&usage, &pod).await {
            Ok(()) => (held(Hold::Mounted, false), Ended::Done(())),
            Err(fault) => {
                self.tell_failure(&usage, &pod.reference(), &fault);
                let dir = self.layout.pod_volume(uid, &usage.spec_name);
                let target = self.layout.pod_mount(uid, &usage.spec_name);
                let published = match &fault {
                    Fault::Before(_) => before,
                    fault if fault.is_uncertain() || reconstructed => held(Hold::Uncertain, reconstructed),
                    _ => match self.after_final_error(&dir, &target).await {
                        Ok(()) => None,
                        Err(still_there) => {
                            tracing::warn!(%volume, still_there, "the driver failed to publish, yet traces are left");
                            held(Hold::Uncertain, reconstructed)
                        }
                    },
                };
                (published, fault.ended())
            }
        };
        self.state.with(|world| world.set_published(volume, uid, published));
        ended
    }

    pub(crate) async fn unpublish(self: Arc<Self>, volume: VolumeId, uid: String, spec_name: String) -> Ended<()> {
        match self.try_unpublish(&volume, &uid, &spec_name).await {
            Ok(()) => {
                self.operations.forget(&Operation::Publish(volume.clone(), uid.clone()));
                self.state.with(|world| world.set_published(&volume, &uid, None));
                Ended::Done(())
            }
            Err(fault) => {
                tracing::warn!(%volume, pod = uid, error = %fault, "unpublishing failed");
                fault.ended()
            }
        }
    }

    pub(crate) async fn unstage(self: Arc<Self>, volume: VolumeId) -> Ended<()> {
        match self.try_unstage(&volume).await {
            Ok(()) => {
                self.operations.forget(&Operation::Stage(volume.clone()));
                self.state.with(|world| world.set_staged(&volume, None));
                Ended::Done(())
            }
            Err(fault) => {
                tracing::warn!(%volume, error = %fault, "unstaging failed");
                fault.ended()
            }
        }
    }

    async fn try_stage(&self, usage: &Use) -> Result<(), Fault> {
        let volume = &usage.volume;
        let (driver, caller) = self.driver(volume)?;
        let publish_context = self.publish_context(volume).await?;
        let secrets = caller.secrets(usage.stage_secret.as_ref()).await.map_err(Fault::unsent)?;
        let volume_capability = Some(capability(usage, &driver)?);
        let (dir, target) = (self.layout.staging_dir(volume), self.layout.global_mount(volume));
        self.host.create_dir(&target).await.map_err(Fault::before("make the staging directory"))?;
        let data = vol_data::staging(volume);
        self.host.write_file(&data_file(&dir), &data).await.map_err(Fault::before("write the volume's metadata"))?;
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.to_string(),
            publish_context,
            staging_target_path: path_text(&target)?,
            volume_capability,
            secrets,
            volume_context: usage.attributes.clone(),
        };
        let call = async |channel, request| NodeClient::new(channel).node_stage_volume(request).await;
        caller.call(STAGE, request, call).await.map(drop).map_err(Fault::call(STAGE))
    }

    async fn try_publish(&self, usage: &Use, pod: &Pod) -> Result<(), Fault> {
        let volume = &usage.volume;
        let (driver, caller) = self.driver(volume)?;
        let publish_context = self.publish_context(volume).await?;
        let secrets = caller.secrets(usage.publish_secret.as_ref()).await.map_err(Fault::unsent)?;
        let volume_capability = Some(capability(usage, &driver)?);
        let mut volume_context = usage.attributes.clone();
        let csi_driver = self.caches.csi_drivers.get(&Key::cluster(&volume.driver));
        if csi_driver.is_some_and(|driver| driver.spec.pod_info_on_mount) {
            volume_context.extend(pod_info(pod));
        }
        let staging_target_path = match driver.stages() {
            true => path_text(&self.layout.global_mount(volume))?,
            false => String::new(),
        };
        let dir = self.layout.pod_volume(&pod.meta.uid, &usage.spec_name);
        // The target itself is the driver's to make.
        self.host.create_dir(&dir).await.map_err(Fault::before("make the pod's volume directory"))?;
        let data = vol_data::publishing(volume, &usage.spec_name, &self.options.node_name);
        self.host.write_file(&data_file(&dir), &data).await.map_err(Fault::before("write the volume's metadata"))?;
        let request = NodePublishVolumeRequest {
            volume_id: volume.handle.to_string(),
            publish_context,
            staging_target_path,
            target_path: path_text(&self.layout.pod_mount(&pod.meta.uid, &usage.spec_name))?,
            volume_capability,
            readonly: usage.read_only,
            secrets,
            volume_context,
        };
        let call = async |channel, request| NodeClient::new(channel).node_publish_volume(request).await;
        caller.call(PUBLISH, request, call).await.map(drop).map_err(Fault::call(PUBLISH))
    }

    async fn try_unpublish(&self, volume: &VolumeId, uid: &str, spec_name: &str) -> Result<(), Fault> {
        let (_, caller) = self.driver(volume)?;
        let (dir, target) = (self.layout.pod_volume(uid, spec_name), self.layout.pod_mount(uid, spec_name));
        let request =
            NodeUnpublishVolumeRequest { volume_id: volume.handle.to_string(), target_path: path_text(&target)? };
        let call = async |channel, request| NodeClient::new(channel).node_unpublish_volume(request).await;
        caller.call(UNPUBLISH, request, call).await.map_err(Fault::call(UNPUBLISH))?;
        self.clean_up(&dir, &target).await
    }

    async fn try_unstage(&self, volume: &VolumeId) -> Result<(), Fault> {
        let (driver, caller) = self.driver(volume)?;
        let (dir, target) = (self.layout.staging_dir(volume), self.layout.global_mount(volume));
        if driver.stages() {
            let staging_target_path = path_text(&target)?;
            let request = NodeUnstageVolumeRequest { volume_id: volume.handle.to_string(), staging_target_path };
            let call = async |channel, request| NodeClient::new(channel).node_unstage_volume(request).await;
            caller.call(UNSTAGE, request, call).await.map_err(Fault::call(UNSTAGE))?;
        }
        self.clean_up(&dir, &target).await
    }

    /// Removes a mount's directories and metadata once the kernel says that it is gone, the metadata second to last:
    /// as long as it is there a restart comes back here.
    async fn clean_up(&self, dir: &Path, target: &Path) -> Result<(), Fault> {
        let table = self.host.mounts().await.map_err(Fault::after("read the mount table"))?;
        let spelled = self.host.resolve(target).await.map_err(Fault::after("resolve the mount point"))?;
        if spelled.is_some_and(|spelled| table.at(&spelled).is_some()) {
            return Err(Fault::After(format!("the driver said it unmounted {}, but it is mounted", target.display())));
        }
        self.host.remove_dir(target).await.map_err(Fault::after("remove the mount point"))?;
        self.host.remove_file(&data_file(dir)).await.map_err(Fault::after("remove the volume's metadata"))?;
        self.host.remove_dir(dir).await.map_err(Fault::after("remove the volume's directory"))
    }

    /// After a final error nothing should be mounted; says what is left if that is not so.
    async fn after_final_error(&self, dir: &Path, target: &Path) -> Result<(), String> {
        self.clean_up(dir, target).await.map_err(|fault| fault.to_string())
    }

    /// The registered driver, and the way to call it.
    fn driver(&self, volume: &VolumeId) -> Result<(DriverInfo, Caller), Fault> {
        let Some(driver) = self.state.read(|world| world.driver(&volume.driver).cloned()) else {
            return Err(Fault::Before(format!("driver {} is not registered on this node", volume.driver)));
        };
        let caller = Caller::new(self.context.clone(), driver.channel, &volume.driver, self.options.call_timeout);
        Ok((driver.info, caller))
    }

    /// What attaching told the node; read live, because the attachment may be newer than the Node that lists it.
    async fn publish_context(&self, volume: &VolumeId) -> Result<BTreeMap<String, String>, Fault> {
        if !self.attaches(&volume.driver) {
            return Ok(BTreeMap::new());
        }
        let name = volume.attachment(&self.options.node_name);
        let attachment = match self.context.api.get::<VolumeAttachment>(&Key::cluster(&name)).await {
            Ok(Some(attachment)) => attachment,
            Ok(None) => return Err(Fault::Before(format!("VolumeAttachment {name} does not exist"))),
            Err(error) => return Err(Fault::Before(error.to_string())),
        };
        if attachment.meta.is_deleting() {
            return Err(Fault::Before(format!("VolumeAttachment {name} is being deleted")));
        }
        if !attachment.status.attached {
            let cause = attachment.status.attach_error.map(|error| format!(": {}", error.message)).unwrap_or_default();
            return Err(Fault::Before(format!("VolumeAttachment {name} is not attached{cause}")));
        }
        Ok(attachment.status.attachment_metadata)
    }

    fn tell_failure(&self, usage: &Use, pod: &ObjectRef, fault: &Fault) {
        let message = format!("volume {:?} ({}): {fault}", usage.pod_volume, usage.spec_name);
        tracing::warn!(pod = %pod.key, volume = %usage.volume, error = %fault, "mounting failed");
        self.recorder.record(pod, Note::warning("FailedMount", message));
    }
}

#[cfg(test)]
mod tests;
