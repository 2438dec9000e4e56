//! A volume for one pod: publishing and unpublishing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::json;

use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use stowage_model::csi_driver::{CsiDriver, LifecycleMode};
use stowage_model::names::VolumeHandle;
use stowage_model::object::Key;
use stowage_model::pod::Pod;
use stowage_model::volume_source::VolumeSource;
use stowage_runtime::caller::Caller;

use crate::fault::{Certainty, Fault};
use crate::host::{RegisteredDriver, VolumeHost};
use crate::plugin::{IsSetUp, SetUp, TearDown, VolumeMounter, VolumeUnmounter};
use crate::spec::VolumeSpec;
use crate::tokens::Wanted;

use super::cleaning::clean_up;
use super::data::{PodData, VolumeData};
use super::request::{capability, pod_info};
use super::{
    Csi, PUBLISH, UNPUBLISH, check_lifecycle, data_file, driver_of, global_mount, handle_of, ownership, path_text,
    pod_dir, pod_mount, publish_context, secret_key, stages,
};

/// A kubelet looks at each pod after a minute, lengthened by up to half of one.
const REPUBLISH_EVERY: Duration = Duration::from_secs(60);
const REPUBLISH_SPREAD: f64 = 0.5;

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

#[async_trait]
impl VolumeMounter for Csi {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let (spec, uid) = (request.spec, request.pod.meta.uid.as_str());
        let dir = pod_dir(&host.layout, uid, &spec.name);
        let target = pod_mount(&host.layout, uid, &spec.name);
        match publish(host, request).await {
            Ok(done) => {
                // From here on it is published whatever happens: a failure leaves it to be unpublished.
                let walked = ownership::give(host, request, &target).await;
                walked.map(|()| done).map_err(|fault| fault.with_certainty(Certainty::Uncertain))
            }
            Err(fault) if fault.certainty == Certainty::Final && !request.is_reconstructed && !request.is_remount => {
                match clean_up(host, &dir, &target).await {
                    Ok(()) => Err(fault),
                    Err(left) => {
                        let message = format!("{fault}; {left}");
                        Err(Fault { message, ..fault }.with_certainty(Certainty::Uncertain))
                    }
                }
            }
            Err(fault) => Err(fault),
        }
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        pod_mount(&host.layout, pod_uid, &spec.name)
    }
}

#[async_trait]
impl VolumeUnmounter for Csi {
    /// Everything it needs is beside the mount; without that nothing was published.
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        let dir = pod_dir(&host.layout, request.pod_uid, request.name);
        let target = pod_mount(&host.layout, request.pod_uid, request.name);
        let found = host.mounter.read_file(&data_file(&dir)).await;
        if let Some(bytes) = found.map_err(Fault::after("read the volume's metadata"))? {
            let data = VolumeData::parse(&bytes)
                .map_err(|error| Fault::uncertain(format!("{}: {error}", data_file(&dir).display())))?;
            let (_, caller) = host.driver(&data.driver)?;
            unpublish(&caller, &data.handle, &target).await?;
        }
        clean_up(host, &dir, &target).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![pod_mount(&host.layout, request.pod_uid, request.name)]
    }
}

async fn publish(host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
    let (spec, pod) = (request.spec, request.pod);
    let name = driver_of(spec)?;
    check_lifecycle(spec, name, host)?;
    let (driver, caller) = host.driver(name)?;
    let handle = handle_of(spec, &pod.meta.uid);
    let asked = Asked::of(host, request, name, &handle, &caller).await?;
    let staging_target_path = match (&spec.source, stages(&driver)) {
        (VolumeSource::Csi(_), true) => path_text(&global_mount(&host.layout, name, &handle))?,
        _ => String::new(),
    };
    let dir = pod_dir(&host.layout, &pod.meta.uid, &spec.name);
    // The target itself is the driver's to make.
    host.mounter.create_dir(&dir).await.map_err(Fault::before("make the pod's volume directory"))?;
    let data = pod_data(host, spec, name, &handle, request.se_linux_label);
    let written = host.mounter.write_file_with(&data_file(&dir), &data.encode(), super::DATA_MODE).await;
    written.map_err(Fault::before("write the volume's metadata"))?;
    let target = pod_mount(&host.layout, &pod.meta.uid, &spec.name);
    let again_at = asked.again_at;
    let call = asked.request(request, &driver, &handle, staging_target_path, path_text(&target)?);
    send_publish(&caller, call).await?;
    Ok(IsSetUp { again_at, device: None })
}

/// The Secret that publishing needs, where the volume names one.
pub fn publish_secret(spec: &VolumeSpec, pod: &Pod) -> Option<Key> {
    match &spec.source {
        VolumeSource::Csi(source) => source.node_publish_secret_ref.as_deref().map(secret_key),
        VolumeSource::CsiInline(source) => {
            let secret = source.node_publish_secret_ref.as_ref()?;
            Some(Key::namespaced(pod.meta.namespace.as_str(), secret.name.as_str()))
        }
        _ => None,
    }
}

