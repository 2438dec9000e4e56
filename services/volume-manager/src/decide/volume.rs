//! The reconciler: what must happen to one volume on this node. Unmount for pods that are gone, then mount for those that
//! want it, then take it from the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_model::object::Projection;
use stowage_plugins::Traits;
use stowage_plugins::traits::Remount;
use stowage_runtime::engine::Decision;
use stowage_runtime::told::Known;

use super::Action;
use super::expand::Expansion;
use crate::actual_state::{AttachedVolume, MountState, MountedVolume};
use crate::desired_state::VolumeToMount;
use crate::executor::{OperationName, Record, VolumeOperation};

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub volume: UniqueVolumeName,
    /// Live pods that want it, by uid.
    pub wanted: BTreeMap<String, Wanted>,
    pub actual: Option<AttachedVolume>,
    /// Uids of those it is mounted for that are still there and want to be. A live pod's mount stays even while its claim
    /// cannot be read.
    pub live: Vec<String>,
    /// What can be done with it.
    pub traits: Traits,
    /// Why its plugin can do nothing at the moment.
    pub unreachable: Option<String>,
    /// Why it cannot be mounted at the moment; it can be taken away all the same.
    pub not_ready: Option<String>,
    pub attachment: Attachment,
    /// Operations on this volume that are running or ended badly.
    pub records: BTreeMap<VolumeOperation, Record>,
    /// Some live pod's volumes are not known yet; this may be one of them.
    pub pods_unresolved: bool,
    /// Whether it should grow on this node.
    pub expansion: Expansion,
}

/// A pod that wants the volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub pod: Arc<NodePod>,
    pub mount: VolumeToMount,
    /// What was told about the pod already.
    pub told: Known<String, ()>,
}

/// Where the handshake between this node and whoever attaches stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The volume is not attached.
    NotNeeded,
    /// The Node is not known right now.
    NodeUnknown,
    /// Our in-use report of this volume is not answered, or is being withdrawn.
    NotInUse,
    /// In use, in a version of the Node that does not list it as attached.
    NotAttached,
    /// One version of the Node lists it as in use and as attached: the controller will not take it away.
    Attached,
    /// This node attaches itself, and has not.
    ToAttach,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Nothing,
    Busy,
    WaitingForPlugin,
    TearDown,
    WaitingForNode,
    WaitingForInUse,
    WaitingForAttach,
    Attach,
    OtherPodHasIt,
    OtherLabel,
    MountDevice,
    SetUp,
    Remount,
    Expand,
    PodsUnresolved,
    UnmountDevice,
    Detach,
    BackingOff,
    Mounted,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let nothing = s.wanted.values().next().map(|wanted| AttachedVolume::new(Arc::clone(&wanted.mount.spec)));
    let Some(actual) = s.actual.as_ref().or(nothing.as_ref()) else {
        return match s.records.is_empty() || s.is_busy() {
            true => Decision::rest(Why::Nothing),
            false => Decision::act([Action::ForgetVolume { volume: s.volume.clone() }], Why::Nothing),
        };
    };
    let mut later = Later::default();
    // Who detaches is not on this node: its part there may be gone already.
    let is_only_attached = s.wanted.is_empty() && actual.pods.is_empty() && actual.device.is_none();
    if let Some(reason) = s.unreachable.as_ref().filter(|_| !is_only_attached) {
        return without_plugin(s, actual, reason, now);
    }
    let leaving = tear_down(s, actual, &mut later, now);
    if !leaving.is_empty() {
        return Decision::together(leaving, Why::TearDown);
    }
    if s.is_busy() {
        return Decision::rest(Why::Busy);
    }
    if let Some(reason) = s.not_ready.as_ref().filter(|_| !s.wanted.is_empty()) {
        return without_plugin(s, actual, reason, now);
    }
    let (actions, why) = mount(s, actual, &mut later, now);
    if !actions.is_empty() {
        return Decision { wake_at: later.at, ..Decision::act(actions, why) };
    }
    if s.wanted.is_empty() && actual.pods.is_empty() {
        if s.pods_unresolved {
            return Decision::rest(Why::PodsUnresolved);
        }
        if let Some((action, why)) = leave_node(s, actual, &mut later, now) {
            return Decision::act([action], why);
        }
    }
    let why = if later.backs_off { Why::BackingOff } else { why };
    Decision { wake_at: later.at, ..Decision::rest(why) }
}

