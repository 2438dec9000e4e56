//! Driver calls as operations: each waits for its turn, reads its content afresh, fetches its secret, calls, and says what
//! the answer means.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tonic::Code;

use stowage_csi::channel::Unreachable;
use stowage_csi::code::{self, Family};
use stowage_csi::v1;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::group_controller_client::GroupControllerClient;
use stowage_runtime::caller::{Caller, NO_SECRET, Refused, Rpc, Secrets};
use stowage_runtime::operation::{self, Ended, Failure};
use stowage_runtime::queue::Queue;

use crate::content::Content;
use crate::doubts::{Doubts, Subject};
use crate::request::{Planned, Request};
use crate::sort::Sort;
use crate::watches::{Caches, Key};

const CREATE_SNAPSHOT: Rpc = Rpc { path: "/csi.v1.Controller/CreateSnapshot", family: Family::CreateSnapshot };
const LIST_SNAPSHOTS: Rpc = Rpc { path: "/csi.v1.Controller/ListSnapshots", family: Family::Read };
const DELETE_SNAPSHOT: Rpc = Rpc { path: "/csi.v1.Controller/DeleteSnapshot", family: Family::Delete };
const CREATE_GROUP: Rpc =
    Rpc { path: "/csi.v1.GroupController/CreateVolumeGroupSnapshot", family: Family::CreateSnapshot };
const GET_GROUP: Rpc = Rpc { path: "/csi.v1.GroupController/GetVolumeGroupSnapshot", family: Family::Read };
const DELETE_GROUP: Rpc = Rpc { path: "/csi.v1.GroupController/DeleteVolumeGroupSnapshot", family: Family::Delete };

/// Code of a call that was never sent because its content has changed since.
const STALE: &str = "Stale";
/// Code of a call that was never sent because its content could not be read.
const UNREAD: &str = "Unread";
/// Code of a call that nobody was there to take.
const UNREACHABLE: &str = "Unreachable";
/// Code of an answer that says nothing.
const BROKEN: &str = "Broken";

pub type Operations = operation::Operations<Operation, Answer>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Create,
    Look,
    Delete,
}

/// What a call is about. That only one per content runs is decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    pub subject: Subject,
    pub kind: Kind,
}

impl Operation {
    /// The first of everything about contents of this name.
    pub fn first(key: &Key) -> Self {
        Self { subject: Subject { key: key.clone(), uid: String::new() }, kind: Kind::Create }
    }
}

/// What the driver has; empty after a deletion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub handle: String,
    pub is_ready: bool,
    pub created: Option<Timestamp>,
    /// The least size of a volume made from it; 0 if the driver does not say.
    pub bytes: i64,
    /// The group that a snapshot belongs to.
    pub group: Option<String>,
    /// The snapshots of a group.
    pub members: Vec<Member>,
    /// How often in a row it was not ready.
    pub looks: u32,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Member {
    pub volume: String,
    pub handle: String,
    pub is_ready: bool,
    pub created: Option<Timestamp>,
    pub bytes: i64,
}

/// Whether the failure is a driver's word, and not that of somebody on the way.
pub fn is_answer(failure: &Failure) -> bool {
    code::from_name(&failure.code).is_some()
}

/// Whether people must know of the failure: nobody failed where the world only moved on.
pub fn must_be_told(failure: &Failure) -> bool {
    is_answer(failure) || matches!(failure.code.as_str(), NO_SECRET | UNREACHABLE | BROKEN)
}

/// One call to be made.
pub struct Job {
    pub operation: Operation,
    /// As it was decided on.
    pub content: Content,
    pub planned: Planned,
    /// How often in a row it was not ready.
    pub looks: u32,
}

/// What a call needs; cheap to clone, so that it can outlive the action that starts it.
#[derive(Clone)]
pub struct Calls {
    pub caller: Caller,
    pub caches: Caches,
    pub doubts: Doubts,
    queue: Queue<Key>,
    /// Turns for calls that make or look, and for those that delete, as many as there are workers.
    making: Arc<Semaphore>,
    deleting: Arc<Semaphore>,
}

impl Calls {
    pub fn new(caller: Caller, caches: Caches, queue: Queue<Key>, workers: usize) -> Self {
        let turns = || Arc::new(Semaphore::new(workers));
        Self { caller, caches, doubts: Doubts::default(), queue, making: turns(), deleting: turns() }
    }

