//! Calls to a driver: lease, secrets, deadline, metric and what the answer means, the same for every call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Request, Response, Status};

use stowage_csi::code::{self, Family, Outcome};
use stowage_csi::{Channel, Deadline};
use stowage_model::migration;
use stowage_model::object::Key;
use stowage_model::secret::Secret;
use stowage_model::volume::SecretRef;

use crate::context::Context;
use crate::operation::{Ended, Failure};

/// Code of a call that was never sent because its secret could not be read.
pub const NO_SECRET: &str = "SecretUnavailable";

/// Code of a call that was never sent because our lease may not hold any more.
pub const NO_LEASE: &str = "LeaseExpired";

/// Code of a call that was never sent because the service stops.
pub const STOPPING: &str = "Stopping";

/// What a secret holds, as a request carries it.
pub type Secrets = BTreeMap<String, String>;

/// One call of the CSI, and how its codes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rpc {
    /// As in `/csi.v1.Controller/CreateVolume`.
    pub path: &'static str,
    /// Whose codes it shares.
    pub family: Family,
}

impl Rpc {
    /// The last part of the path, as in `CreateVolume`.
    pub fn name(self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// A call that did not end well.
#[derive(Debug, Clone)]
pub enum Refused {
    /// It was never sent, and why.
    Unsent(Failure),
    /// The driver, or the way to it, said this.
    Answered {
        /// What was said.
        status: Status,
        /// What that means for a call of its family.
        outcome: Outcome,
    },
}

impl Refused {
    /// What to keep and to show of it.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Unsent(failure) => failure.clone(),
            Self::Answered { status, .. } => {
                Failure { code: code::name(status.code()).to_owned(), message: status.message().to_owned() }
            }
        }
    }

    /// How an operation ends by it.
    pub fn ended<R>(&self) -> Ended<R> {
        match self {
            Self::Answered { outcome, .. } if outcome.may_be_running() => Ended::Uncertain(self.failure()),
            _ => Ended::Failed(self.failure()),
        }
    }
}

/// A driver, and what every call to it needs. Cheap to clone, so that a call can outlive the action that starts it.
#[derive(Clone)]
pub struct Caller {
    context: Context,
    channel: Channel,
    driver: Arc<str>,
    timeout: Duration,
    /// Whether calls are for objects of an in-tree plugin, where the driver took over from one.
    migrated: Option<bool>,
}

impl Caller {
    /// Calls of the driver of this name over this channel.
    pub fn new(context: Context, channel: Channel, driver: &str, timeout: Duration) -> Self {
        let migrated = migration::plugin_of(driver).map(|_| false);
        Self { context, channel, driver: driver.into(), timeout, migrated }
    }

    /// The same, for an object that is an in-tree plugin's or not: metrics tell these calls apart, as the originals' do.
    pub fn for_migrated(&self, is_migrated: bool) -> Self {
        Self { migrated: self.migrated.map(|_| is_migrated), ..self.clone() }
    }

    /// The world outside.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The values a secret holds now: read for each call, kept nowhere.
    pub async fn secrets(&self, secret: Option<&Key>) -> Result<Secrets, Failure> {
        let Some(key) = secret else { return Ok(Secrets::new()) };
        let missing = |message: String| Failure { code: NO_SECRET.into(), message };
        match self.context.api.get::<Secret>(key).await {
            Ok(Some(found)) => Ok(found.data.to_text()),
            Ok(None) => Err(missing(format!("secret {key} does not exist; create it"))),
            Err(error) => Err(missing(format!("secret {key} cannot be read: {error}"))),
        }
    }

    /// The same for a secret that a field of an object names; what goes wrong names the field.
    pub async fn secrets_of(&self, field: &str, secret: Option<&SecretRef>) -> Result<Secrets, Failure> {
        let key = secret.map(|SecretRef { namespace, name }| Key::namespaced(namespace.as_str(), name.as_str()));
        let named = |Failure { code, message }| Failure { code, message: format!("{field}: {message}") };
        self.secrets(key.as_ref()).await.map_err(named)
    }

    /// Makes the call as the whole of an operation. Its failure names the call: where people read it, nothing else does.
    pub async fn operate<Q, A>(
        &self,
        rpc: Rpc,
        request: Q,
        send: impl AsyncFnOnce(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Ended<A> {
        let named =
            |Failure { code, message }| Failure { message: format!("{}: {message} ({code})", rpc.name()), code };
        match self.call(rpc, request, send).await {
            Ok(answer) => Ended::Done(answer),
            Err(refused) => match refused.ended() {
                Ended::Failed(failure) => Ended::Failed(named(failure)),
                Ended::Uncertain(failure) => Ended::Uncertain(named(failure)),
                done @ Ended::Done(_) => done,
            },
        }
    }

    /// Makes the call, as in `caller.call(PUBLISH, request, async |channel, r| ControllerClient::new(channel).controller_publish_volume(r).await)`.
    /// None is sent on an expired lease, nor once the service stops.
    pub async fn call<Q, A>(
        &self,
        rpc: Rpc,
        request: Q,
        send: impl AsyncFnOnce(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Refused> {
        let unsent = |code: &str, message: &str| {
            Err(Refused::Unsent(Failure { code: code.to_owned(), message: message.to_owned() }))
        };
        if !self.context.may_call_driver() {
            return unsent(NO_LEASE, "our lease has not been renewed in time, and without it no call is made");
        }
        // Calls that wait for their turn must not keep a stop waiting for ever.
        if self.context.shutdown.is_triggered() {
            return unsent(STOPPING, "the service stops, and no call is begun any more");
        }
        let begin = self.context.clock.boottime();
        let channel = self.channel.clone();
        let answer = Deadline(self.timeout).call(request, |request| send(channel, request)).await;
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let took = self.context.clock.boottime().saturating_sub(begin);
        self.context.metrics.observe_csi(&self.driver, rpc.path, code::name(code), self.migrated, took);
        answer.map_err(|status| Refused::Answered { outcome: code::outcome_of(rpc.family, &status), status })
    }
}