/// Takes it from the pods that are gone, side by side.
fn tear_down(s: &Snapshot, actual: &AttachedVolume, later: &mut Later, now: Timestamp) -> Vec<Action> {
    let gone = actual.pods.iter().filter(|(uid, _)| !s.live.contains(uid));
    let mut actions = Vec::new();
    for (uid, mounted) in gone {
        let operation = VolumeOperation::of(&s.volume, uid, OperationName::TearDown);
        let is_free = s.records.iter().all(|(other, record)| !record.is_running() || !other.excludes(&operation));
        if is_free && later.may_start(s, &operation, now) {
            let (volume, spec) = (s.volume.clone(), Arc::clone(&mounted.spec));
            actions.push(Action::TearDown { volume, uid: uid.clone(), spec });
        }
    }
    actions
}

/// The next step towards having it mounted for every pod that wants it; one operation at a time.
fn mount(s: &Snapshot, actual: &AttachedVolume, later: &mut Later, now: Timestamp) -> (Vec<Action>, Why) {
    let (mut mounted, mut waiting) = (Vec::new(), Vec::new());
    for (uid, wanted) in &s.wanted {
        match actual.pods.get(uid).filter(|mounted| mounted.state == MountState::Mounted) {
            Some(is) => mounted.push((uid, wanted, is)),
            None => waiting.push((uid, wanted)),
        }
    }
    if let Some(found) = set_up_waiting(s, actual, &waiting, later, now) {
        return found;
    }
    for (uid, wanted, is) in &mounted {
        let may_mount = matches!(s.attachment, Attachment::NotNeeded | Attachment::Attached);
        if !may_mount || !needs_remount(wanted, is, later, now) {
            continue;
        }
        let operation = VolumeOperation::of(&s.volume, uid, OperationName::SetUp);
        if later.may_start(s, &operation, now) {
            return (vec![set_up(s, wanted)], Why::Remount);
        }
    }
    if let (Some(action), true) = (expand(s, &mounted, later, now), !actual.cannot_grow) {
        return (vec![action], Why::Expand);
    }
    let why = match (waiting.is_empty(), mounted.is_empty()) {
        (true, true) => Why::Nothing,
        (true, false) => Why::Mounted,
        (false, _) => Why::OtherPodHasIt,
    };
    (std::mem::take(&mut later.told), why)
}

fn set_up_waiting(
    s: &Snapshot,
    actual: &AttachedVolume,
    waiting: &[(&String, &Wanted)],
    later: &mut Later,
    now: Timestamp,
) -> Option<(Vec<Action>, Why)> {
    if waiting.is_empty() {
        return None;
    }
    match s.attachment {
        Attachment::NotNeeded | Attachment::Attached => {}
        Attachment::NodeUnknown => return Some((Vec::new(), Why::WaitingForNode)),
        Attachment::NotInUse => return Some((Vec::new(), Why::WaitingForInUse)),
        Attachment::NotAttached => return Some((Vec::new(), Why::WaitingForAttach)),
        Attachment::ToAttach => {
            let operation = VolumeOperation::on(&s.volume, OperationName::Attach);
            let (_, wanted) = waiting.first()?;
            let (pod, mount) = (Arc::clone(&wanted.pod), Box::new(wanted.mount.clone()));
            let attach = Action::Attach { volume: s.volume.clone(), pod, mount };
            return Some((later.may_start(s, &operation, now).then_some(attach).into_iter().collect(), Why::Attach));
        }
    }
    for (uid, wanted) in waiting {
        if let Some(told) = held_back(uid, &wanted.mount, actual) {
            later.tell(wanted, told, now);
            continue;
        }
        if has_other_label(&wanted.mount, actual) && actual.pods.is_empty() {
            let operation = VolumeOperation::on(&s.volume, OperationName::UnmountDevice);
            let (volume, spec) = (s.volume.clone(), Arc::clone(&actual.spec));
            let unmount = later.may_start(s, &operation, now).then_some(Action::UnmountDevice { volume, spec });
            return Some((unmount.into_iter().collect(), Why::OtherLabel));
        }
        let needs_device = wanted.mount.traits.is_device_mountable && actual.device != Some(MountState::Mounted);
        if needs_device {
            let operation = VolumeOperation::on(&s.volume, OperationName::MountDevice);
            if later.may_start(s, &operation, now) {
                let (pod, mount) = (Arc::clone(&wanted.pod), Box::new(wanted.mount.clone()));
                let action = Action::MountDevice { volume: s.volume.clone(), pod, mount };
                return Some((vec![action], Why::MountDevice));
            }
            return Some((Vec::new(), Why::BackingOff));
        }
        let operation = VolumeOperation::of(&s.volume, uid, OperationName::SetUp);
        if later.may_start(s, &operation, now) {
            return Some((vec![set_up(s, wanted)], Why::SetUp));
        }
    }
    None
}

