//! Files about the pod itself.

mod field;
mod resource;

use std::collections::BTreeMap;

use stowage_model::Quantity;
use stowage_model::node_view::NodePod;
use stowage_model::volume_source::DownwardApiFile;

use crate::atomic_writer::{FileProjection, Payload};

pub use field::value as field_value;

/// Whether a file tells what the node can give, because a container says no limit of its own.
pub fn needs_allocatable(items: &[DownwardApiFile], pod: &NodePod) -> bool {
    let references = items.iter().filter_map(|item| item.resource_field_ref.as_ref());
    references.into_iter().any(|reference| resource::is_unlimited(reference, pod))
}

/// Adds the files; what is wrong is said for each of them.
pub fn add(
    payload: &mut Payload,
    items: &[DownwardApiFile],
    default_mode: u32,
    pod: &NodePod,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<(), String> {
    let mut wrong = Vec::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field::value(&field.field_path, pod),
            (None, Some(reference)) => resource::value(reference, pod, allocatable),
            (None, None) => Err("needs fieldRef or resourceFieldRef".to_owned()),
        };
        match text {
            Ok(text) => {
                let mode = item.mode.unwrap_or(default_mode);
                payload.insert(item.path.clone(), FileProjection { data: text.into_bytes(), mode, uid: None });
            }
            Err(error) => wrong.push(format!("downwardAPI file {:?}: {error}", item.path)),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}
