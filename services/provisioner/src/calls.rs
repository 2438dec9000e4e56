//! The driver calls, each as one operation: it waits for its turn, fetches its secrets, calls, and reads the answer.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Code;

use stowage_csi::channel::Unreachable;
use stowage_csi::code::Family;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{
    CreateVolumeResponse, DeleteVolumeRequest, GetCapacityRequest, GetCapacityResponse, Topology, Volume,
};
use stowage_model::names::VolumeHandle;
use stowage_model::object::ObjectRef;
use stowage_model::topology::Segments;
use stowage_runtime::caller::{Caller, NO_SECRET, Refused, Rpc, Secrets};
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::operation::{Ended, Failure};

use crate::facts::Facts;
use crate::intent::{Intent, Made, SecretRef};
use crate::journal::Journal;
use crate::metrics::Metrics;

const CREATE_VOLUME: Rpc = Rpc { path: "/csi.v1.Controller/CreateVolume", family: Family::CreateVolume };
const DELETE_VOLUME: Rpc = Rpc { path: "/csi.v1.Controller/DeleteVolume", family: Family::Delete };
const GET_CAPACITY: Rpc = Rpc { path: "/csi.v1.Controller/GetCapacity", family: Family::Read };

/// What a call needs; cheap to clone, so that it can outlive the action that starts it.
#[derive(Clone)]
pub struct Calls {
    pub caller: Caller,
    pub facts: Arc<Facts>,
    pub journal: Journal,
    pub recorder: Recorder,
    /// Turns for creations and for deletions, as many as there are workers.
    creating: Arc<Semaphore>,
    deleting: Arc<Semaphore>,
    metrics: Metrics,
}

impl Calls {
    pub fn new(caller: Caller, facts: Arc<Facts>, journal: Journal, recorder: Recorder, metrics: Metrics) -> Self {
        let turns = || Arc::new(Semaphore::new(facts.options.driver.workers));
        let (creating, deleting) = (turns(), turns());
        Self { caller, facts, journal, recorder, creating, deleting, metrics }
    }

    /// CreateVolume, for a claim that waits or to learn what became of an earlier call.
    pub async fn create(self, intent: Arc<Intent>, wanted: bool) -> Ended<Made> {
        let claim = intent.claim.reference();
        if wanted {
            let message = format!("volume {} is being made by driver {:?}", intent.volume, self.facts.driver);
            self.recorder.record(&claim, Note::normal("Provisioning", message));
        }
        let ended = self.try_create(&intent).await;
        if let Ended::Failed(failure) | Ended::Uncertain(failure) = &ended {
            tracing::warn!(claim = %claim.key, volume = intent.volume, code = failure.code, message = failure.message, "CreateVolume");
            if wanted {
                let message = format!(
                    "cannot make volume {} of StorageClass {:?}: {}: {}; {}",
                    intent.volume,
                    intent.class.name,
                    failure.code,
                    failure.message,
                    self.way_out(&failure.code, &intent)
                );
                self.recorder.record(&claim, Note::warning("ProvisioningFailed", message));
            }
        }
        ended
    }

    async fn try_create(&self, intent: &Intent) -> Ended<Made> {
        let _turn = self.creating.acquire().await;
        let secrets = match self.secrets(intent.secrets.provisioner.as_ref()).await {
            Ok(secrets) => secrets,
            Err(failure) => return Ended::Failed(failure),
        };
        let uid = &intent.claim.uid;
        let mut maybe_made_before = false;
        let request = intent.create_volume(secrets.clone());
        let answer = self.caller.call(CREATE_VOLUME, request, async |channel, request| {
            // Only here, where the lease has been checked: a call that is not sent leaves the record as it was.
            maybe_made_before = self.journal.call_sent(uid);
            ControllerClient::new(channel).create_volume(request).await
        });
        let refused = match answer.await {
            Ok(answer) => return self.check(intent, answer, secrets).await,
            Err(refused) => refused,
        };
        match &refused {
            Refused::Unsent(_) => {}
            Refused::Answered { status, outcome } if outcome.may_be_running() => {
                if Unreachable::in_status(status).is_some() {
                    self.journal.call_not_taken(uid, maybe_made_before);
                }
            }
            Refused::Answered { status, .. } if !maybe_made_before || proves_nothing_made(status.code()) => {
                self.journal.certainly_not_made(uid);
            }
            Refused::Answered { status, .. } => {
                self.metrics.unsettled_answers.inc();
                tracing::warn!(
                    claim = %intent.claim.key(),
                    volume = intent.volume,
                    code = ?status.code(),
                    "an earlier CreateVolume may have made the volume, and this answer does not tell; it is asked \
                     again until the driver does"
                );
            }
        }
        refused.ended()
    }

    /// Whether the driver has room for the volume here. One that will not say is tried.
    pub async fn has_room(self, intent: Arc<Intent>, place: Segments) -> Ended<bool> {
        let call = intent.create_volume(Secrets::new());
        let request = GetCapacityRequest {
            volume_capabilities: call.volume_capabilities,
            parameters: call.parameters,
            accessible_topology: Some(Topology { segments: place }),
        };
        let answer = self.caller.call(GET_CAPACITY, request, async |channel, request| {
            ControllerClient::new(channel).get_capacity(request).await
        });
        match answer.await {
            Ok(answer) => Ended::Done(fits(&answer, intent.request.bytes)),
            Err(Refused::Unsent(failure)) => Ended::Failed(failure),
            Err(Refused::Answered { .. }) => Ended::Done(true),
        }
    }

