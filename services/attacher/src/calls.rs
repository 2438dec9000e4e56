//! Driver calls as operations: who they are for, how they are made, what their end means.

use stowage_csi::Family;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use stowage_model::VolumeAttachment;
use stowage_model::object::Key;
use stowage_model::volume::SecretRef;
use stowage_runtime::caller::{Caller, Rpc};
use stowage_runtime::operation::{self, Ended, Failure};

use crate::snapshot::PublishContext;

const PUBLISH: Rpc = Rpc { path: "/csi.v1.Controller/ControllerPublishVolume", family: Family::ControllerPublish };
const UNPUBLISH: Rpc =
    Rpc { path: "/csi.v1.Controller/ControllerUnpublishVolume", family: Family::ControllerUnpublish };

pub type Operations = operation::Operations<Operation, PublishContext>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Publish,
    Unpublish,
}

/// What a call is about. Each attachment has its own backoff; that only one call per handle runs is decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub handle: String,
    pub attachment_uid: String,
    pub kind: Kind,
}

impl Operation {
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

/// Makes the call; `secret` names what it needs to know besides.
pub async fn call(caller: Caller, request: Request, secret: Option<SecretRef>) -> Ended<PublishContext> {
    let secret = secret.map(|SecretRef { namespace, name }| Key::namespaced(namespace, name));
    let secrets = match caller.secrets(secret.as_ref()).await {
        Ok(secrets) => secrets,
        Err(Failure { code, message }) => {
            return Ended::Failed(Failure { code, message: format!("controllerPublishSecretRef: {message}") });
        }
    };
    let (rpc, answer) = match request {
        Request::Publish(request) => {
            let request = ControllerPublishVolumeRequest { secrets, ..request };
            let send = async |channel, request| ControllerClient::new(channel).controller_publish_volume(request).await;
            (PUBLISH, caller.call(PUBLISH, request, send).await.map(|answer| answer.publish_context))
        }
        Request::Unpublish(request) => {
            let request = ControllerUnpublishVolumeRequest { secrets, ..request };
            let send =
                async |channel, request| ControllerClient::new(channel).controller_unpublish_volume(request).await;
            (UNPUBLISH, caller.call(UNPUBLISH, request, send).await.map(|_| PublishContext::new()))
        }
    };
    match answer {
        Ok(context) => Ended::Done(context),
        Err(refused) => match refused.ended() {
            Ended::Failed(failure) => Ended::Failed(named(rpc, failure)),
            Ended::Uncertain(failure) => Ended::Uncertain(named(rpc, failure)),
            done @ Ended::Done(_) => done,
        },
    }
}

/// People read it in the attachment's status, where nothing else says which call it was.
fn named(rpc: Rpc, Failure { code, message }: Failure) -> Failure {
    Failure { message: format!("{}: {message} ({code})", rpc.name()), code }
}
