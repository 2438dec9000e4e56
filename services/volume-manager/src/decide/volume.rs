//! A volume on this node: unpublish for pods that are gone, then stage and publish for those that want it, then unstage.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::access_mode::{AccessMode, AccessModes};
use stowage_model::object::Projection;
use stowage_model::pod::Pod;
use stowage_runtime::engine::Decision;
use stowage_runtime::operation::State;
use stowage_runtime::told::Known;

use super::{Action, Operation, Record};
use crate::desired::{Use, VolumeId};
use crate::world::{DriverInfo, Hold, Published, Staged};

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub volume: VolumeId,
    /// Live pods that want it, by uid.
    pub wanted: BTreeMap<String, Wanted>,
    pub published: BTreeMap<String, Held>,
    pub staged: Option<Staged>,
    /// The driver, if it is registered.
    pub driver: Option<DriverInfo>,
    pub attachment: Attachment,
    /// Operations of this volume that are running or ended badly.
    pub records: BTreeMap<Operation, Record>,
    /// Some live pod's volumes are not known yet; this may be one of them.
    pub pods_unresolved: bool,
}

/// A pod that wants the volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub pod: Arc<Pod>,
    pub usage: Use,
    /// What was told about the pod already.
    pub told: Known<String, ()>,
}

/// A mount for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub published: Published,
    /// Whether the pod is still there and wants to be. A live pod's mount stays even while its claim cannot be read.
    pub pod_is_live: bool,
}

/// Where the handshake between this node and the attach-detach controller stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The driver does not attach.
    NotNeeded,
    /// The Node is not known right now.
    NodeUnknown,
    /// Our in-use report of this volume is not answered, or is being withdrawn.
    NotInUse,
    /// In use, in a version of the Node that does not list it as attached.
    NotAttached,
    /// One version of the Node lists it as in use and as attached: the controller will not take it away.
    Attached,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Nothing,
    Busy,
    WaitingForDriver,
    Unpublish,
    WaitingForNode,
    WaitingForInUse,
    WaitingForAttach,
    OtherPodHasIt,
    Stage,
    Publish,
    PodsUnresolved,
    Unstage,
    BackingOff,
    Mounted,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    if s.records.values().any(|record| matches!(record.state, State::Running)) {
        return Decision::rest(Why::Busy);
    }
    if s.wanted.is_empty() && s.published.is_empty() && s.staged.is_none() {
        return match s.records.is_empty() {
            true => Decision::rest(Why::Nothing),
            false => Decision::act([Action::ForgetVolume { volume: s.volume.clone() }], Why::Nothing),
        };
    }
    let Some(driver) = &s.driver else {
        return without_driver(s, now);
    };
    let mut retry = Retry::default();
    let mut explained = Explained::default();
    for (uid, held) in s.published.iter().filter(|(_, held)| !held.pod_is_live) {
        let operation = Operation::Unpublish(s.volume.clone(), uid.clone());
        if retry.may_start(s, &operation, now) {
            let spec_name = held.published.spec_name.clone();
            let unpublish = Action::Unpublish { volume: s.volume.clone(), uid: uid.clone(), spec_name };
            return Decision::act([unpublish], Why::Unpublish);
        }
    }
    let (actions, why) = mount(s, driver, &mut retry, &mut explained, now);
    if !actions.is_empty() {
        return Decision { wake_at: earliest(retry.at, explained.again_at), ..Decision::act(actions, why) };
    }
    if s.wanted.is_empty() && s.published.is_empty() && s.staged.is_some() {
        if s.pods_unresolved {
            return Decision::rest(Why::PodsUnresolved);
        }
        if retry.may_start(s, &Operation::Unstage(s.volume.clone()), now) {
            return Decision::act([Action::Unstage { volume: s.volume.clone() }], Why::Unstage);
        }
    }
    let why = if retry.at.is_some() { Why::BackingOff } else { why };
    Decision { wake_at: earliest(retry.at, explained.again_at), ..Decision::rest(why) }
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

