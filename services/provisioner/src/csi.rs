//! The CSI provisioner: CreateVolume, DeleteVolume and GetCapacity of a driver, as any provisioner makes and deletes.

use tonic::async_trait;

use stowage_csi::channel::Unreachable;
use stowage_csi::code::{Family, Outcome};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{
    CreateVolumeResponse, DeleteVolumeRequest, GetCapacityRequest, GetCapacityResponse, Topology, Volume,
};
use stowage_model::access_mode::AccessMode;
use stowage_model::names::VolumeHandle;
use stowage_model::topology::Segments;
use stowage_runtime::caller::{Caller, Refused, Rpc, Secrets};
use stowage_runtime::operation::Failure;

use crate::intent::{Intent, Made, SecretRef};
use crate::library::{DeleteOptions, ProvisionOptions, Provisioned, Provisioner};
use crate::migrated;

const CREATE_VOLUME: Rpc = Rpc { path: "/csi.v1.Controller/CreateVolume", family: Family::CreateVolume };
const DELETE_VOLUME: Rpc = Rpc { path: "/csi.v1.Controller/DeleteVolume", family: Family::Delete };
const GET_CAPACITY: Rpc = Rpc { path: "/csi.v1.Controller/GetCapacity", family: Family::Read };

/// One driver.
pub struct Csi(pub Caller);

#[async_trait]
impl Provisioner for Csi {
    async fn provision(&self, options: ProvisionOptions) -> Provisioned {
        let intent = &*options.intent;
        let secrets = match self.secrets(intent.secrets.provisioner.as_ref()).await {
            Ok(secrets) => secrets,
            Err(failure) => return Provisioned::NoChange(failure),
        };
        let request = intent.create_volume(secrets.clone());
        let caller = self.0.for_migrated(intent.class.plugin.is_some());
        let answer = caller.call(CREATE_VOLUME, request, async |channel, request| {
            ControllerClient::new(channel).create_volume(request).await
        });
        let refused = match answer.await {
            Ok(answer) => return self.check(intent, answer, secrets).await,
            Err(refused) => refused,
        };
        let failure = refused.failure();
        match refused {
            Refused::Unsent(_) => Provisioned::NoChange(failure),
            // Nobody was there to take it.
            Refused::Answered { status, .. } if Unreachable::in_status(&status).is_some() => {
                Provisioned::NoChange(failure)
            }
            Refused::Answered { outcome, .. } if outcome.may_be_running() => Provisioned::InBackground(failure),
            Refused::Answered { outcome: Outcome::Reschedule, .. } => Provisioned::Reschedule(failure),
            Refused::Answered { .. } => Provisioned::Finished(Err(failure)),
        }
    }

    async fn delete(&self, options: DeleteOptions) -> Result<(), Failure> {
        let secrets = match self.secrets(options.secret.as_ref()).await {
            Ok(secrets) => secrets,
            // The secret often goes together with its user's namespace; most drivers delete without it.
            Err(failure) => {
                tracing::warn!(handle = %options.handle, reason = failure.message, "DeleteVolume goes without its secret");
                Secrets::new()
            }
        };
        Self(self.0.for_migrated(options.location.is_some())).delete_volume(&options.handle, secrets).await
    }

    /// The driver judges the modes itself.
    fn supports_access_mode(&self, _mode: AccessMode) -> bool {
        true
    }

    fn supports_block(&self) -> bool {
        true
    }

    /// One that will not say is tried.
    async fn has_room(&self, options: ProvisionOptions, place: Segments) -> Result<bool, Failure> {
        let call = options.intent.create_volume(Secrets::new());
        let request = GetCapacityRequest {
            volume_capabilities: call.volume_capabilities,
            parameters: call.parameters,
            accessible_topology: Some(Topology { segments: place }),
        };
        let answer = self.0.call(GET_CAPACITY, request, async |channel, request| {
            ControllerClient::new(channel).get_capacity(request).await
        });
        match answer.await {
            Ok(answer) => Ok(fits(&answer, options.bytes)),
            Err(Refused::Unsent(failure)) => Err(failure),
            Err(Refused::Answered { .. }) => Ok(true),
        }
    }
}

impl Csi {
    /// A volume that is not what was asked for is deleted at once, and asked for again later.
    async fn check(&self, intent: &Intent, answer: CreateVolumeResponse, secrets: Secrets) -> Provisioned {
        let broken = |message: String| Failure { code: "Broken".into(), message };
        let volume = answer.volume.unwrap_or_default();
        if volume.volume_id.is_empty() {
            return Provisioned::InBackground(broken("the driver answered without a volume id".into()));
        }
        let (asked, got) = (intent.request.bytes, volume.capacity_bytes);
        if let Some(message) = misfit(intent, &volume) {
            return match self.delete_volume(&volume.volume_id.into(), secrets).await {
                Ok(()) => Provisioned::Finished(Err(broken(format!("{message}; it was deleted again")))),
                Err(why) => {
                    let message = format!("{message}; deleting it again failed: {}", why.message);
                    Provisioned::InBackground(broken(message))
                }
            };
        }
        Provisioned::Finished(Ok(Made {
            handle: volume.volume_id.into(),
            bytes: if got == 0 { asked } else { got },
            context: volume.volume_context,
            topology: volume.accessible_topology.into_iter().map(|place| place.segments).collect(),
            location: None,
        }))
    }

    async fn delete_volume(&self, handle: &VolumeHandle, secrets: Secrets) -> Result<(), Failure> {
        let request = DeleteVolumeRequest { volume_id: handle.to_string(), secrets };
        let answer = self.0.call(DELETE_VOLUME, request, async |channel, request| {
            ControllerClient::new(channel).delete_volume(request).await
        });
        answer.await.map(drop).map_err(|refused| refused.failure())
    }

    async fn secrets(&self, secret: Option<&SecretRef>) -> Result<Secrets, Failure> {
        self.0.secrets(secret.map(SecretRef::key).as_ref()).await
    }
}

/// What is wrong with the volume that the driver made.
fn misfit(intent: &Intent, volume: &Volume) -> Option<String> {
    let (asked, got, id) = (intent.request.bytes, volume.capacity_bytes, &volume.volume_id);
    if got != 0 && got < asked {
        return Some(format!("the driver made volume {id:?} of {got} bytes where {asked} were asked"));
    }
    if let Some(plugin) = &intent.class.plugin
        && let Err(error) = migrated::check(volume, plugin)
    {
        return Some(format!("the driver made volume {id:?} for a class of {plugin}: {error}"));
    }
    // A driver that knows no sources ignores the field, and its volume is empty.
    let source = intent.request.source.as_ref().filter(|_| volume.content_source.is_none())?;
    Some(format!("the driver made volume {id:?} without a content source where {} was asked", source.origin()))
}

/// All the room there is may be in pieces, none of which is large enough; 0 is a driver that says nothing about them.
fn fits(room: &GetCapacityResponse, bytes: i64) -> bool {
    let largest = room.maximum_volume_size.filter(|bytes| *bytes > 0).unwrap_or(i64::MAX);
    room.available_capacity.min(largest) >= bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_must_fit_into_one_piece_of_the_room() {
        let room = |available_capacity, maximum_volume_size| GetCapacityResponse {
            available_capacity,
            maximum_volume_size,
            ..Default::default()
        };
        assert!(fits(&room(10, None), 10) && fits(&room(10, Some(0)), 10) && fits(&room(20, Some(10)), 10));
        assert!(!fits(&room(10, None), 11) && !fits(&room(20, Some(10)), 11) && !fits(&room(10, Some(20)), 11));
    }
}