pub async fn send_publish(caller: &Caller, call: NodePublishVolumeRequest) -> Result<(), Fault> {
    let send = async |channel, request| NodeClient::new(channel).node_publish_volume(request).await;
    caller.call(PUBLISH, call, send).await.map(drop).map_err(Fault::call(PUBLISH))
}

pub async fn unpublish(caller: &Caller, handle: &VolumeHandle, target: &std::path::Path) -> Result<(), Fault> {
    let call = NodeUnpublishVolumeRequest { volume_id: handle.to_string(), target_path: path_text(target)? };
    let send = async |channel, request| NodeClient::new(channel).node_unpublish_volume(request).await;
    caller.call(UNPUBLISH, call, send).await.map(drop).map_err(Fault::call(UNPUBLISH))
}

fn pod_data(
    host: &VolumeHost,
    spec: &VolumeSpec,
    driver: &str,
    handle: &VolumeHandle,
    label: Option<&str>,
) -> VolumeData {
    let lifecycle = match spec.source {
        VolumeSource::CsiInline(_) => LifecycleMode::Ephemeral,
        _ => LifecycleMode::Persistent,
    };
    VolumeData {
        driver: driver.to_owned(),
        handle: handle.clone(),
        pod: Some(PodData { spec_name: spec.name.clone(), node: host.node_name.clone(), lifecycle: Some(lifecycle) }),
        label: label.map(str::to_owned),
    }
}

/// What publishing tells the driver besides paths and capability.
pub struct Asked {
    publish_context: BTreeMap<String, String>,
    volume_context: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    /// When the driver is to be told again: the first of the tokens should be renewed, or it asked to be told now and then.
    again_at: Option<Timestamp>,
}

impl Asked {
    /// Reads all of it; nothing has been begun when that fails.
    pub async fn of(
        host: &VolumeHost,
        request: &SetUp<'_>,
        name: &str,
        handle: &VolumeHandle,
        caller: &Caller,
    ) -> Result<Self, Fault> {
        let (spec, pod) = (request.spec, request.pod);
        let object = host.drivers.object(name);
        let attributes = match &spec.source {
            VolumeSource::Csi(source) => &source.volume_attributes,
            VolumeSource::CsiInline(source) => &source.volume_attributes,
            other => return Err(Fault::refused(format!("volume {}: source {other} is not a CSI volume", spec.name))),
        };
        let publish_context = publish_context(spec, name, handle, host)?;
        let mut secrets = caller.secrets(publish_secret(spec, pod).as_ref()).await.map_err(Fault::unsent)?;
        let mut volume_context = attributes.clone();
        if object.as_ref().is_some_and(|driver| driver.spec.pod_info_on_mount) {
            volume_context.extend(pod_info(pod, matches!(spec.source, VolumeSource::CsiInline(_))));
        }
        let republished = object.as_ref().filter(|driver| driver.spec.requires_republish);
        // Only the driver knows whether what it shows has changed, so it is asked now and then.
        let pause = || host.context.random.jitter(REPUBLISH_EVERY, REPUBLISH_SPREAD);
        let mut again_at = republished.and_then(|_| host.context.clock.now().checked_add(pause()).ok());
        // Devices get no tokens: nothing could renew them.
        if let Some(object) = object.filter(|driver| !driver.spec.token_requests.is_empty() && !spec.is_block()) {
            let (text, renew_at) = tokens(host, pod, &object).await?;
            again_at = again_at.map(|at| renew_at.into_iter().chain([at]).min().unwrap_or(at));
            let place = match object.spec.service_account_token_in_secrets {
                true => &mut secrets,
                false => &mut volume_context,
            };
            place.insert(TOKENS.to_owned(), text);
        }
        Ok(Self { publish_context, volume_context, secrets, again_at })
    }

    /// The request with these paths.
    pub fn request(
        self,
        request: &SetUp<'_>,
        driver: &RegisteredDriver,
        handle: &VolumeHandle,
        staging_target_path: String,
        target_path: String,
    ) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: handle.to_string(),
            publish_context: self.publish_context,
            staging_target_path,
            target_path,
            volume_capability: Some(capability(request.spec, driver, request.fs_group, request.se_linux_label)),
            readonly: request.spec.read_only,
            secrets: self.secrets,
            volume_context: self.volume_context,
        }
    }
}

/// The tokens a driver asks for, by audience, and when the first of them should be renewed.
async fn tokens(host: &VolumeHost, pod: &Pod, driver: &CsiDriver) -> Result<(String, Option<Timestamp>), Fault> {
    let mut by_audience = serde_json::Map::new();
    let mut renew_at: Option<Timestamp> = None;
    for wanted in &driver.spec.token_requests {
        let asked = Wanted { audience: wanted.audience.clone(), expiration_seconds: wanted.expiration_seconds };
        let token = host.tokens.get(&host.context, pod, &asked).await;
        let token = token.map_err(|error| Fault::transient(error.to_string()))?;
        renew_at = renew_at.into_iter().chain([token.renew_at]).min();
        let expires = stowage_runtime::events::seconds(token.expires_at);
        let status = json!({ "token": token.token, "expirationTimestamp": expires });
        by_audience.insert(wanted.audience.clone(), status);
    }
    Ok((serde_json::Value::Object(by_audience).to_string(), renew_at))
}