/// The earliest moment at which something that was put off may be tried again.
#[derive(Default)]
struct Retry {
    at: Option<Timestamp>,
}

impl Retry {
    fn may_start(&mut self, s: &Snapshot, operation: &Operation, now: Timestamp) -> bool {
        match s.records.get(operation) {
            Some(record) if !record.may_start(now) => {
                self.at = earliest(self.at, Some(record.retry_at));
                false
            }
            _ => true,
        }
    }
}

/// The next step towards having it mounted for every pod that wants it; one operation at a time.
fn mount(
    s: &Snapshot,
    driver: &DriverInfo,
    retry: &mut Retry,
    explained: &mut Explained,
    now: Timestamp,
) -> (Vec<Action>, Why) {
    let waiting: Vec<(&String, &Wanted)> = s.wanted.iter().filter(|(uid, _)| !s.is_mounted_for(uid)).collect();
    if waiting.is_empty() {
        return (Vec::new(), if s.wanted.is_empty() { Why::Nothing } else { Why::Mounted });
    }
    match s.attachment {
        Attachment::NotNeeded | Attachment::Attached => {}
        Attachment::NodeUnknown => return (Vec::new(), Why::WaitingForNode),
        Attachment::NotInUse => return (Vec::new(), Why::WaitingForInUse),
        Attachment::NotAttached => return (Vec::new(), Why::WaitingForAttach),
    }
    for (uid, wanted) in waiting {
        if is_once_per_pod(wanted.usage.access_modes) && s.published.keys().any(|other| other != uid) {
            let message = format!(
                "volume {:?} ({}) has access mode ReadWriteOncePod and is in use by another pod",
                wanted.usage.pod_volume, wanted.usage.spec_name
            );
            explained.add(wanted, message, now);
            continue;
        }
        let usage = Box::new(wanted.usage.clone());
        let is_staged = s.staged.as_ref().is_some_and(|staged| staged.hold == Hold::Mounted);
        if driver.stages() && !is_staged {
            if retry.may_start(s, &Operation::Stage(s.volume.clone()), now) {
                return (vec![Action::Stage { usage, pod: wanted.pod.reference() }], Why::Stage);
            }
            break;
        }
        if retry.may_start(s, &Operation::Publish(s.volume.clone(), uid.clone()), now) {
            return (vec![Action::Publish { usage, pod: Arc::clone(&wanted.pod) }], Why::Publish);
        }
    }
    (std::mem::take(&mut explained.actions), Why::OtherPodHasIt)
}

fn without_driver(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    // After a restart the mounts are there before the driver has registered again: that is no news.
    let waiting = s.wanted.iter().filter(|(uid, _)| !s.published.contains_key(*uid));
    let message = format!(
        "driver {} is not registered on this node; check that its node plugin and registrar run here",
        s.volume.driver
    );
    let mut explained = Explained::default();
    for (_, wanted) in waiting {
        explained.add(wanted, message.clone(), now);
    }
    Decision { wake_at: explained.again_at, ..Decision::act(explained.actions, Why::WaitingForDriver) }
}

/// What is said now, and when the first of what was said before is said again.
#[derive(Default)]
struct Explained {
    actions: Vec<Action>,
    again_at: Option<Timestamp>,
}

impl Explained {
    fn add(&mut self, wanted: &Wanted, message: String, now: Timestamp) {
        match wanted.told.until(&message, &(), now) {
            Some(at) => self.again_at = earliest(self.again_at, Some(at)),
            None => self.actions.push(Action::Explain { pod: wanted.pod.reference(), message }),
        }
    }
}

fn is_once_per_pod(modes: AccessModes) -> bool {
    modes.len() == 1 && modes.contains(AccessMode::ReadWriteOncePod)
}

impl Snapshot {
    fn is_mounted_for(&self, uid: &str) -> bool {
        self.published.get(uid).is_some_and(|held| held.published.hold == Hold::Mounted)
    }
}
