//! The node's own VolumeAttachments, where no controller attaches for it: the wish is an object that the driver's
//! attacher fulfils, and is watched until it is.

use async_trait::async_trait;
use serde_json::json;
use tokio::time::timeout;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::object::Key;
use stowage_model::volume_source::VolumeSource;
use stowage_runtime::api::{self, Deletion, Target};

use crate::fault::Fault;
use crate::host::{Attachments, VolumeHost};
use crate::plugin::VolumeAttacher;
use crate::spec::VolumeSpec;

use super::{Csi, driver_of};

#[async_trait]
impl VolumeAttacher for Csi {
    async fn attach(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<String, Fault> {
        let (driver, key) = (driver_of(spec)?, key_of(spec, host)?);
        // A disk that the pod names itself has no object that could be named here.
        if spec.persistent.as_ref().is_none_or(|persistent| persistent.claim == Key::default()) {
            return Err(Fault::refused(format!(
                "volume {spec} has no PersistentVolume; only the attach-detach controller attaches such a disk"
            )));
        }
        let mut attachments = attachments(host)?;
        let current = host.context.api.refresh(&attachments.cache, &key).await.map_err(unread(&key))?;
        // One that goes is not the wish any more: the driver is about to detach, and has to be asked anew.
        let is_going = current.is_some_and(|current| current.meta.is_deleting());
        if is_going {
            until(host, &mut attachments, &key, is_gone).await?;
        }
        if attachments.cache.get(&key).is_none() {
            create(host, &attachments, &key, driver, spec).await?;
        }
        until(host, &mut attachments, &key, |found| is_attached(&key, found)).await?;
        // The driver finds the device by what its attacher has told it.
        Ok(String::new())
    }

    async fn detach(&self, host: &VolumeHost, volume: &UniqueVolumeName) -> Result<(), Fault> {
        let Some((driver, handle)) = volume.driver_and_handle() else { return Ok(()) };
        let key = Key::cluster(names::attachment(handle.as_str(), driver, &host.node_name));
        let mut attachments = attachments(host)?;
        let current = host.context.api.refresh(&attachments.cache, &key).await.map_err(unread(&key))?;
        let Some(current) = current else { return Ok(()) };
        if !current.meta.is_deleting() {
            let target = Target::any_version(&current.meta);
            let deleted = host.context.api.delete(&attachments.cache, &target, Deletion::default()).await;
            deleted.map_err(|error| Fault::uncertain(format!("delete VolumeAttachment {}: {error}", key.name)))?;
        }
        until(host, &mut attachments, &key, is_gone).await
    }

    fn is_attached(&self, host: &VolumeHost, spec: &VolumeSpec) -> bool {
        let (Some(attachments), Ok(key)) = (host.drivers.attachments(), key_of(spec, host)) else { return false };
        let found = attachments.cache.get(&key);
        found.is_some_and(|found| found.status.attached && !found.meta.is_deleting())
    }
}

fn key_of(spec: &VolumeSpec, host: &VolumeHost) -> Result<Key, Fault> {
    let VolumeSource::Csi(source) = &spec.source else {
        return Err(Fault::refused(format!("volume {spec} lives as long as its pod and is not attached")));
    };
    Ok(Key::cluster(names::attachment(&source.volume_handle, &source.driver, &host.node_name)))
}

fn attachments(host: &VolumeHost) -> Result<Attachments, Fault> {
    host.drivers.attachments().ok_or_else(|| Fault::refused("this node knows of no VolumeAttachments"))
}

fn unread(key: &Key) -> impl FnOnce(api::Error) -> Fault {
    let name = key.name.clone();
    move |error| Fault::transient(format!("read VolumeAttachment {name}: {error}"))
}

async fn create(
    host: &VolumeHost,
    attachments: &Attachments,
    key: &Key,
    driver: &str,
    spec: &VolumeSpec,
) -> Result<(), Fault> {
    let body = json!({
        "metadata": { "name": key.name },
        "spec": {
            "attacher": driver,
            "nodeName": host.node_name,
            "source": { "persistentVolumeName": spec.name },
        },
    });
    match host.context.api.create(&attachments.cache, body).await {
        Ok(_) => Ok(()),
        // Somebody was faster, perhaps this service itself before it was restarted.
        Err(error) if error.is_already_exists() => {
            host.context.api.refresh(&attachments.cache, key).await.map(drop).map_err(unread(key))
        }
        Err(error) => Err(Fault::uncertain(format!("create VolumeAttachment {}: {error}", key.name))),
    }
}

/// Whether the wait for an attachment is over, and how.
fn is_attached(key: &Key, found: Option<&VolumeAttachment>) -> Option<Result<(), Fault>> {
    let name = &key.name;
    match found {
        None => Some(Err(Fault::transient(format!("VolumeAttachment {name} was deleted")))),
        Some(found) if found.meta.is_deleting() => {
            Some(Err(Fault::transient(format!("VolumeAttachment {name} is being deleted"))))
        }
        Some(found) if found.status.attached => Some(Ok(())),
        Some(found) => found.status.attach_error.as_ref().map(|error| Err(Fault::uncertain(error.message.clone()))),
    }
}

fn is_gone(found: Option<&VolumeAttachment>) -> Option<Result<(), Fault>> {
    match found {
        None => Some(Ok(())),
        Some(found) if !found.meta.is_deleting() => Some(Ok(())),
        Some(found) => found.status.detach_error.as_ref().map(|error| Err(Fault::uncertain(error.message.clone()))),
    }
}

/// Waits until the attachment is what is looked for, as long as any driver's call may take.
async fn until(
    host: &VolumeHost,
    attachments: &mut Attachments,
    key: &Key,
    look: impl Fn(Option<&VolumeAttachment>) -> Option<Result<(), Fault>> + Send,
) -> Result<(), Fault> {
    let seen = timeout(host.call_timeout, async {
        loop {
            attachments.news.borrow_and_update();
            if let Some(result) = look(attachments.cache.get(key).as_deref()) {
                return result;
            }
            if attachments.news.changed().await.is_err() {
                return Err(Fault::uncertain("this service ends"));
            }
        }
    });
    seen.await.unwrap_or_else(|_| {
        let seconds = host.call_timeout.as_secs();
        Err(Fault::uncertain(format!("nobody has answered VolumeAttachment {} within {seconds} s", key.name)))
    })
}