    /// A volume that is not what was asked for is deleted at once, and asked for again later.
    async fn check(&self, intent: &Intent, answer: CreateVolumeResponse, secrets: Secrets) -> Ended<Made> {
        let broken = |message: String| Failure { code: "Broken".into(), message };
        let volume = answer.volume.unwrap_or_default();
        if volume.volume_id.is_empty() {
            return Ended::Uncertain(broken("the driver answered without a volume id".into()));
        }
        let (asked, got) = (intent.request.bytes, volume.capacity_bytes);
        if let Some(message) = misfit(intent, &volume) {
            return match self.delete_volume(&volume.volume_id.into(), secrets).await {
                Ended::Done(()) => {
                    self.journal.certainly_not_made(&intent.claim.uid);
                    Ended::Failed(broken(format!("{message}; it was deleted again")))
                }
                Ended::Failed(why) | Ended::Uncertain(why) => {
                    Ended::Uncertain(broken(format!("{message}; deleting it again failed: {}", why.message)))
                }
            };
        }
        Ended::Done(Made {
            handle: volume.volume_id.into(),
            bytes: if got == 0 { asked } else { got },
            context: volume.volume_context,
            topology: volume.accessible_topology.into_iter().map(|place| place.segments).collect(),
        })
    }

    /// DeleteVolume; `done` is the operation's result. With `about`, a failure is told there.
    pub async fn delete<T>(
        self,
        handle: VolumeHandle,
        secret: Option<SecretRef>,
        about: Option<ObjectRef>,
        done: T,
    ) -> Ended<T> {
        let ended = self.try_delete(&handle, secret).await;
        if let Ended::Failed(failure) | Ended::Uncertain(failure) = &ended {
            tracing::warn!(%handle, code = failure.code, message = failure.message, "DeleteVolume");
            if let Some(about) = about {
                let Failure { code, message } = failure;
                let message = format!(
                    "cannot delete volume {:?} in driver {:?}: {code}: {message}; it is tried again until it works",
                    handle.as_str(),
                    self.facts.driver
                );
                self.recorder.record(&about, Note::warning("VolumeFailedDelete", message));
            }
        }
        match ended {
            Ended::Done(()) => Ended::Done(done),
            Ended::Failed(failure) => Ended::Failed(failure),
            Ended::Uncertain(failure) => Ended::Uncertain(failure),
        }
    }

    async fn try_delete(&self, handle: &VolumeHandle, secret: Option<SecretRef>) -> Ended<()> {
        let _turn = self.deleting.acquire().await;
        let secrets = match self.secrets(secret.as_ref()).await {
            Ok(secrets) => secrets,
            // The secret often goes together with its user's namespace; most drivers delete without it.
            Err(failure) => {
                tracing::warn!(%handle, reason = failure.message, "DeleteVolume goes without its secret");
                Secrets::new()
            }
        };
        self.delete_volume(handle, secrets).await
    }

    async fn delete_volume(&self, handle: &VolumeHandle, secrets: Secrets) -> Ended<()> {
        let request = DeleteVolumeRequest { volume_id: handle.to_string(), secrets };
        let answer = self.caller.call(DELETE_VOLUME, request, async |channel, request| {
            ControllerClient::new(channel).delete_volume(request).await
        });
        match answer.await {
            Ok(_) => Ended::Done(()),
            Err(refused) => refused.ended(),
        }
    }

    async fn secrets(&self, secret: Option<&SecretRef>) -> Result<Secrets, Failure> {
        self.caller.secrets(secret.map(SecretRef::key).as_ref()).await
    }

    /// What the claim's user or the administrator can do about a failed CreateVolume.
    fn way_out(&self, code: &str, intent: &Intent) -> String {
        match code {
            "InvalidArgument" => format!(
                "correct the parameters of StorageClass {:?} by creating it anew, or the claim; unchanged it is tried \
                 again every five minutes",
                intent.class.name
            ),
            "OutOfRange" => format!("ask for another size than {} bytes", intent.request.bytes),
            "ResourceExhausted" => {
                format!("free space in the driver's pool, or ask for less than {} bytes", intent.request.bytes)
            }
            "NotFound" if intent.request.source.is_some() => {
                let source =
                    intent.request.source.as_ref().map(|source| format!("{:?} of {}", source.handle, source.origin()));
                format!("the driver has lost {}; claim from another source", source.unwrap_or_default())
            }
            "AlreadyExists" => format!("remove the other volume named {} from the driver", intent.volume),
            "Unavailable" => {
                format!("check that the driver runs and listens at {}", self.facts.options.driver.csi_address)
            }
            "DeadlineExceeded" => "the same request is sent again; raise --timeout if the driver needs longer".into(),
            "Unauthenticated" | "PermissionDenied" => "check the provisioner secret of the StorageClass".into(),
            NO_SECRET => "create the secret that the StorageClass names, and let the provisioner read it".into(),
            _ => "it is tried again; see the driver's log".into(),
        }
    }
}

/// What is wrong with the volume that the driver made.
fn misfit(intent: &Intent, volume: &Volume) -> Option<String> {
    let (asked, got, id) = (intent.request.bytes, volume.capacity_bytes, &volume.volume_id);
    if got != 0 && got < asked {
        return Some(format!("the driver made volume {id:?} of {got} bytes where {asked} were asked"));
    }
    // A driver that knows no sources ignores the field, and its volume is empty.
    let source = intent.request.source.as_ref().filter(|_| volume.content_source.is_none())?;
    Some(format!("the driver made volume {id:?} without a content source where {} was asked", source.origin()))
}

/// Codes that judge the request itself or the room for it: a driver that had made the volume would have found it first.
fn proves_nothing_made(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted)
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
