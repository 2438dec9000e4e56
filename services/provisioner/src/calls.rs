//! Making and deleting as operations: each waits for its turn, calls, and concludes from the answer what is known.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::Code;

use stowage_csi::code;
use stowage_model::object::ObjectRef;
use stowage_model::topology::Segments;
use stowage_runtime::Context;
use stowage_runtime::caller::{NO_LEASE, NO_SECRET, STOPPING};
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::operation::{Ended, Failure};

use crate::capacity::Signals;
use crate::facts::Facts;
use crate::intent::{Intent, Made};
use crate::journal::Journal;
use crate::library::{DeleteOptions, IGNORED, ProvisionOptions, Provisioned, Provisioner};
use crate::metrics::Metrics;

/// A call that ends so soon is told by its end alone: the claim has its volume, or the reason why not.
const SOON: Duration = Duration::from_secs(1);

/// What people can do while the request is kept as it is.
const UNSETTLED: &str = "an earlier call may have made the volume and this answer does not tell, so that the same request is \
                         sent again until the driver does; to change the request, delete the claim and create it anew";

/// What a call needs; cheap to clone, so that it can outlive the action that starts it.
#[derive(Clone)]
pub struct Calls {
    pub context: Context,
    pub facts: Arc<Facts>,
    pub journal: Journal,
    pub recorder: Recorder,
    provisioner: Arc<dyn Provisioner>,
    /// Turns for creations and for deletions, as many as there are workers.
    creating: Arc<Semaphore>,
    deleting: Arc<Semaphore>,
    pub metrics: Metrics,
    /// Whoever publishes how much room there is.
    pub signals: Signals,
}

impl Calls {
    pub fn new(
        context: Context,
        facts: Arc<Facts>,
        provisioner: Arc<dyn Provisioner>,
        journal: Journal,
        recorder: Recorder,
        metrics: Metrics,
        signals: Signals,
    ) -> Self {
        let turns = || Arc::new(Semaphore::new(facts.options.driver.workers));
        let (creating, deleting) = (turns(), turns());
        Self { context, facts, journal, recorder, provisioner, creating, deleting, metrics, signals }
    }

    /// CreateVolume, for a claim that waits or to learn what became of an earlier call.
    pub async fn create(self, intent: Arc<Intent>, wanted: bool) -> Ended<Made> {
        let claim = intent.claim.reference();
        let begin = self.context.clock.boottime();
        let mut call = pin!(self.try_create(&intent));
        let ended = match tokio::time::timeout(SOON, &mut call).await {
            Ok(ended) => ended,
            Err(_) => {
                if wanted {
                    let message = format!("volume {} is being made by driver {:?}", intent.volume, self.facts.driver);
                    self.recorder.record(&claim, Note::normal("Provisioning", message));
                }
                call.await
            }
        };
        if wanted {
            let took = self.context.clock.boottime().saturating_sub(begin);
            self.metrics.tried_to_make(&intent, matches!(ended, Ended::Done(_)), took);
        }
        match &ended {
            Ended::Done(made) => self.signals.made(&intent, made),
            Ended::Failed(failure) | Ended::Uncertain(failure) if code::from_name(&failure.code).is_some() => {
                self.signals.failed(&intent);
            }
            // It never got to the driver.
            Ended::Failed(_) | Ended::Uncertain(_) => {}
        }
        if let Ended::Failed(failure) | Ended::Uncertain(failure) = &ended {
            tracing::warn!(claim = %claim.key, volume = intent.volume, code = failure.code, message = failure.message, "CreateVolume");
            if wanted {
                let message = format!(
                    "cannot make volume {} of StorageClass {:?}: {}: {}; {}",
                    intent.volume,
                    intent.class.name,
                    failure.code,
                    failure.message,
                    if self.is_unsettled(&ended, &intent) {
                        UNSETTLED.into()
                    } else {
                        self.way_out(&failure.code, &intent)
                    }
                );
                self.recorder.record(&claim, Note::warning("ProvisioningFailed", message));
            }
        }
        ended
    }

