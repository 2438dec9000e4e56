//! One VolumeSnapshotContent by itself.

use jiff::Timestamp;

use stowage_model::finalizers;
use stowage_model::object::Projection;
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

/// Who deletes a content whose VolumeSnapshot stays waits for ever, and is told so.
fn deleting(facts: &ContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let View::Known(snapshot) = &facts.snapshot else { return Decision::rest(Why::ContentDeleting) };
    let is_held = content.meta.has_finalizer(finalizers::SNAPSHOT_CONTENT_BOUND);
    if !is_held || !is_bound_to(content, &snapshot.meta) || snapshot.meta.is_deleting() {
        return Decision::rest(Why::ContentDeleting);
    }
    let message = format!(
        "the content is kept while VolumeSnapshot {:?} is bound to it; delete that VolumeSnapshot",
        snapshot.meta.key().to_string()
    );
    tell(facts, Note::warning("SnapshotDeletePending", message), Why::ContentDeleting, now)
}

fn tell(facts: &ContentFacts, note: Note, why: Why, now: Timestamp) -> Decision {
    match facts.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell { about: facts.content.reference(), note }], why),
    }
}
