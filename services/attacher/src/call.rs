//! Driver calls as operations: who they are for, how they are made, what their end means.

use std::time::Duration;

use tonic::{Code, Status};

use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use stowage_csi::{Channel, Deadline, Family, code};
use stowage_model::object::Key;
use stowage_model::volume::SecretRef;
use stowage_model::{Secret, VolumeAttachment};
use stowage_runtime::Context;
use stowage_runtime::operation::{Ended, Failure, Operations};

use crate::snapshot::PublishContext;

pub type Calls = Operations<Subject, PublishContext>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Publish,
    Unpublish,
}

/// What a call is about. Each attachment has its own backoff; that only one call per handle runs is decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    pub handle: String,
    pub attachment_uid: String,
    pub kind: Kind,
}

impl Subject {
    pub fn new(handle: &str, attachment: &VolumeAttachment, kind: Kind) -> Self {
        Self { handle: handle.to_owned(), attachment_uid: attachment.meta.uid.clone(), kind }
    }

    /// The first of everything about the handle.
    pub fn first(handle: &str) -> Self {
        Self { handle: handle.to_owned(), attachment_uid: String::new(), kind: Kind::Publish }
    }

    pub fn opposite(&self) -> Self {
        let kind = match self.kind {
            Kind::Publish => Kind::Unpublish,
            Kind::Unpublish => Kind::Publish,
        };
        Self { kind, ..self.clone() }
    }
}

/// A call ready to be made, but for its secrets.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
}

impl Request {
    pub fn volume_id(&self) -> &str {
        match self {
            Self::Publish(request) => &request.volume_id,
            Self::Unpublish(request) => &request.volume_id,
        }
    }

    pub fn node_id(&self) -> &str {
        match self {
            Self::Publish(request) => &request.node_id,
            Self::Unpublish(request) => &request.node_id,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Publish(_) => Kind::Publish,
            Self::Unpublish(_) => Kind::Unpublish,
        }
    }
}

/// What every call needs.
#[derive(Clone)]
pub struct Caller {
    pub context: Context,
    pub channel: Channel,
    pub driver: String,
    pub timeout: Duration,
}

impl Caller {
    pub async fn call(self, request: Request, secret: Option<SecretRef>) -> Ended<PublishContext> {
        let secrets = match self.secrets(secret).await {
            Ok(secrets) => secrets,
            Err(message) => return Ended::Failed(Failure { code: String::new(), message }),
        };
        if !self.context.may_call_driver() {
            let message = "our lease has not been renewed in time, and without it no call is made".to_owned();
            return Ended::Failed(Failure { code: String::new(), message });
        }
        let mut client = ControllerClient::new(self.channel.clone());
        let deadline = Deadline(self.timeout);
        let begin = self.context.clock.boottime();
        let (method, family, answer) = match request {
            Request::Publish(request) => {
                let request = ControllerPublishVolumeRequest { secrets, ..request };
                let answer = deadline.call(request, |request| client.controller_publish_volume(request)).await;
                ("ControllerPublishVolume", Family::ControllerPublish, answer.map(|answer| answer.publish_context))
            }
            Request::Unpublish(request) => {
                let request = ControllerUnpublishVolumeRequest { secrets, ..request };
                let answer = deadline.call(request, |request| client.controller_unpublish_volume(request)).await;
                ("ControllerUnpublishVolume", Family::ControllerUnpublish, answer.map(|_| PublishContext::new()))
            }
        };
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let took = self.context.clock.boottime().saturating_sub(begin);
        let path = format!("/csi.v1.Controller/{method}");
        self.context.metrics.observe_csi(&self.driver, &path, code::name(code), took);
        match answer {
            Ok(context) => Ended::Done(context),
            Err(status) => {
                let name = code::name(code);
                let message = format!("{method}: {} ({name})", status.message());
                let failure = Failure { code: name.to_owned(), message };
                if code::outcome_of(family, &status).may_be_running() {
                    Ended::Uncertain(failure)
                } else {
                    Ended::Failed(failure)
                }
            }
        }
    }

    async fn secrets(&self, secret: Option<SecretRef>) -> Result<PublishContext, String> {
        let Some(SecretRef { namespace, name }) = secret else { return Ok(PublishContext::new()) };
        let key = Key::namespaced(namespace, name);
        match self.context.api.get::<Secret>(&key).await {
            Ok(Some(secret)) => Ok(secret.data.to_text()),
            Ok(None) => Err(format!("secret {key} of controllerPublishSecretRef does not exist; create it")),
            Err(error) => Err(format!("secret {key} of controllerPublishSecretRef cannot be read: {error}")),
        }
    }
}
