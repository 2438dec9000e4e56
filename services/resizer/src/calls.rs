//! Driver calls as operations: who they are for, how they are made, what their end means.

use tonic::Code;

use stowage_csi::code::{self, Family, Outcome};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{ControllerExpandVolumeRequest, ControllerModifyVolumeRequest};
use stowage_model::object::{Key, Meta};
use stowage_model::quantity::Quantity;
use stowage_model::volume::SecretRef;
use stowage_runtime::caller::{Caller, NO_LEASE, NO_SECRET, Refused, Rpc, STOPPING};
use stowage_runtime::operation::{self, Ended, Failure};

use crate::request::{EXPAND_SECRET, NamedSecret};
use crate::turns::Turns;

const EXPAND: Rpc = Rpc { path: "/csi.v1.Controller/ControllerExpandVolume", family: Family::ControllerExpand };
const MODIFY: Rpc = Rpc { path: "/csi.v1.Controller/ControllerModifyVolume", family: Family::ControllerModify };

/// Code of an answer that says the volume grew, but not to what was asked for.
pub const TOO_SMALL: &str = "CapacityTooSmall";

/// Code of a call that was never sent because its claim asks for something else since it was planned, or first.
pub const REVOKED: &str = "Revoked";

/// Codes of calls that were never sent.
const UNSENT: [&str; 4] = [NO_SECRET, NO_LEASE, STOPPING, REVOKED];

pub type Operations = operation::Operations<Operation, Answer>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Expand,
    Modify,
}

impl Kind {
    /// The event that tells that it did not go well.
    pub fn failed(self) -> &'static str {
        match self {
            Self::Expand => "VolumeResizeFailed",
            Self::Modify => "VolumeModifyFailed",
        }
    }
}

/// What a call asks for. What came of it says nothing about anything else that the claim asks for later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aim {
    Size(Quantity),
    Class(String),
}

impl Aim {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Size(_) => Kind::Expand,
            Self::Class(_) => Kind::Modify,
        }
    }
}

/// What a call is about. That only one per claim runs is decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub claim: Key,
    pub uid: String,
    pub aim: Aim,
}

impl Operation {
    pub fn new(claim: &Meta, aim: Aim) -> Self {
        Self { claim: claim.key(), uid: claim.uid.clone(), aim }
    }

    /// The first of everything about claims of this name.
    pub fn first(claim: &Key) -> Self {
        Self { claim: claim.clone(), uid: String::new(), aim: Aim::Size(Quantity::default()) }
    }
}

