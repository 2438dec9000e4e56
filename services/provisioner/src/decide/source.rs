//! What must happen next to a source that is held while volumes are made from it: it is let go when none is any more.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::finalizers::{CLONING_PROTECTION, SNAPSHOT_SOURCE_OF_PROVISIONER};
use stowage_model::labels::SNAPSHOT_MANAGED_BY;
use stowage_model::object::Key;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};

use super::{Action, Decision, Why, is_ours, tell};
use crate::facts::Facts;
use crate::intent::SourceKind;
use crate::ownership;
use crate::snapshot::SourceSnapshot;
use crate::source::{Look, Object, Restorable};

/// What another node may have under way is over after this: as long as the original waits between its sweeps.
const LEFT_OVER: Duration = Duration::from_secs(300);

/// What must happen to this source next.
pub fn decide(s: &SourceSnapshot, now: Timestamp) -> Decision {
    let meta = match s.object.meta() {
        View::Absent => return Decision::rest(Why::Gone),
        // Whoever feeds the cache reads it, and wakes us.
        View::Unknown => return Decision::rest(Why::Looking),
        View::Known(meta) => meta,
    };
    if !meta.has_finalizer(finalizer(s.origin.kind)) {
        return Decision::rest(Why::Unprotected);
    }
    let (is_used, is_held) = (!s.users.is_empty(), !s.others.is_empty());
    match meta.is_deleting() {
        false if is_used || is_held => return Decision::rest(Why::InUse),
        true if is_used => return tell(&s.told, used(s), now, Why::InUse),
        _ => {}
    }
    let free = || match is_held {
        true => tell(&s.told, kept(s), now, Why::InUse),
        false => Decision::act([Action::Unprotect { origin: s.origin.clone(), uid: meta.uid.clone() }], Why::Unused),
    };
    match &s.object {
        Object::Claim { .. } if is_our_claim(&s.object, &s.facts) => free(),
        Object::Claim { .. } => Decision::rest(Why::NotOurs),
        Object::Snapshot { snapshot: View::Known(snapshot), look, .. } => {
            match whose(s, snapshot, look.as_ref(), now) {
                Whose::Ours => free(),
                Whose::Anybodys => match left_over_until(s, now) {
                    until if until > now && !is_held => Decision::wait_until(until, Why::LeftOver),
                    _ => free(),
                },
                Whose::Others => Decision::rest(Why::NotOurs),
                Whose::Unknown => Decision::act([Action::Look(s.origin.clone())], Why::Looking),
                Whose::Later(at) => Decision::wait_until(at, Why::BacksOff),
                Whose::Soon => Decision::rest(Why::Looking),
            }
        }
        Object::Snapshot { .. } => Decision::rest(Why::Looking),
    }
}

/// So many claims are named in one sentence.
const NAMED: usize = 5;

/// What a source that is being deleted is kept for.
fn used(s: &SourceSnapshot) -> Note {
    let message = format!(
        "{} is being deleted, and finalizer {} keeps it while a volume is being made from it, or may be, for {}; see the events \
         of these claims; deleted claims hold it until driver {:?} has answered for them",
        s.origin,
        finalizer(s.origin.kind),
        named(&s.users),
        s.facts.driver,
    );
    Note::warning("SourceInUse", message)
}

fn named(claims: &[Key]) -> String {
    let first: Vec<String> = claims.iter().take(NAMED).map(ToString::to_string).collect();
    match claims.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Whom a source that is being deleted is kept for.
fn kept(s: &SourceSnapshot) -> Note {
    let message = format!(
        "{} is being deleted, and finalizer {} keeps it while claims that name it as their source wait for a volume: \
         {}; delete these claims, or wait until they are Bound",
        s.origin,
        finalizer(s.origin.kind),
        named(&s.others),
    );
    Note::warning("SourceInUse", message)
}

/// What holds a source.
pub fn finalizer(kind: SourceKind) -> &'static str {
    match kind {
        SourceKind::Claim => CLONING_PROTECTION,
        SourceKind::Snapshot => SNAPSHOT_SOURCE_OF_PROVISIONER,
    }
}

/// Only the driver of a claim's volume makes clones of it, in node deployment on the node that has it.
fn is_our_claim(object: &Object, facts: &Facts) -> bool {
    let Object::Claim { claim: View::Known(claim), volume } = object else { return false };
    match volume {
        View::Known(volume) => {
            volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == facts.driver) && ownership::is_here(volume, facts)
        }
        View::Absent => is_ours(claim, &facts.driver),
        View::Unknown => false,
    }
}

/// Who lets a snapshot go.
enum Whose {
    Ours,
    /// Several nodes may be making volumes from it, and none is known to be the only one.
    Anybodys,
    Others,
    Unknown,
    Later(Timestamp),
    Soon,
}

/// Only the content tells whose driver's a snapshot is, and where. Without one no volume can be made from it.
fn whose(s: &SourceSnapshot, snapshot: &Restorable, look: Option<&Record<Look>>, now: Timestamp) -> Whose {
    let facts = &s.facts;
    let Some(bound_to) = snapshot.bound_to.as_deref() else { return orphan(s) };
    let Some(record) = look else {
        return if facts.options.sweep_snapshots { Whose::Unknown } else { Whose::Others };
    };
    match &record.state {
        State::Running => Whose::Soon,
        State::Done(look) if look.bound_to.as_deref() != Some(bound_to) => Whose::Unknown,
        State::Done(Look { content: None, .. }) => orphan(s),
        State::Done(Look { content: Some(content), .. }) if content.spec.driver != facts.driver => Whose::Others,
        State::Done(Look { content: Some(content), .. }) => {
            match (&facts.node, content.meta.labels.get(SNAPSHOT_MANAGED_BY)) {
                (None, _) => Whose::Ours,
                (Some(node), Some(manager)) if *manager == node.name => Whose::Ours,
                (Some(_), Some(_)) => Whose::Others,
                (Some(_), None) if s.need.was_ours => Whose::Ours,
                (Some(_), None) => orphan(s),
            }
        }
        State::Failed(_) | State::Uncertain(_) if record.retry_at > now => Whose::Later(record.retry_at),
        State::Failed(_) | State::Uncertain(_) => Whose::Unknown,
    }
}

/// What nobody is known to have held.
fn orphan(s: &SourceSnapshot) -> Whose {
    match (s.facts.options.sweep_snapshots, &s.facts.node) {
        (false, _) => Whose::Others,
        (true, None) => Whose::Ours,
        (true, Some(_)) => Whose::Anybodys,
    }
}

/// A claim that is deleted while its volume is made is seen no more, and the call of another node goes on. What that node
/// calls again it holds again first; so the longest call is waited for, from when nobody was seen to need the source.
fn left_over_until(s: &SourceSnapshot, now: Timestamp) -> Timestamp {
    let wait = LEFT_OVER.max(s.facts.options.driver.timeout.saturating_mul(2));
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    s.need.over_since.unwrap_or(now).checked_add(wait).unwrap_or(Timestamp::MAX)
}
