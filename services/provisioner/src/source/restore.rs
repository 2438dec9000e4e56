//! Whether a volume can be made from a VolumeSnapshot now.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::annotations::ALLOW_VOLUME_MODE_CHANGE;
use stowage_model::finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
use stowage_model::labels::SNAPSHOT_MANAGED_BY;
use stowage_model::volume_snapshot::VolumeSnapshotContent;
use stowage_runtime::cache::View;
use stowage_runtime::operation::{Failure, Record, State};

use super::problem::Said;
use super::{Asked, Look, Missing, Problem, Restorable};
use crate::intent::Source;

/// What does not suit is looked at again after this, where nobody tells of its change: the original's role lets contents be
/// read and not watched, and until its 6.1 snapshots too.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// `is_followed` says whether a change of the snapshot wakes the claim.
pub fn check(
    asked: &Asked<'_>,
    snapshot: &View<Restorable>,
    look: Option<&Record<Look>>,
    is_followed: bool,
) -> Result<Source, Missing> {
    let origin = || asked.origin();
    asked.need(asked.facts.snapshots, "CREATE_DELETE_SNAPSHOT")?;
    let snapshot = match snapshot {
        View::Known(snapshot) => snapshot,
        View::Unknown => return Err(Missing::Looking),
        View::Absent => return Err(absent(asked, look, is_followed)),
    };
    let bound_to = usable(asked, snapshot).map_err(|problem| match is_followed {
        true => problem.into(),
        false => until_seen(asked, problem, look, is_followed),
    })?;
    let (content, since) = done(asked, look, bound_to)?;
    let handle = content_handle(asked, snapshot, bound_to, content.as_deref())
        .map_err(|problem| again(asked, problem, after_a_look(since)))?;
    if let (Some(node), Some(content)) = (&asked.facts.node, &content)
        && let Some(manager) = content.meta.labels.get(SNAPSHOT_MANAGED_BY).filter(|manager| **manager != node.name)
    {
        let place = format!("node {manager:?}");
        return Err(Missing::Elsewhere(Problem::Reach { origin: origin(), place, node: node.name.clone() }));
    }
    Ok(asked.source(&snapshot.meta.uid, &handle))
}

/// The content that a snapshot is bound to, if nothing that the snapshot says stands in the way.
fn usable<'a>(asked: &Asked<'_>, snapshot: &'a Restorable) -> Result<&'a str, Problem> {
    let origin = || asked.origin();
    asked.need_lasting(&snapshot.meta, SNAPSHOT_SOURCE_OF_PROVISIONER)?;
    let error = || Said(snapshot.error.as_deref().map(str::to_owned));
    let Some(bound_to) = snapshot.bound_to.as_deref() else {
        return Err(Problem::BindSnapshot { origin: origin(), error: error() });
    };
    if !snapshot.is_ready {
        return Err(Problem::ReadySnapshot { origin: origin(), error: error() });
    }
    let requested = asked.claim.requested();
    if let Some(least) = snapshot.restore_size.filter(|least| requested < *least) {
        let field = "status.restoreSize";
        return Err(Problem::FitData { origin: origin(), requested, field, least });
    }
    Ok(bound_to)
}

/// A snapshot that no list and no event has shown is looked for: its event may come after that of the claim.
fn absent(asked: &Asked<'_>, look: Option<&Record<Look>>, is_followed: bool) -> Missing {
    let problem = match look.map(|record| &record.state) {
        Some(State::Failed(failure) | State::Uncertain(failure)) => unreadable(asked, failure),
        _ => Problem::FindSnapshot { origin: asked.origin() },
    };
    until_seen(asked, problem, look, is_followed)
}

/// What stands in the way as far as lists and events tell. A change wakes the claim where snapshots may be watched; where
/// they may not, only a look shows it.
fn until_seen(asked: &Asked<'_>, problem: Problem, look: Option<&Record<Look>>, is_followed: bool) -> Missing {
    let Some(record) = look else { return Missing::Look };
    match &record.state {
        State::Running => Missing::Looking,
        State::Done(_) if is_followed => problem.into(),
        State::Done(_) => again(asked, problem, after_a_look(record.since)),
        State::Failed(_) | State::Uncertain(_) => again(asked, problem, record.retry_at),
    }
}

fn again(asked: &Asked<'_>, problem: Problem, due: Timestamp) -> Missing {
    if due <= asked.now { Missing::Look } else { Missing::Until(problem, due) }
}

fn after_a_look(since: Timestamp) -> Timestamp {
    let wait = SignedDuration::try_from(LOOK_AGAIN).unwrap_or_default();
    since.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

fn unreadable(asked: &Asked<'_>, failure: &Failure) -> Problem {
    Problem::ReadContent { origin: asked.origin(), reason: failure.message.clone() }
}

/// What the live look at just this binding of a ready snapshot found, and when.
fn done(
    asked: &Asked<'_>,
    look: Option<&Record<Look>>,
    bound_to: &str,
) -> Result<(Option<Arc<VolumeSnapshotContent>>, Timestamp), Missing> {
    let Some(record) = look else { return Err(Missing::Look) };
    match &record.state {
        State::Running => Err(Missing::Looking),
        State::Done(look) if look.is_ready && look.bound_to.as_deref() == Some(bound_to) => {
            Ok((look.content.clone(), record.since))
        }
        State::Done(_) => Err(Missing::Look),
        State::Failed(failure) | State::Uncertain(failure) => {
            Err(again(asked, unreadable(asked, failure), record.retry_at))
        }
    }
}

fn content_handle(
    asked: &Asked<'_>,
    snapshot: &Restorable,
    name: &str,
    content: Option<&VolumeSnapshotContent>,
) -> Result<String, Problem> {
    let (origin, name) = (asked.origin(), name.to_owned());
    let Some(content) = content else { return Err(Problem::FindContent { origin, content: name }) };
    let named = &content.spec.volume_snapshot_ref;
    if !named.names(&snapshot.meta) || named.uid.is_empty() {
        let named = format!("{}, uid {:?},", named.key(), named.uid);
        return Err(Problem::MatchContent { origin, content: name, named });
    }
    asked.need_driver(format!("spec.driver of VolumeSnapshotContent {name:?}"), &content.spec.driver)?;
    let Some(handle) = content.snapshot_handle() else { return Err(Problem::FindHandle { origin, content: name }) };
    let wanted = asked.claim.spec.volume_mode;
    if let Some(found) = content.spec.source_volume_mode.as_ref().filter(|mode| *mode != wanted.as_str())
        && asked.facts.options.prevent_volume_mode_conversion
        && !content.meta.annotation(ALLOW_VOLUME_MODE_CHANGE).is_some_and(is_true)
    {
        return Err(Problem::ConvertMode { content: name, wanted, found: found.clone() });
    }
    Ok(handle.to_owned())
}

/// As Go reads a boolean, which is how the original reads this annotation.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
