//! One VolumeGroupSnapshotContent by itself.

use jiff::Timestamp;

use stowage_model::object::Projection;
use stowage_model::{annotations, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::super::{Action, Decision, GroupAction, Why, add_finalizers};
use super::is_bound_to;
use crate::snapshot::GroupContentFacts;

pub fn decide(facts: &GroupContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let source = &content.spec.source;
    if source.volume_handles.is_empty() == source.group_snapshot_handles.is_none() {
        let reason = "GroupContentValidationError";
        let message = "spec.source must have exactly one of volumeHandles and groupSnapshotHandles; delete this content and \
                       create it anew";
        return tell(facts, Note::warning(reason, message), Why::Broken(reason), now);
    }
    // Nobody has checked yet that the group wants it, too.
    if content.spec.volume_group_snapshot_ref.uid.is_empty() {
        return Decision::rest(Why::Quiet);
    }
    if content.meta.is_deleting() {
        return deleting(facts, now);
    }
    let operations = add_finalizers(&content.meta, &[finalizers::GROUP_SNAPSHOT_CONTENT_BOUND]);
    if operations.is_empty() {
        return Decision::rest(Why::Fine);
    }
    let guard = GroupAction::Guard { target: Target::exact(&content.meta), operations };
    Decision::act([Action::Group(guard)], Why::Guarding)
}

/// Who deletes a content whose group stays, or is gone already, waits for ever, and is told so.
fn deleting(facts: &GroupContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let user = match &facts.group {
        View::Unknown => return Decision::rest(Why::ContentDeleting),
        View::Absent if !facts.is_listed => return Decision::rest(Why::Unlisted),
        View::Known(group) => Some(group).filter(|group| is_bound_to(content, &group.meta)),
        View::Absent => None,
    };
    // With its mark the snapshotter is at it.
    let is_marked = content.meta.annotation(annotations::GROUP_SNAPSHOT_BEING_DELETED).is_some();
    let is_under_way = user.map_or(is_marked, |group| group.meta.is_deleting());
    if !content.meta.has_finalizer(finalizers::GROUP_SNAPSHOT_CONTENT_BOUND) || is_under_way {
        return Decision::rest(Why::ContentDeleting);
    }
    let name = content.spec.volume_group_snapshot_ref.key().to_string();
    let message = match user {
        Some(_) => {
            format!(
                "the content is kept while VolumeGroupSnapshot {name:?} is bound to it; delete that VolumeGroupSnapshot"
            )
        }
        None => format!(
            "the VolumeGroupSnapshot {name:?} that the content was bound to is gone, and nobody has said that what the content \
             stands for may go; annotate the content with {}=yes, and the snapshotter of driver {:?} does as \
             spec.deletionPolicy {} says",
            annotations::GROUP_SNAPSHOT_BEING_DELETED,
            content.spec.driver,
            content.spec.deletion_policy.as_str()
        ),
    };
    tell(facts, Note::warning("SnapshotDeletePending", message), Why::ContentDeleting, now)
}

fn tell(facts: &GroupContentFacts, note: Note, why: Why, now: Timestamp) -> Decision {
    match facts.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell { about: facts.content.reference(), note }], why),
    }
}