    pub async fn run(self, job: Job) -> Ended<Answer> {
        let turns = if job.operation.kind == Kind::Delete { &self.deleting } else { &self.making };
        let _turn = turns.acquire().await;
        // Only now: who waited for a turn may have waited for long.
        if let Err(failure) = self.check(&job.content).await {
            return Ended::Failed(failure);
        }
        let going = job.content.is_going();
        let (secrets, has_secret) = match self.caller.secrets(job.planned.secret.as_ref()).await {
            Ok(secrets) => (secrets, true),
            // The secret often goes together with its user's namespace; most drivers delete without it.
            Err(failure) if going => {
                tracing::warn!(content = job.content.meta.name, reason = failure.message, "going without the secret");
                (Secrets::new(), false)
            }
            Err(failure) => return Ended::Failed(failure),
        };
        let name = rpc(&job.planned.request).name();
        let ended = match job.operation.kind {
            Kind::Create => self.create(job, secrets, has_secret).await,
            Kind::Look | Kind::Delete => match self.send(job.planned.request, secrets, || {}).await {
                Ok(answer) => Ended::Done(Answer { looks: job.looks, ..answer }),
                Err(refused) => match unreachable(&refused) {
                    Some(failure) => Ended::Failed(failure),
                    None => refused.ended(),
                },
            },
        };
        named(name, ended)
    }

    /// One fresh read of what justifies the call.
    async fn check(&self, decided: &Content) -> Result<(), Failure> {
        let (api, key) = (&self.caller.context().api, decided.meta.key());
        let read = match decided.sort {
            Sort::Snapshot => {
                let read = api.refresh(&self.caches.contents, &key).await;
                read.map(|found| found.map(|content| Content::from(&*content)))
            }
            Sort::Group => {
                let read = api.refresh(&self.caches.group_contents, &key).await;
                read.map(|found| found.map(|content| Content::from(&*content)))
            }
        };
        match read {
            Ok(Some(fresh)) if decided.still_asks_for_the_same(&fresh) => Ok(()),
            Ok(_) => Err(Failure { code: STALE.into(), message: "the content has changed since the decision".into() }),
            Err(error) => Err(Failure { code: UNREAD.into(), message: format!("cannot read the content: {error}") }),
        }
    }

    async fn create(&self, job: Job, secrets: Secrets, has_secret: bool) -> Ended<Answer> {
        let Job { operation: Operation { subject, .. }, planned, looks, .. } = job;
        let is_whole = planned.is_whole && has_secret;
        let mut before = None;
        let answer = self.send(planned.request, secrets, || {
            // Only here, where the lease has been checked: a call that is not sent leaves the doubt as it was.
            before = self.doubts.call_sent(subject.clone(), self.caller.context().clock.now());
            // When it takes long, the content is marked.
            self.queue.add(subject.key.clone());
        });
        let refused = match answer.await {
            Ok(answer) if answer.handle.is_empty() => {
                self.doubts.left_open(subject);
                let message = "the driver answered without a snapshot's id".to_owned();
                return Ended::Uncertain(Failure { code: BROKEN.into(), message });
            }
            Ok(answer) => {
                self.doubts.left_open(subject);
                let looks = if answer.is_ready { 0 } else { looks };
                return Ended::Done(Answer { looks, ..answer });
            }
            Err(refused) => refused,
        };
        if let Some(failure) = unreachable(&refused) {
            self.doubts.not_taken(subject, before);
            return Ended::Failed(failure);
        }
        match &refused {
            Refused::Unsent(_) => refused.ended(),
            Refused::Answered { outcome, .. } if outcome.may_be_running() => {
                self.doubts.left_open(subject);
                refused.ended()
            }
            Refused::Answered { status, .. } if is_whole || is_word_on_the_snapshot(status.code()) => {
                self.doubts.settle(&subject);
                refused.ended()
            }
            Refused::Answered { .. } => {
                self.doubts.left_open(subject);
                Ended::Uncertain(refused.failure())
            }
        }
    }

