//! Which volumes a pod waits for, and why: a sentence for its status.

use std::collections::{BTreeMap, BTreeSet};

use stowage_model::names::UniqueVolumeName;
use stowage_plugins::{Certainty, Fault};
use stowage_runtime::operation::State;

use super::volume::Attachment;
use crate::desired_state::PodVolumes;
use crate::executor::{OperationName, Record, VolumeOperation};

/// One volume that is not mounted for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Unmounted {
    /// Why its plugin can do nothing, at the moment or ever.
    pub not_ready: Option<Fault>,
    pub attachment: Attachment,
    /// What the one who attaches said last.
    pub attach_error: Option<String>,
    /// Its driver, if the node can take no more of its volumes and the driver wants pods to go elsewhere then.
    pub over_limit: Option<String>,
    /// Why it must be given back by another pod first.
    pub held_back: Option<String>,
    pub records: BTreeMap<VolumeOperation, Record>,
}

/// What a pod waits for, and what becomes of it by that.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waiting {
    /// A sentence, if all that is waited for is known.
    pub sentence: Option<String>,
    /// Drivers of which the node can take no more volumes.
    pub over_limit: BTreeSet<String>,
}

/// What a pod waits for.
pub fn waiting(uid: &str, volumes: &PodVolumes, unmounted: &BTreeMap<UniqueVolumeName, Unmounted>) -> Waiting {
    let over_limit = unmounted.values().filter_map(|found| found.over_limit.clone()).collect();
    Waiting { sentence: sentence(uid, volumes, unmounted), over_limit }
}

/// The sentence, if all that is waited for is known; none while something is on its way, for what comes of it is news soon.
fn sentence(uid: &str, volumes: &PodVolumes, unmounted: &BTreeMap<UniqueVolumeName, Unmounted>) -> Option<String> {
    let mut causes: BTreeMap<String, String> = BTreeMap::new();
    for problem in &volumes.problems {
        causes.insert(problem.volume.clone(), problem.message.clone());
    }
    for (name, found) in unmounted {
        let Some(mount) = volumes.volumes.get(name) else { continue };
        let cause = cause(uid, found)?.text;
        for outer in &mount.outer_names {
            causes.insert(outer.clone(), format!("volume {outer:?}: {cause}"));
        }
    }
    let causes: Vec<String> = causes.into_values().collect();
    (!causes.is_empty()).then(|| causes.join("; "))
}

/// Why one volume is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub text: String,
    /// Trying again leads to the same end: somebody must change the pod or the volume.
    pub is_final: bool,
}

impl Cause {
    fn for_now(text: String) -> Self {
        Self { text, is_final: false }
    }
}

/// Why a volume is not there; none while something is on its way.
pub fn cause(uid: &str, found: &Unmounted) -> Option<Cause> {
    if let Some(fault) = &found.not_ready {
        return Some(Cause { text: fault.message.clone(), is_final: fault.certainty == Certainty::Final });
    }
    match found.attachment {
        Attachment::NodeUnknown | Attachment::NotInUse | Attachment::NotAttached => {
            return Some(Cause::for_now(match &found.attach_error {
                Some(error) => format!("it is not attached to the node: {error}"),
                None => "it is not attached to the node yet".to_owned(),
            }));
        }
        Attachment::NotNeeded | Attachment::Attached | Attachment::ToAttach => {}
    }
    if let Some(text) = &found.held_back {
        return Some(Cause::for_now(text.clone()));
    }
    if found.records.values().any(Record::is_running) {
        return None;
    }
    // Failures of other pods on the same volume are not this pod's.
    let own = found.records.iter().filter(|(operation, _)| operation.pod.as_deref().is_none_or(|pod| pod == uid));
    let failed = own.filter_map(|(operation, record)| match &record.state {
        State::Failed(failure) | State::Uncertain(failure) => Some((record.since, operation.name, failure)),
        State::Running | State::Done(()) => None,
    });
    let (_, name, failure) = failed.max_by_key(|(since, ..)| *since)?;
    let (what, is_towards) = match name {
        OperationName::Attach => ("it cannot be attached", true),
        OperationName::MountDevice | OperationName::SetUp => ("it cannot be mounted", true),
        OperationName::TearDown | OperationName::UnmountDevice => ("it cannot be unmounted", false),
        OperationName::Detach => ("it cannot be detached", false),
        OperationName::Expand => ("it cannot grow", false),
        OperationName::BindPart => ("a part of it cannot be shown", false),
    };
    // A driver's final answer says that nothing is mounted, not that it will answer so again; our own refusal does.
    let is_final = is_towards && failure.code == Fault::REFUSED;
    Some(Cause { text: format!("{what}: {}", failure.message), is_final })
}
