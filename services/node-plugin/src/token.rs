//! Who may use a volume: the node whose token is the current one.
//!
//! Each attachment gets a token nobody had before; the record in the shared pool holds the current one. A node that
//! was cut off and comes back has an old one and can neither stage nor publish. A token does not stop a writer that
//! already runs: only the machine's death does.

use std::collections::BTreeMap;

use crate::volume::{Attachment, Record};

/// The key of the token in the publish context.
pub const TOKEN_KEY: &str = "stowage.dev/token";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("publish_context has no {TOKEN_KEY:?}; attach the volume with ControllerPublishVolume first")]
    Missing,
    #[error("the volume is not attached to any node; attach it with ControllerPublishVolume first")]
    NotAttached,
    #[error("the volume is attached to node {node}, not to this one; detach it there first")]
    AttachedElsewhere { node: String },
    #[error(
        "the token in publish_context is not the current one: the volume was attached again since; repeat with a fresh publish_context"
    )]
    Stale,
}

/// What publishing to a node means for a volume.
#[derive(Debug, PartialEq, Eq)]
pub enum Publish {
    /// The node has it already.
    Keep(Attachment),
    /// Nobody has it: the node gets a new token.
    Attach,
    /// Another node has it.
    Refuse { holder: String },
}

pub fn publish(record: &Record, node: &str) -> Publish {
    match &record.attachment {
        None => Publish::Attach,
        Some(attachment) if attachment.node == node => Publish::Keep(attachment.clone()),
        Some(attachment) => Publish::Refuse { holder: attachment.node.clone() },
    }
}

/// Whether unpublishing from a node (empty: from all) takes the volume away from its holder.
pub fn unpublish(record: &Record, node: &str) -> bool {
    record.attachment.as_ref().is_some_and(|attachment| node.is_empty() || attachment.node == node)
}

/// The token with which this node may use the volume.
pub fn check<'a>(record: &'a Record, node: &str, context: &BTreeMap<String, String>) -> Result<&'a str, Error> {
    let presented = context.get(TOKEN_KEY).ok_or(Error::Missing)?;
    let current = record.attachment.as_ref().ok_or(Error::NotAttached)?;
    if current.node != node {
        return Err(Error::AttachedElsewhere { node: current.node.clone() });
    }
    match current.token == *presented {
        true => Ok(&current.token),
        false => Err(Error::Stale),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::RECORD_VERSION;

    fn record(holder: Option<(&str, &str)>) -> Record {
        let attachment = holder.map(|(node, token)| Attachment { node: node.into(), token: token.into() });
        Record { version: RECORD_VERSION, name: "v".into(), capacity_bytes: 1, fs_type: "ext4".into(), attachment }
    }

    fn context(token: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(TOKEN_KEY.into(), token.into())])
    }

    #[test]
    fn only_the_holder_with_the_current_token_may_use_the_volume() {
        let held = record(Some(("a", "two")));
        assert_eq!(check(&held, "a", &context("two")), Ok("two"));
        assert_eq!(check(&held, "a", &context("one")), Err(Error::Stale));
        assert_eq!(check(&held, "b", &context("two")), Err(Error::AttachedElsewhere { node: "a".into() }));
        assert_eq!(check(&held, "a", &BTreeMap::new()), Err(Error::Missing));
        assert_eq!(check(&record(None), "a", &context("two")), Err(Error::NotAttached));
    }

    #[test]
    fn a_held_volume_is_kept_by_its_node_and_refused_to_others() {
        let held = record(Some(("a", "one")));
        assert!(matches!(publish(&held, "a"), Publish::Keep(_)));
        assert_eq!(publish(&held, "b"), Publish::Refuse { holder: "a".into() });
        assert_eq!(publish(&record(None), "b"), Publish::Attach);
    }

    #[test]
    fn unpublishing_takes_the_volume_only_from_its_holder() {
        let held = record(Some(("a", "one")));
        assert!(unpublish(&held, "a") && unpublish(&held, ""));
        assert!(!unpublish(&held, "b") && !unpublish(&record(None), ""));
    }
}