    async fn send(&self, request: Request, secrets: Secrets, sent: impl FnOnce()) -> Result<Answer, Refused> {
        let caller = &self.caller;
        match request {
            Request::CreateSnapshot(request) => {
                let request = v1::CreateSnapshotRequest { secrets, ..request };
                let answer = caller.call(CREATE_SNAPSHOT, request, async |channel, request| {
                    sent();
                    ControllerClient::new(channel).create_snapshot(request).await
                });
                answer.await.map(|answer| snapshot(answer.snapshot.unwrap_or_default()))
            }
            Request::ListSnapshots(request) => {
                let id = request.snapshot_id.clone();
                let request = v1::ListSnapshotsRequest { secrets, ..request };
                let answer = caller.call(LIST_SNAPSHOTS, request, async |channel, request| {
                    let answer = ControllerClient::new(channel).list_snapshots(request).await?;
                    match answer.get_ref().entries.is_empty() {
                        true => Err(tonic::Status::not_found(format!(
                            "the driver lists no snapshot {id:?}; if it never existed, delete this content (and make it anew with the right \
                             spec.source.snapshotHandle, if it has one)"
                        ))),
                        false => Ok(answer),
                    }
                });
                let found = answer.await?.entries.into_iter().next().and_then(|entry| entry.snapshot);
                Ok(snapshot(found.unwrap_or_default()))
            }
            Request::DeleteSnapshot(request) => {
                let request = v1::DeleteSnapshotRequest { secrets, ..request };
                let answer = caller.call(DELETE_SNAPSHOT, request, async |channel, request| {
                    ControllerClient::new(channel).delete_snapshot(request).await
                });
                answer.await.map(|_| Answer::default())
            }
            Request::CreateGroup(request) => {
                let request = v1::CreateVolumeGroupSnapshotRequest { secrets, ..request };
                let answer = caller.call(CREATE_GROUP, request, async |channel, request| {
                    sent();
                    GroupControllerClient::new(channel).create_volume_group_snapshot(request).await
                });
                answer.await.map(|answer| group(answer.group_snapshot.unwrap_or_default()))
            }
            Request::GetGroup(request) => {
                let request = v1::GetVolumeGroupSnapshotRequest { secrets, ..request };
                let answer = caller.call(GET_GROUP, request, async |channel, request| {
                    GroupControllerClient::new(channel).get_volume_group_snapshot(request).await
                });
                answer.await.map(|answer| group(answer.group_snapshot.unwrap_or_default()))
            }
            Request::DeleteGroup(request) => {
                let request = v1::DeleteVolumeGroupSnapshotRequest { secrets, ..request };
                let answer = caller.call(DELETE_GROUP, request, async |channel, request| {
                    GroupControllerClient::new(channel).delete_volume_group_snapshot(request).await
                });
                answer.await.map(|_| Answer::default())
            }
        }
    }
}

fn rpc(request: &Request) -> Rpc {
    match request {
        Request::CreateSnapshot(_) => CREATE_SNAPSHOT,
        Request::ListSnapshots(_) => LIST_SNAPSHOTS,
        Request::DeleteSnapshot(_) => DELETE_SNAPSHOT,
        Request::CreateGroup(_) => CREATE_GROUP,
        Request::GetGroup(_) => GET_GROUP,
        Request::DeleteGroup(_) => DELETE_GROUP,
    }
}

/// Codes that speak of the volume, the name or the driver, whatever else the request lacks.
fn is_word_on_the_snapshot(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::AlreadyExists | Code::Unimplemented)
}

fn unreachable(refused: &Refused) -> Option<Failure> {
    match refused {
        Refused::Answered { status, .. } if Unreachable::in_status(status).is_some() => {
            Some(Failure { code: UNREACHABLE.into(), ..refused.failure() })
        }
        _ => None,
    }
}

/// People read it in the content's status, where nothing else says which call it was.
fn named(rpc: &str, ended: Ended<Answer>) -> Ended<Answer> {
    let named = |Failure { code, message }| Failure { message: format!("{rpc}: {message} ({code})"), code };
    match ended {
        done @ Ended::Done(_) => done,
        Ended::Failed(failure) => Ended::Failed(named(failure)),
        Ended::Uncertain(failure) => Ended::Uncertain(named(failure)),
    }
}

fn snapshot(snapshot: v1::Snapshot) -> Answer {
    Answer {
        handle: snapshot.snapshot_id,
        is_ready: snapshot.ready_to_use,
        created: snapshot.creation_time.and_then(|time| moment(time.seconds, time.nanos)),
        bytes: snapshot.size_bytes,
        group: Some(snapshot.group_snapshot_id).filter(|group| !group.is_empty()),
        ..Answer::default()
    }
}

fn group(group: v1::VolumeGroupSnapshot) -> Answer {
    let member = |member: v1::Snapshot| Member {
        volume: member.source_volume_id,
        handle: member.snapshot_id,
        is_ready: member.ready_to_use,
        created: member.creation_time.and_then(|time| moment(time.seconds, time.nanos)),
        bytes: member.size_bytes,
    };
    Answer {
        handle: group.group_snapshot_id,
        is_ready: group.ready_to_use,
        created: group.creation_time.and_then(|time| moment(time.seconds, time.nanos)),
        members: group.snapshots.into_iter().map(member).collect(),
        ..Answer::default()
    }
}

/// Zero is a driver that does not say.
fn moment(seconds: i64, nanos: i32) -> Option<Timestamp> {
    Timestamp::new(seconds, nanos).ok().filter(|moment| *moment != Timestamp::UNIX_EPOCH)
}