    async fn try_create(&self, intent: &Arc<Intent>) -> Ended<Made> {
        let _turn = self.creating.acquire().await;
        // Calls that wait for their turn must neither outlive the lease nor keep a stop waiting.
        if let Err(failure) = self.may_call() {
            return Ended::Failed(failure);
        }
        let uid = &intent.claim.uid;
        // At the end of a run records that wait are taken off their pages.
        let Some(may_exist) = self.journal.call_sent(uid) else {
            let message = "its record is not stored any more, and without it no call is made".to_owned();
            return Ended::Failed(Failure { code: STOPPING.into(), message });
        };
        let provisioned = self.provision(ProvisionOptions::new(Arc::clone(intent), may_exist)).await;
        match provisioned {
            Provisioned::Finished(Ok(made)) => Ended::Done(made),
            Provisioned::Finished(Err(failure)) => self.not_made(intent, may_exist, failure),
            Provisioned::Reschedule(failure) => {
                let code = code::name(Code::ResourceExhausted).to_owned();
                self.not_made(intent, may_exist, Failure { code, ..failure })
            }
            Provisioned::InBackground(failure) => Ended::Uncertain(failure),
            Provisioned::NoChange(failure) => {
                self.journal.call_not_taken(uid, may_exist);
                if may_exist { Ended::Uncertain(failure) } else { Ended::Failed(failure) }
            }
        }
    }

    async fn provision(&self, options: ProvisionOptions) -> Provisioned {
        let call = self.provisioner.provision(options);
        let limit = self.facts.options.driver.timeout;
        // Each call to a driver has its deadline.
        if !self.facts.library || limit.is_zero() {
            return call.await;
        }
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            let code = code::name(Code::DeadlineExceeded).to_owned();
            Provisioned::InBackground(Failure { code, message: format!("cancelled after {} s", limit.as_secs()) })
        })
    }

    /// The last word about this try, which may leave open what became of an earlier one.
    fn not_made(&self, intent: &Intent, may_exist: bool, failure: Failure) -> Ended<Made> {
        if !may_exist || proves_nothing_made(&failure.code) {
            self.journal.certainly_not_made(&intent.claim.uid);
        } else {
            self.metrics.unsettled_answers.inc();
            tracing::warn!(
                claim = %intent.claim.key(),
                volume = intent.volume,
                code = failure.code,
                "an earlier CreateVolume may have made the volume, and this answer does not tell; it is asked \
                 again until the driver does"
            );
        }
        Ended::Failed(failure)
    }

    /// Whether the driver has refused, and an earlier call may have made the volume all the same.
    fn is_unsettled(&self, ended: &Ended<Made>, intent: &Intent) -> bool {
        let refused = matches!(ended, Ended::Failed(failure) if code::from_name(&failure.code).is_some());
        refused && self.journal.get(&intent.claim.uid).is_some_and(|recorded| recorded.maybe_made)
    }

    fn may_call(&self) -> Result<(), Failure> {
        let unsent = |code: &str, message: &str| Err(Failure { code: code.to_owned(), message: message.to_owned() });
        if !self.context.may_call_driver() {
            return unsent(NO_LEASE, "our lease has not been renewed in time, and without it no call is made");
        }
        if self.context.shutdown.is_triggered() {
            return unsent(STOPPING, "the service stops, and no call is begun any more");
        }
        Ok(())
    }

    /// Whether the volume has room here.
    pub async fn has_room(self, intent: Arc<Intent>, place: Segments) -> Ended<bool> {
        match self.provisioner.has_room(ProvisionOptions::new(intent, false), place).await {
            Ok(has_room) => Ended::Done(has_room),
            Err(failure) => Ended::Failed(failure),
        }
    }

    /// Deletes a volume; `done` is the operation's result. With `about`, a failure is told there.
    pub async fn delete<T>(self, options: DeleteOptions, about: Option<ObjectRef>, done: T) -> Ended<T> {
        let _turn = self.deleting.acquire().await;
        let handle = options.handle.clone();
        let deleted = match self.may_call() {
            Ok(()) => self.provisioner.delete(options).await,
            unsent => unsent,
        };
        let Err(failure) = deleted else { return Ended::Done(done) };
        if failure.code == IGNORED {
            tracing::info!(%handle, reason = failure.message, "deleting the volume is left to another instance");
            return Ended::Uncertain(failure);
        }
        tracing::warn!(%handle, code = failure.code, message = failure.message, "DeleteVolume");
        if let Some(about) = about {
            let Failure { code, message } = &failure;
            let message = format!(
                "cannot delete volume {:?} in driver {:?}: {code}: {message}; it is tried again until it works",
                handle.as_str(),
                self.facts.driver
            );
            self.recorder.record(&about, Note::warning("VolumeFailedDelete", message));
        }
        Ended::Uncertain(failure)
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

/// Codes that judge the request itself: a driver that had made the volume would have found it first. That there is no room
/// may be because of the very volume that an earlier call is still making. What is no code of a driver is the word of
/// somebody who knows.
fn proves_nothing_made(code: &str) -> bool {
    code::from_name(code).is_none_or(|code| matches!(code, Code::InvalidArgument | Code::OutOfRange))
}
