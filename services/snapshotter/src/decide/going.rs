//! A content that is going: the driver's snapshot goes first, then our finalizer.

use jiff::Timestamp;

use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;

use super::{Action, Decision, Why, call, done, failure, retry_at, write};
use crate::calls::{Answer, Kind, must_be_told};
use crate::content::Source;
use crate::request::{Planned, Problem};
use crate::snapshot::{Case, Class, Facts};

pub fn decide(case: &Case, facts: &Facts, now: Timestamp) -> Decision {
    let content = &case.content;
    if !content.is_protected() {
        return Decision::rest(Why::Released);
    }
    // A policy newer than this code keeps, as Retain does; members go with their group.
    if content.policy != DeletionPolicy::Delete || content.is_member {
        return write(Action::Release(content.clone()));
    }
    if done(&case.delete).is_some() {
        // Who else holds the content must not find a handle that leads nowhere. Where nobody does, it goes at once.
        let is_held = content.meta.finalizers.iter().any(|finalizer| finalizer != content.words().finalizer);
        return write(match is_held && content.handle().is_some() {
            true => Action::ClearStatus(content.clone()),
            false => Action::Release(content.clone()),
        });
    }
    let made = done(&case.create).map(|(answer, _)| answer);
    let handle = content.handle().or_else(|| made.map(|answer| answer.handle.as_str()));
    if let Some(handle) = handle {
        let members: Vec<String> =
            made.map(|answer| answer.members.iter().map(|member| member.handle.clone()).collect()).unwrap_or_default();
        return match case.delete(handle, &members) {
            Ok(planned) => wait_or_call(case, Kind::Delete, planned, &case.delete, now),
            Err(problem) => blocked(case, problem, now),
        };
    }
    match &content.source {
        // A class that is gone is done without, one that is not known yet is not.
        Source::Volumes(_) if case.may_be_made() && case.class == Class::Unlisted => {
            Decision::rest(Why::AwaitingClasses)
        }
        // Only the driver knows whether it was made: the same call again brings its handle, or the word that it was not.
        Source::Volumes(_) if case.may_be_made() => match case.create_again(facts) {
            Ok(planned) => wait_or_call(case, Kind::Create, planned, &case.create, now),
            // Without a name nothing was ever called for.
            Err(Problem::NameSnapshot { .. } | Problem::ReadSource) => write(Action::Release(content.clone())),
            Err(problem) => blocked(case, problem, now),
        },
        _ => write(Action::Release(content.clone())),
    }
}

fn wait_or_call(
    case: &Case,
    kind: Kind,
    planned: Planned,
    record: &Option<Record<Answer>>,
    now: Timestamp,
) -> Decision {
    let at = retry_at(record, now);
    if let Some((failed, _)) = failure(record).filter(|(failed, _)| must_be_told(failed)) {
        let words = case.content.words();
        let message = match kind {
            Kind::Create => format!(
                "whether the snapshot was made is not known, and the driver does not say: {}; it is asked again until it does. If it certainly has no such snapshot, remove the finalizer {} of this object",
                failed.message, words.finalizer
            ),
            Kind::Look | Kind::Delete => format!("{}; it is tried again until it works", failed.message),
        };
        if let Ok(tell) = case.tell(Note::warning(words.delete_failed, message), now) {
            return Decision { wake_at: Some(at), ..Decision::act([tell], Why::Waiting) };
        }
    }
    match at > now {
        true => Decision::wait_until(at, Why::Waiting),
        false => call(case, kind, planned, 0),
    }
}

fn blocked(case: &Case, problem: Problem, now: Timestamp) -> Decision {
    let note = Note::warning(case.content.words().delete_failed, problem.to_string());
    match case.tell(note, now) {
        Ok(tell) => Decision::act([tell], Why::Blocked(problem)),
        Err(until) => Decision::wait_until(until, Why::Blocked(problem)),
    }
}
