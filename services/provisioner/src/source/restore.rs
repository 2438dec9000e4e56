//! Whether a volume can be made from a VolumeSnapshot now.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::annotations::ALLOW_VOLUME_MODE_CHANGE;
use stowage_model::finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
use stowage_model::labels::SNAPSHOT_MANAGED_BY;
use stowage_model::volume_snapshot::VolumeSnapshotContent;
use stowage_runtime::cache::View;
use stowage_runtime::operation::{Record, State};

use super::problem::Said;
use super::{Asked, Look, Missing, Problem, Restorable};
use crate::intent::Source;

/// A content that does not suit is read again after this: the original's role does not let contents be watched.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

pub fn check(
    asked: &Asked<'_>,
    snapshot: &View<Restorable>,
    is_listed: bool,
    look: Option<&Record<Look>>,
) -> Result<Source, Missing> {
    let origin = || asked.origin();
    asked.need(asked.facts.snapshots, "CREATE_DELETE_SNAPSHOT")?;
    let snapshot = match snapshot {
        View::Known(snapshot) => snapshot,
        View::Unknown => return Err(Missing::Looking),
        View::Absent if is_listed => return Err(Problem::FindSnapshot { origin: origin() }.into()),
        View::Absent => {
            done(asked, look, None)?;
            return Err(Problem::FindSnapshot { origin: origin() }.into());
        }
    };
    asked.need_lasting(&snapshot.meta, SNAPSHOT_SOURCE_OF_PROVISIONER)?;
    let error = || Said(snapshot.error.as_deref().map(str::to_owned));
    let Some(bound_to) = snapshot.bound_to.as_deref() else {
        return Err(Problem::BindSnapshot { origin: origin(), error: error() }.into());
    };
    if !snapshot.is_ready {
        return Err(Problem::ReadySnapshot { origin: origin(), error: error() }.into());
    }
    let requested = asked.claim.requested();
    if let Some(least) = snapshot.restore_size.filter(|least| requested < *least) {
        let field = "status.restoreSize";
        return Err(Problem::FitData { origin: origin(), requested, field, least }.into());
    }
    let (content, since) = done(asked, look, Some(bound_to))?;
    let handle = content_handle(asked, snapshot, bound_to, content.as_deref()).map_err(|problem| {
        let again_at = since.saturating_add(SignedDuration::try_from(LOOK_AGAIN).unwrap_or_default());
        match again_at.unwrap_or(Timestamp::MAX) {
            due if due <= asked.now => Missing::Look,
            due => Missing::Until(problem, due),
        }
    })?;
    if let (Some(node), Some(content)) = (&asked.facts.node, &content)
        && let Some(manager) = content.meta.labels.get(SNAPSHOT_MANAGED_BY).filter(|manager| **manager != node.name)
    {
        let place = format!("node {manager:?}");
        return Err(Missing::Elsewhere(Problem::Reach { origin: origin(), place, node: node.name.clone() }));
    }
    Ok(asked.source(&snapshot.meta.uid, &handle))
}

/// What the live look at just this binding found, and when.
fn done(
    asked: &Asked<'_>,
    look: Option<&Record<Look>>,
    bound_to: Option<&str>,
) -> Result<(Option<Arc<VolumeSnapshotContent>>, Timestamp), Missing> {
    let Some(record) = look else { return Err(Missing::Look) };
    match &record.state {
        State::Running => Err(Missing::Looking),
        State::Done(look) if look.bound_to.as_deref() == bound_to => Ok((look.content.clone(), record.since)),
        State::Done(_) => Err(Missing::Look),
        State::Failed(failure) | State::Uncertain(failure) if record.retry_at > asked.now => {
            let reason = failure.message.clone();
            Err(Missing::Until(Problem::ReadContent { origin: asked.origin(), reason }, record.retry_at))
        }
        State::Failed(_) | State::Uncertain(_) => Err(Missing::Look),
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
