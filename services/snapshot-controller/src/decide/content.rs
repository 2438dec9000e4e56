//! One VolumeSnapshotContent by itself.

use jiff::Timestamp;

use stowage_model::object::Projection;
use stowage_model::{annotations, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::{Action, Decision, Why, add_finalizers, is_bound_to};
use crate::snapshot::ContentFacts;

pub fn decide(facts: &ContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let source = &content.spec.source;
    if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
        let message = "spec.source must have exactly one of volumeHandle and snapshotHandle; delete this content and create it \
                       anew";
        return tell(
            facts,
            Note::warning("ContentValidationError", message),
            Why::Broken("ContentValidationError"),
            now,
        );
    }
    // Nobody has checked yet that the VolumeSnapshot wants it, too.
    if content.spec.volume_snapshot_ref.uid.is_empty() {
        return Decision::rest(Why::Quiet);
    }
    if content.meta.is_deleting() {
        return deleting(facts, now);
    }
    let operations = add_finalizers(&content.meta, &[finalizers::SNAPSHOT_CONTENT_BOUND]);
    if operations.is_empty() {
        return Decision::rest(Why::Fine);
    }
    Decision::act([Action::GuardContent { target: Target::exact(&content.meta), operations }], Why::Guarding)
}

/// Who deletes a content whose VolumeSnapshot stays, or is gone already, waits for ever, and is told so.
fn deleting(facts: &ContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let user = match &facts.snapshot {
        View::Unknown => return Decision::rest(Why::ContentDeleting),
        View::Known(snapshot) => Some(snapshot).filter(|snapshot| is_bound_to(content, &snapshot.meta)),
        View::Absent => None,
    };
    // With its mark the snapshotter is at it.
    let is_marked = content.meta.annotation(annotations::SNAPSHOT_BEING_DELETED).is_some();
    let is_under_way = user.map_or(is_marked, |snapshot| snapshot.meta.is_deleting());
    if !content.meta.has_finalizer(finalizers::SNAPSHOT_CONTENT_BOUND) || is_under_way {
        return Decision::rest(Why::ContentDeleting);
    }
    let name = content.spec.volume_snapshot_ref.key().to_string();
    let message = match user {
        Some(_) => {
            format!("the content is kept while VolumeSnapshot {name:?} is bound to it; delete that VolumeSnapshot")
        }
        None => format!(
            "the VolumeSnapshot {name:?} that the content was bound to is gone, and nobody has said that what the content stands \
             for may go; annotate the content with {}=yes, and the snapshotter of driver {:?} does as spec.deletionPolicy {} says",
            annotations::SNAPSHOT_BEING_DELETED,
            content.spec.driver,
            content.spec.deletion_policy.as_str()
        ),
    };
    tell(facts, Note::warning("SnapshotDeletePending", message), Why::ContentDeleting, now)
}

fn tell(facts: &ContentFacts, note: Note, why: Why, now: Timestamp) -> Decision {
    match facts.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell { about: facts.content.reference(), note }], why),
    }
}