/// Why a pod must wait until another has given the volume back.
pub fn held_back(uid: &str, mount: &VolumeToMount, actual: &AttachedVolume) -> Option<String> {
    let spec = &mount.spec;
    if spec.is_once_per_pod() && actual.pods.keys().any(|other| other != uid) {
        return Some(format!("volume {spec} has access mode ReadWriteOncePod and is in use by another pod"));
    }
    let by_others = !actual.pods.is_empty() && !actual.pods.contains_key(uid);
    (by_others && has_other_label(mount, actual))
        .then(|| format!("volume {spec} is mounted with another SELinux label; the pod waits until it is unmounted"))
}

fn has_other_label(mount: &VolumeToMount, actual: &AttachedVolume) -> bool {
    actual.device.is_some() && actual.se_linux_label != mount.se_linux_label
}

fn set_up(s: &Snapshot, wanted: &Wanted) -> Action {
    let (pod, mount) = (Arc::clone(&wanted.pod), Box::new(wanted.mount.clone()));
    Action::SetUp { volume: s.volume.clone(), pod, mount }
}

/// Whether what it is made of has changed, or ends soon.
fn needs_remount(wanted: &Wanted, mounted: &MountedVolume, later: &mut Later, now: Timestamp) -> bool {
    let mount = &wanted.mount;
    let is_old = match mounted.again_at {
        Some(at) if at > now => {
            later.wake(at);
            false
        }
        at => at.is_some(),
    };
    is_old
        || (mount.traits.remount == Remount::OnChange && (mounted.inputs != mount.inputs || mounted.spec != mount.spec))
}

fn expand(
    s: &Snapshot,
    mounted: &[(&String, &Wanted, &MountedVolume)],
    later: &mut Later,
    now: Timestamp,
) -> Option<Action> {
    let writer = mounted.iter().find(|(_, wanted, _)| !wanted.mount.spec.read_only);
    let (_, wanted, _) = writer.or_else(|| mounted.first())?;
    let expansion = s.expansion.is_needed().then(|| s.expansion.clone())?;
    let operation = VolumeOperation::on(&s.volume, OperationName::Expand);
    let (pod, mount) = (Arc::clone(&wanted.pod), Box::new(wanted.mount.clone()));
    later.may_start(s, &operation, now).then_some(Action::Expand { volume: s.volume.clone(), pod, mount, expansion })
}

/// Takes it from the node that no pod wants it on any more.
fn leave_node(s: &Snapshot, actual: &AttachedVolume, later: &mut Later, now: Timestamp) -> Option<(Action, Why)> {
    let spec = Arc::clone(&actual.spec);
    let volume = s.volume.clone();
    if actual.device.is_some() {
        let operation = VolumeOperation::on(&s.volume, OperationName::UnmountDevice);
        let action = Action::UnmountDevice { volume, spec };
        return later.may_start(s, &operation, now).then_some((action, Why::UnmountDevice));
    }
    if actual.is_attached_here {
        let operation = VolumeOperation::on(&s.volume, OperationName::Detach);
        return later.may_start(s, &operation, now).then_some((Action::Detach { volume, spec }, Why::Detach));
    }
    None
}

fn without_plugin(s: &Snapshot, actual: &AttachedVolume, reason: &str, now: Timestamp) -> Decision<Action, Why> {
    let mut later = Later::default();
    // After a restart the mounts are there before the driver has registered again: that is no news.
    for (_, wanted) in s.wanted.iter().filter(|(uid, _)| !actual.pods.contains_key(*uid)) {
        later.tell(wanted, format!("volume {}: {reason}", wanted.mount.spec), now);
    }
    Decision { wake_at: later.at, ..Decision::act(later.told, Why::WaitingForPlugin) }
}

/// What is put off until when, and what is said meanwhile.
#[derive(Default)]
struct Later {
    at: Option<Timestamp>,
    backs_off: bool,
    told: Vec<Action>,
}

impl Later {
    fn wake(&mut self, at: Timestamp) {
        self.at = self.at.into_iter().chain([at]).min();
    }

    fn may_start(&mut self, s: &Snapshot, operation: &VolumeOperation, now: Timestamp) -> bool {
        match s.records.get(operation) {
            Some(record) if record.is_running() => false,
            Some(record) if !record.may_start(now) => {
                self.wake(record.retry_at);
                self.backs_off = true;
                false
            }
            _ => true,
        }
    }

    fn tell(&mut self, wanted: &Wanted, message: String, now: Timestamp) {
        match wanted.told.until(&message, &(), now) {
            Some(at) => self.wake(at),
            None => self.told.push(Action::Explain { pod: wanted.pod.reference(), message }),
        }
    }
}

impl Snapshot {
    fn is_busy(&self) -> bool {
        self.records.values().any(Record::is_running)
    }
}
