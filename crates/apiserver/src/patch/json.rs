//! JSON Patch, one operation after the other, in bounded depth, size and work.

use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

use crate::bounds::{MAX_DEPTH, MAX_OBJECT, encoded_length, is_deeper_than, too_deep};
use crate::status::Status;

/// As upstream: what all `copy` operations of a patch copy together, in bytes of JSON.
const MAX_COPIED: usize = MAX_OBJECT;
/// Values that all operations together look at and list elements that they push aside (four of them count as one). A patch of the most operations that are allowed can move a small object each time.
const MAX_WORK: usize = 32 << 20;

/// What the operations of a patch have cost so far.
#[derive(Default)]
pub(super) struct Costs {
    copied: usize,
    work: usize,
}

impl Costs {
    fn work(&mut self, more: usize) -> Result<(), Status> {
        self.work = self.work.saturating_add(more);
        if self.work > MAX_WORK {
            return Err(refuse("the operations of the patch move too much; split it into several patches"));
        }
        Ok(())
    }

    fn copy(&mut self, source: &Value) -> Result<(), Status> {
        self.copied += encoded_length(source);
        if self.copied > MAX_COPIED {
            let message = format!("the operations of the patch copy more than {MAX_COPIED} bytes");
            return Err(Status::new(422, "Invalid", message));
        }
        Ok(())
    }
}

/// One operation, with two liberties that sidecars rely on: `replace` adds a missing member, and `test` takes a missing
/// member for null.
pub(super) fn apply(tree: &mut Value, operation: &PatchOperation, costs: &mut Costs) -> Result<(), Status> {
    check(tree, operation, costs)?;
    let lenient = match operation {
        PatchOperation::Replace(replace) if is_missing_member(tree, replace.path.as_str()) => {
            Some(PatchOperation::Add(AddOperation { path: replace.path.clone(), value: replace.value.clone() }))
        }
        PatchOperation::Test(test) if test.value.is_null() && tree.pointer(test.path.as_str()).is_none() => {
            return Ok(());
        }
        // The library takes an element off the end without looking whether there is one.
        PatchOperation::Move(moved) if tree.pointer(moved.from.as_str()).is_none() => {
            return Err(refuse(format!("there is nothing at {:?} to move", moved.from.as_str())));
        }
        _ => None,
    };
    // After an error the tree is not used any more, so that nothing needs to be undone.
    json_patch::patch_unsafe(tree, std::slice::from_ref(lenient.as_ref().unwrap_or(operation))).map_err(refuse)
}

fn refuse(why: impl std::fmt::Display) -> Status {
    Status::new(422, "Invalid", format!("the server rejected our request due to an error in our request: {why}"))
}

/// Refuses an operation whose result would be too deep, and counts what it costs.
fn check(tree: &Value, operation: &PatchOperation, costs: &mut Costs) -> Result<(), Status> {
    let fits = |path: &str, value: &Value| {
        let above = path.matches('/').count();
        if above > MAX_DEPTH || is_deeper_than(MAX_DEPTH - above, value) { Err(too_deep()) } else { Ok(()) }
    };
    match operation {
        PatchOperation::Add(add) => {
            costs.work(behind(tree, add.path.as_str()))?;
            fits(add.path.as_str(), &add.value)
        }
        PatchOperation::Replace(replace) => fits(replace.path.as_str(), &replace.value),
        PatchOperation::Remove(remove) => costs.work(behind(tree, remove.path.as_str())),
        PatchOperation::Test(_) => Ok(()),
        PatchOperation::Move(moved) => {
            costs.work(behind(tree, moved.from.as_str()) + behind(tree, moved.path.as_str()))?;
            let Some(value) = tree.pointer(moved.from.as_str()) else { return Ok(()) };
            // A move of what is shallow is cheap; only what is large is counted through.
            costs.work(values(value))?;
            fits(moved.path.as_str(), value)
        }
        PatchOperation::Copy(copy) => {
            costs.work(behind(tree, copy.path.as_str()))?;
            let Some(value) = tree.pointer(copy.from.as_str()) else { return Ok(()) };
            costs.copy(value)?;
            fits(copy.path.as_str(), value)
        }
    }
}

/// How many values there are in this one.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(elements) => 1 + elements.iter().map(values).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// What it costs to push aside the elements behind `path`, if it is one of a list.
fn behind(tree: &Value, path: &str) -> usize {
    let Some((parent, last)) = path.rsplit_once('/') else { return 1 };
    let list = tree.pointer(parent).and_then(Value::as_array);
    let index = last.parse::<usize>().unwrap_or(usize::MAX);
    1 + list.map_or(0, |list| list.len().saturating_sub(index) / 4)
}

/// Whether `path` names a member that is absent from an object that is there.
fn is_missing_member(tree: &Value, path: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else { return false };
    tree.pointer(path).is_none() && tree.pointer(parent).is_some_and(Value::is_object)
}