/// What a call achieved.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Expanded(Expanded),
    /// To the VolumeAttributesClass of this name.
    Modified(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expanded {
    /// What was asked for.
    pub target: Quantity,
    /// What the volume has now.
    pub size: Quantity,
    /// Whether the node has to do its part.
    pub for_node: bool,
}

/// A call ready to be made, but for its secrets.
#[derive(Debug, Clone, PartialEq)]
pub enum Planned {
    /// Without a request where only nodes expand: then the node is asked at once.
    Expand {
        target: Quantity,
        request: Option<Box<ControllerExpandVolumeRequest>>,
        secret: Option<SecretRef>,
    },
    Modify {
        class: String,
        request: Box<ControllerModifyVolumeRequest>,
        secret: Option<NamedSecret>,
    },
}

impl Planned {
    pub fn aim(&self) -> Aim {
        match self {
            Self::Expand { target, .. } => Aim::Size(*target),
            Self::Modify { class, .. } => Aim::Class(class.clone()),
        }
    }
}

/// Whether the code is an answer of the driver, and not the reason why it was not asked.
pub fn is_answer(code: &str) -> bool {
    code::from_name(code).is_some() || code == TOO_SMALL
}

/// What the driver said, if it was the driver who spoke.
pub fn outcome(kind: Kind, failure: &Failure) -> Option<Outcome> {
    let family = match kind {
        Kind::Expand => Family::ControllerExpand,
        Kind::Modify => Family::ControllerModify,
    };
    match code::from_name(&failure.code) {
        Some(code) => Some(code::outcome(family, code)),
        None if failure.code == TOO_SMALL => Some(Outcome::Final),
        None => None,
    }
}

/// Whether people must know of the failure: nobody failed where the service only stops or is deposed.
pub fn must_be_told(kind: Kind, failure: &Failure) -> bool {
    outcome(kind, failure).is_some() || failure.code == NO_SECRET
}

/// Whether the driver expands only what is not in use.
pub fn is_in_use(failure: &Failure) -> bool {
    code::from_name(&failure.code) == Some(Code::FailedPrecondition)
}

/// What a call needs; cheap to clone, so that it can outlive the action that starts it.
#[derive(Clone)]
pub struct Calls {
    pub caller: Caller,
    pub expanding: Turns,
    pub modifying: Turns,
}

impl Calls {
    pub fn new(caller: Caller, workers: usize) -> Self {
        let turns = || Turns::new(workers, caller.context().clock.clone());
        let (expanding, modifying) = (turns(), turns());
        Self { caller, expanding, modifying }
    }

    /// The same, for a volume that is an in-tree plugin's or not.
    pub fn for_migrated(&self, is_migrated: bool) -> Self {
        Self { caller: self.caller.for_migrated(is_migrated), ..self.clone() }
    }

    /// `in_doubt` says whether an earlier call of the sort may still be under way: what is not even sent does not end it,
    /// and it is followed up to its end. Any other is asked for once more when its turn comes: who waits may be long in line.
    pub async fn run(
        self,
        operation: Operation,
        planned: Planned,
        in_doubt: bool,
        is_wanted: impl Fn() -> bool + Send,
    ) -> Ended<Answer> {
        let turn = match &planned {
            Planned::Expand { request: None, .. } => None,
            _ => Some(self.turns(operation.aim.kind()).take(operation).await),
        };
        let is_out_of_line = matches!(turn, Some(None));
        let ended = match planned {
            _ if is_out_of_line || !in_doubt && !is_wanted() => {
                let message = "the claim asks for something else now; the driver was not called".to_owned();
                Ended::Failed(Failure { code: REVOKED.into(), message })
            }
            Planned::Expand { target, request: None, .. } => {
                Ended::Done(Answer::Expanded(Expanded { target, size: target, for_node: true }))
            }
            Planned::Expand { target, request: Some(request), secret } => self.expand(target, *request, secret).await,
            Planned::Modify { class, request, secret } => self.modify(class, *request, secret).await,
        };
        match ended {
            Ended::Failed(failure) if in_doubt && UNSENT.contains(&failure.code.as_str()) => Ended::Uncertain(failure),
            ended => ended,
        }
    }

    pub fn turns(&self, kind: Kind) -> &Turns {
        match kind {
            Kind::Expand => &self.expanding,
            Kind::Modify => &self.modifying,
        }
    }

    async fn expand(
        &self,
        target: Quantity,
        request: ControllerExpandVolumeRequest,
        secret: Option<SecretRef>,
    ) -> Ended<Answer> {
        let secrets = match self.caller.secrets_of(EXPAND_SECRET, secret.as_ref()).await {
            Ok(secrets) => secrets,
            Err(failure) => return Ended::Failed(failure),
        };
        let asked = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let request = ControllerExpandVolumeRequest { secrets, ..request };
        let send = async |channel, request| ControllerClient::new(channel).controller_expand_volume(request).await;
        match self.caller.call(EXPAND, request, send).await {
            // A driver that says so has broken its contract; its word would make the claim smaller than it is.
            Ok(answer) if answer.capacity_bytes < asked => {
                let message = format!(
                    "{}: the driver answered that the volume has {} bytes now, but {asked} were asked for; see the \
                     driver's log ({TOO_SMALL})",
                    EXPAND.name(),
                    answer.capacity_bytes
                );
                Ended::Failed(Failure { code: TOO_SMALL.into(), message })
            }
            Ok(answer) => Ended::Done(Answer::Expanded(Expanded {
                target,
                size: Quantity::from_bytes(answer.capacity_bytes),
                for_node: answer.node_expansion_required,
            })),
            Err(refused) => ended(EXPAND, &refused),
        }
    }

    async fn modify(
        &self,
        class: String,
        request: ControllerModifyVolumeRequest,
        secret: Option<NamedSecret>,
    ) -> Ended<Answer> {
        let (field, secret) = secret.map_or((EXPAND_SECRET, None), |(field, secret)| (field, Some(secret)));
        let secrets = match self.caller.secrets_of(field, secret.as_ref()).await {
            Ok(secrets) => secrets,
            Err(failure) => return Ended::Failed(failure),
        };
        let request = ControllerModifyVolumeRequest { secrets, ..request };
        let send = async |channel, request| ControllerClient::new(channel).controller_modify_volume(request).await;
        match self.caller.call(MODIFY, request, send).await {
            Ok(_) => Ended::Done(Answer::Modified(class)),
            Err(refused) => ended(MODIFY, &refused),
        }
    }
}

/// The failure names the call: where people read it, nothing else does.
fn ended(rpc: Rpc, refused: &Refused) -> Ended<Answer> {
    let named = |Failure { code, message }| Failure { message: format!("{}: {message} ({code})", rpc.name()), code };
    match refused.ended() {
        Ended::Failed(failure) => Ended::Failed(named(failure)),
        Ended::Uncertain(failure) => Ended::Uncertain(named(failure)),
        done @ Ended::Done(_) => done,
    }
}
