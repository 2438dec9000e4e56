//! Who may use a volume: the node whose token is the current one.
//!
//! Each attachment gets a token nobody had before; the record in the shared pool holds the current one. A node that
//! was cut off and comes back has an old one and can neither stage nor publish. A token does not stop a writer that
//! already runs: only the machine's death does.

use std::collections::BTreeMap;

use crate::volume::{Attachment, Record};

/// The key of the token in the publish context.
pub const TOKEN_KEY: &str = "stowage.dev/token";
/// What stands for the token of an inline volume, which is never attached.
pub const INLINE: &str = "inline";
/// What stands for a token where there are none.
const NO_TOKEN: &str = "local";

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
    #[error("the volume was attached again since it was staged; unstage it, and stage it with a fresh publish_context")]
    Lost,
}

/// What publishing to a node means for a volume.
#[derive(Debug, PartialEq, Eq)]
pub enum Publish {
    /// The node has it already.
    Keep(Attachment),
    /// Nobody has it, or several may: the node gets a new token.
    Attach,
    /// The node has it otherwise than asked for.
    Differ(Attachment),
    /// Another node has it.
    Refuse { holder: String },
}

/// What a node may do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant<'a> {
    pub token: &'a str,
    /// Whether its pods may only read.
    pub read_only: bool,
}

/// `several`: the volume can and shall be used by several nodes at once.
pub fn publish(record: &Record, node: &str, several: bool, read_only: bool) -> Publish {
    let here = record.attachments.iter().find(|attachment| attachment.node == node);
    let alone = |attachment: &&Attachment| !several || attachment.several == Some(false);
    match (here, record.attachments.iter().find(alone)) {
        (Some(here), _) if here.read_only == read_only && here.several.is_none_or(|are| are == several) => {
            Publish::Keep(here.clone())
        }
        (Some(here), _) => Publish::Differ(here.clone()),
        (None, Some(other)) => Publish::Refuse { holder: other.node.clone() },
        (None, None) => Publish::Attach,
    }
}

/// Takes the volume away from a node (empty: from all); returns what they had.
pub fn unpublish(record: &mut Record, node: &str) -> Vec<Attachment> {
    record.attachments.extract_if(.., |attachment| node.is_empty() || attachment.node == node).collect()
}

/// How this node may use the volume. A driver without attachments has pools that no other node sees:
/// there every call bears the same one.
pub fn check<'a>(
    attach: bool,
    record: &'a Record,
    node: &str,
    context: &BTreeMap<String, String>,
) -> Result<Grant<'a>, Error> {
    if !attach {
        return Ok(Grant { token: NO_TOKEN, read_only: false });
    }
    let presented = context.get(TOKEN_KEY).ok_or(Error::Missing)?;
    let other = record.attachments.first().ok_or(Error::NotAttached)?;
    let elsewhere = || Error::AttachedElsewhere { node: other.node.clone() };
    let current = record.attachments.iter().find(|attachment| attachment.node == node).ok_or_else(elsewhere)?;
    match current.token == *presented {
        true => Ok(Grant { token: &current.token, read_only: current.read_only }),
        false => Err(Error::Stale),
    }
}

/// Whether what this node has staged under a token is still its own: a call about a mount brings no token.
pub fn check_held(attach: bool, record: &Record, node: &str, token: &str) -> Result<(), Error> {
    if !attach || token == INLINE {
        return Ok(());
    }
    match record.attachments.iter().find(|attachment| attachment.node == node) {
        Some(current) if current.token == token => Ok(()),
        Some(_) => Err(Error::Lost),
        None => match record.attachments.first() {
            Some(other) => Err(Error::AttachedElsewhere { node: other.node.clone() }),
            None => Err(Error::NotAttached),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Backend, example};

    fn record(holder: Option<(&str, &str)>) -> Record {
        let attachment = |(node, token): (&str, &str)| Attachment {
            node: node.into(),
            token: token.into(),
            read_only: false,
            several: None,
            unmarked: false,
        };
        Record { attachments: holder.into_iter().map(attachment).collect(), ..example() }
    }

    fn context(token: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(TOKEN_KEY.into(), token.into())])
    }

    #[test]
    fn only_the_holder_with_the_current_token_may_use_the_volume() {
        let held = record(Some(("a", "two")));
        assert_eq!(check(true, &held, "a", &context("two")), Ok(Grant { token: "two", read_only: false }));
        assert_eq!(check(true, &held, "a", &context("one")), Err(Error::Stale));
        assert_eq!(check(true, &held, "b", &context("two")), Err(Error::AttachedElsewhere { node: "a".into() }));
        assert_eq!(check(true, &held, "a", &BTreeMap::new()), Err(Error::Missing));
        assert_eq!(check(true, &record(None), "a", &context("two")), Err(Error::NotAttached));
    }

    #[test]
    fn a_held_volume_is_kept_by_its_node_and_refused_to_others() {
        let held = record(Some(("a", "one")));
        assert!(matches!(publish(&held, "a", false, false), Publish::Keep(_)));
        assert!(matches!(publish(&held, "a", false, true), Publish::Differ(_)));
        assert_eq!(publish(&held, "b", false, false), Publish::Refuse { holder: "a".into() });
        assert_eq!(publish(&record(None), "b", false, false), Publish::Attach);
    }

    #[test]
    fn unpublishing_takes_the_volume_only_from_its_holder() {
        let held = || record(Some(("a", "one")));
        assert_eq!(unpublish(&mut held(), "a"), held().attachments);
        assert_eq!(unpublish(&mut held(), ""), held().attachments);
        assert!(unpublish(&mut held(), "b").is_empty() && unpublish(&mut record(None), "").is_empty());
    }

    #[test]
    fn a_directory_may_have_several_holders_and_a_driver_without_attachments_asks_for_no_token() {
        let held = Record { backend: Backend::Directory, ..record(Some(("a", "one"))) };
        assert_eq!(publish(&held, "b", true, false), Publish::Attach);
        assert_eq!(check(false, &record(None), "a", &BTreeMap::new()), Ok(Grant { token: NO_TOKEN, read_only: false }));
    }
}
