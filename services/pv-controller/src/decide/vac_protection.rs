//! volumeattributesclass-protection: a class stays while anything uses it.

use stowage_model::finalizers;

use crate::snapshot::AttributesClassSnapshot;

use super::{AttributesClassAction, Decision, Why};

/// A VolumeAttributesClass stays while a claim or volume names it.
pub fn decide(s: &AttributesClassSnapshot) -> Decision<AttributesClassAction> {
    let meta = &s.class.meta;
    let protected = meta.has_finalizer(finalizers::ATTRIBUTES_CLASS_PROTECTION);
    match (meta.is_deleting(), protected) {
        (false, false) => Decision::act([AttributesClassAction::Protect], Why::Protection),
        (true, true) if s.users == 0 => Decision::act([AttributesClassAction::Unprotect], Why::Protection),
        (true, true) => Decision::rest(Why::InUse),
        _ => Decision::rest(Why::Settled),
    }
}
