//! One VolumeGroupSnapshotContent by itself.

use jiff::Timestamp;

use stowage_model::finalizers;
use stowage_model::object::Projection;
use stowage_runtime::api::Target;
use stowage_runtime::events::Note;

use super::super::{Action, Decision, GroupAction, Why, add_finalizers};
use crate::snapshot::GroupContentFacts;

pub fn decide(facts: &GroupContentFacts, now: Timestamp) -> Decision {
    let content = &facts.content;
    let source = &content.spec.source;
    if source.volume_handles.is_empty() == source.group_snapshot_handles.is_none() {
        let reason = "GroupContentValidationError";
        let message = "spec.source must have exactly one of volumeHandles and groupSnapshotHandles; delete this content and \
                       create it anew";
        let note = Note::warning(reason, message);
        return match facts.told.until(&(), &note, now) {
            Some(again_at) => Decision::wait_until(again_at, Why::Broken(reason)),
            None => Decision::act([Action::Tell { about: content.reference(), note }], Why::Broken(reason)),
        };
    }
    // Nobody has checked yet that the group wants it, too.
    if content.spec.volume_group_snapshot_ref.uid.is_empty() || content.meta.is_deleting() {
        return Decision::rest(Why::Quiet);
    }
    let operations = add_finalizers(&content.meta, &[finalizers::GROUP_SNAPSHOT_CONTENT_BOUND]);
    if operations.is_empty() {
        return Decision::rest(Why::Fine);
    }
    let guard = GroupAction::Guard { target: Target::exact(&content.meta), operations };
    Decision::act([Action::Group(guard)], Why::Guarding)
}
