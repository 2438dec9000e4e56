//! One VolumeGroupSnapshot: its claims are chosen once, its content is made, then a VolumeSnapshot and a content for each
//! member that the driver made.

pub mod content;
mod creation;
mod deletion;
mod members;
mod status;

use jiff::Timestamp;
use serde_json::json;

use stowage_model::object::{Meta, Projection};
use stowage_model::{VolumeGroupSnapshotContent, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::{Action, Decision, GroupAction, Problem, Why, add_finalizers};
use crate::snapshot::Group;

pub fn decide(group: &Group, now: Timestamp) -> Decision {
    if !group.is_listed {
        return Decision::rest(Why::Unlisted);
    }
    let object = &group.group;
    if object.meta.is_deleting() {
        return deletion::decide(group, now);
    }
    let source = &object.spec.source;
    if source.selector.is_some() == source.volume_group_snapshot_content_name.is_some() {
        let message = "spec.source must have exactly one of selector and volumeGroupSnapshotContentName; delete this group \
                       snapshot and create it anew";
        return status::fail(group, Problem::new("GroupSnapshotValidationError", message), now);
    }
    let content = match &group.content {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Known(content) => content,
        View::Absent => return without_content(group, now),
    };
    match problem_with(group, content) {
        Some(problem) => status::fail(group, problem, now),
        None => with_content(group, content, now),
    }
}

fn without_content(group: &Group, now: Timestamp) -> Decision {
    let object = &group.group;
    let name = &group.content_name;
    let is_made = object.status.as_ref().is_some_and(|status| status.creation_time.is_some());
    if object.spec.source.volume_group_snapshot_content_name.is_some() || object.is_ready() || is_made {
        let message = format!(
            "VolumeGroupSnapshotContent {name:?} does not exist; create that object, or delete this group snapshot"
        );
        return status::fail(group, Problem::new("GroupSnapshotContentMissing", message), now);
    }
    creation::decide(group, now)
}

/// Whether the content names this very group, by its uid.
fn is_bound_to(content: &VolumeGroupSnapshotContent, meta: &Meta) -> bool {
    let reference = &content.spec.volume_group_snapshot_ref;
    !reference.uid.is_empty() && reference.names(meta)
}

/// What keeps this content from being the group's.
fn problem_with(group: &Group, content: &VolumeGroupSnapshotContent) -> Option<Problem> {
    let (object, name) = (&group.group, &content.meta.name);
    let handles = &content.spec.source.group_snapshot_handles;
    let by_hand = object.spec.source.volume_group_snapshot_content_name.is_some();
    if by_hand && handles.is_none() {
        let message = format!(
            "VolumeGroupSnapshotContent {name:?} has no spec.source.groupSnapshotHandles: it was made for a group of claims, not \
             for one that exists; name another content"
        );
        return Some(Problem::new("GroupSnapshotContentMismatch", message));
    }
    if !by_hand && handles.is_some() {
        let (reason, message) = if content.spec.source.volume_handles.is_empty() {
            ("GroupSnapshotContentMismatch", "stands for a group snapshot that existed before; delete that content")
        } else {
            (
                "GroupSnapshotHandleSet",
                "has both volumeHandles and groupSnapshotHandles in spec.source; delete that content",
            )
        };
        return Some(Problem::new(reason, format!("VolumeGroupSnapshotContent {name:?} {message}")));
    }
    let reference = &content.spec.volume_group_snapshot_ref;
    let fits = if by_hand { reference.names(&object.meta) } else { is_bound_to(content, &object.meta) };
    if fits {
        return None;
    }
    let reason = if object.is_ready() { "GroupSnapshotMisbound" } else { "GroupSnapshotContentMisbound" };
    let message = format!(
        "VolumeGroupSnapshotContent {name:?} belongs to another VolumeGroupSnapshot by its spec.volumeGroupSnapshotRef; delete \
         this group snapshot: nothing of the content goes with it"
    );
    Some(Problem::new(reason, message))
}

fn with_content(group: &Group, content: &VolumeGroupSnapshotContent, now: Timestamp) -> Decision {
    let object = &group.group;
    let mut actions = Vec::new();
    let operations = add_finalizers(&object.meta, &[finalizers::GROUP_SNAPSHOT_BOUND]);
    if !operations.is_empty() {
        actions.push(GroupAction::Prepare { target: Target::exact(&object.meta), operations });
    }
    actions.extend(bind(group, content));
    if !actions.is_empty() {
        return act(actions, Why::Binding);
    }
    if object.is_ready() && object.bound_content().is_some() {
        return Decision::rest(Why::Ready);
    }
    members::decide(group, content).unwrap_or_else(|| status::copy(group, content, now))
}

/// What a content that was made by hand still lacks.
fn bind(group: &Group, content: &VolumeGroupSnapshotContent) -> Option<GroupAction> {
    let (object, spec) = (&group.group, &content.spec);
    let class = object.spec.volume_group_snapshot_class_name.as_ref();
    let class = class.filter(|_| spec.volume_group_snapshot_class_name.is_none());
    if !spec.volume_group_snapshot_ref.uid.is_empty() && class.is_none() {
        return None;
    }
    let mut body = json!({ "spec": { "volumeGroupSnapshotRef": { "uid": object.meta.uid } } });
    if let Some(class) = class {
        body["spec"]["volumeGroupSnapshotClassName"] = class.as_str().into();
    }
    let guard = finalizers::GROUP_SNAPSHOT_CONTENT_BOUND;
    if !content.meta.is_deleting() && !content.meta.has_finalizer(guard) {
        let mut all = content.meta.finalizers.clone();
        all.push(guard.into());
        body["metadata"] = json!({ "finalizers": all });
    }
    Some(GroupAction::Bind { target: Target::exact(&content.meta), body })
}

fn act(actions: impl IntoIterator<Item = GroupAction>, why: Why) -> Decision {
    let actions: Vec<Action> = actions.into_iter().map(Action::Group).collect();
    Decision::act(actions, why)
}

/// Tells people something, unless they know it.
fn tell(group: &Group, note: Note, why: Why, now: Timestamp) -> Decision {
    match group.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell { about: group.group.reference(), note }], why),
    }
}
