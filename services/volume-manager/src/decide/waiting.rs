//! Which volumes a pod waits for, and why: a sentence for its status.

use std::collections::{BTreeMap, BTreeSet};

use stowage_model::names::UniqueVolumeName;
use stowage_runtime::operation::State;

use super::volume::Attachment;
use crate::desired_state::PodVolumes;
use crate::executor::{OperationName, Record, VolumeOperation};

/// One volume that is not mounted for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Unmounted {
    /// Why its plugin can do nothing at the moment.
    pub not_ready: Option<String>,
    pub attachment: Attachment,
    /// What the one who attaches said last.
    pub attach_error: Option<String>,
    /// Its driver, if the node can take no more of its volumes and the driver wants pods to go elsewhere then.
    pub over_limit: Option<String>,
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
        let cause = cause(uid, found)?;
        for outer in &mount.outer_names {
            causes.insert(outer.clone(), format!("volume {outer:?}: {cause}"));
        }
    }
    let causes: Vec<String> = causes.into_values().collect();
    (!causes.is_empty()).then(|| causes.join("; "))
}

fn cause(uid: &str, found: &Unmounted) -> Option<String> {
    if let Some(reason) = &found.not_ready {
        return Some(reason.clone());
    }
    match found.attachment {
        Attachment::NodeUnknown | Attachment::NotInUse | Attachment::NotAttached => {
            return Some(match &found.attach_error {
                Some(error) => format!("it is not attached to the node: {error}"),
                None => "it is not attached to the node yet".to_owned(),
            });
        }
        Attachment::NotNeeded | Attachment::Attached | Attachment::ToAttach => {}
    }
    if found.records.values().any(Record::is_running) {
        return None;
    }
    // Failures of other pods on the same volume are not this pod's.
    let own = found.records.iter().filter(|(operation, _)| operation.pod.as_deref().is_none_or(|pod| pod == uid));
    let failed = own.filter_map(|(operation, record)| match &record.state {
        State::Failed(failure) | State::Uncertain(failure) => Some((record.since, operation.name, &failure.message)),
        State::Running | State::Done(()) => None,
    });
    let (_, name, message) = failed.max_by_key(|(since, ..)| *since)?;
    let what = match name {
        OperationName::Attach => "it cannot be attached",
        OperationName::MountDevice | OperationName::SetUp => "it cannot be mounted",
        OperationName::TearDown | OperationName::UnmountDevice => "it cannot be unmounted",
        OperationName::Detach => "it cannot be detached",
        OperationName::Expand => "it cannot grow",
        OperationName::BindPart => "a part of it cannot be shown",
    };
    Some(format!("{what}: {message}"))
}
