//! Driver calls as operations: who they are for, how they are made, what their end means.

use stowage_csi::Family;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use stowage_model::names::VolumeHandle;
use stowage_model::object::Meta;
use stowage_model::volume::SecretRef;
use stowage_runtime::caller::{Caller, Rpc};
use stowage_runtime::operation::{self, Ended};

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

impl Kind {
    pub const ALL: [Self; 2] = [Self::Publish, Self::Unpublish];

    pub fn opposite(self) -> Self {
        match self {
            Self::Publish => Self::Unpublish,
            Self::Unpublish => Self::Publish,
        }
    }

    /// What people call the lane of such calls.
    pub fn lane(self) -> &'static str {
        match self {
            Self::Publish => "attach",
            Self::Unpublish => "detach",
        }
    }
}

/// What a call is about. Each attachment has its own backoff, and so has each id that its node had; which calls run beside
/// each other is decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub handle: VolumeHandle,
    pub attachment_uid: String,
    pub kind: Kind,
    pub node_id: String,
}

impl Operation {
    pub fn new(handle: &VolumeHandle, attachment: &Meta, kind: Kind, node_id: &str) -> Self {
        Self { handle: handle.clone(), attachment_uid: attachment.uid.clone(), kind, node_id: node_id.into() }
    }
}

/// A call ready to be made, but for its secrets.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
}

impl Request {
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
    let secrets = match caller.secrets_of("controllerPublishSecretRef", secret.as_ref()).await {
        Ok(secrets) => secrets,
        Err(failure) => return Ended::Failed(failure),
    };
    match request {
        Request::Publish(request) => {
            let request = ControllerPublishVolumeRequest { secrets, ..request };
            let send = async |channel, request| ControllerClient::new(channel).controller_publish_volume(request).await;
            caller.operate(PUBLISH, request, send).await.map(|answer| answer.publish_context)
        }
        Request::Unpublish(request) => {
            let request = ControllerUnpublishVolumeRequest { secrets, ..request };
            let send =
                async |channel, request| ControllerClient::new(channel).controller_unpublish_volume(request).await;
            caller.operate(UNPUBLISH, request, send).await.map(|_| PublishContext::new())
        }
    }
}
