//! A content whose snapshot is wanted: it is made, or looked at where it exists already, until it is ready.

use jiff::Timestamp;

use stowage_runtime::events::Note;

use super::{Action, Decision, Trouble, Why, call, done, failure, retry_at, write};
use crate::calls::{Answer, Kind, must_be_told};
use crate::content::Source;
use crate::request::Problem;
use crate::snapshot::{Case, Class, Facts};
use crate::sort::Sort;

pub fn decide(case: &Case, facts: &Facts, now: Timestamp) -> Decision {
    let content = &case.content;
    let recorded = content.handle();
    if content.is_marked() && recorded.is_some() {
        return write(Action::Unmark(content.clone()));
    }
    if content.is_ready() {
        return Decision::rest(Why::Ready);
    }
    if case.class == Class::Unlisted {
        return Decision::rest(Why::AwaitingClasses);
    }
    match &content.source {
        Source::Existing { handle, .. } => look(case, recorded.unwrap_or(handle), facts, now),
        Source::Volumes(_) if content.is_member => match recorded.filter(|_| is_told_of_its_group(case)) {
            Some(handle) => look(case, handle, facts, now),
            None => Decision::rest(Why::AwaitingGroup),
        },
        Source::Volumes(_) => create(case, facts, now),
        Source::Unclear => blocked(case, Problem::ReadSource, now),
    }
}

fn is_told_of_its_group(case: &Case) -> bool {
    case.content.status.as_ref().is_some_and(|status| status.group.is_some())
}

/// Whether the status says already what the driver answered.
fn is_saved(case: &Case, answer: &Answer) -> bool {
    let status = case.content.status.as_ref();
    status.is_some_and(|status| {
        status.handle.as_deref() == Some(&answer.handle) && status.is_ready == answer.is_ready && status.error.is_none()
    })
}

fn save(case: &Case, answer: &Answer) -> Decision {
    let (content, answer) = (Box::new(case.content.clone()), Box::new(answer.clone()));
    write(Action::SaveStatus { content, answer })
}

fn create(case: &Case, facts: &Facts, now: Timestamp) -> Decision {
    let content = &case.content;
    let answer = done(&case.create);
    if let Some((answer, _)) = answer.filter(|(answer, _)| !is_saved(case, answer)) {
        return save(case, answer);
    }
    let planned = match case.create(facts) {
        Ok(planned) => planned,
        Err(problem) => return blocked(case, problem, now),
    };
    if !content.is_protected() {
        return Decision::rest(Why::AwaitingFinalizer);
    }
    let is_recorded = content.handle().is_some();
    let looks = answer.map_or(0, |(answer, _)| answer.looks);
    let at = match answer {
        Some((_, since)) => facts.next_look(since, looks),
        None => retry_at(&case.create, now),
    };
    if let Some((failed, since)) = failure(&case.create).filter(|(failed, _)| must_be_told(failed)) {
        // A status without a handle and without the mark says that nothing was made: so the mark comes first.
        if !is_recorded && case.may_be_made() && !content.is_marked() {
            return write(Action::Mark(content.clone()));
        }
        if at > now && !is_recorded && case.is_settled() && content.is_marked() {
            return write(Action::Unmark(content.clone()));
        }
        let (showing, _) = show(case, &failed.message, since, is_recorded, now);
        if !showing.is_empty() {
            return Decision { wake_at: Some(at), ..Decision::act(showing, Why::Waiting) };
        }
    }
    if at > now {
        let why = if answer.is_some() { Why::NotReady } else { Why::Waiting };
        return Decision::wait_until(at, why);
    }
    if content.status.is_some() && !is_recorded && !content.is_marked() {
        return write(Action::Mark(content.clone()));
    }
    call(case, Kind::Create, planned, looks.saturating_add(1))
}

fn look(case: &Case, handle: &str, facts: &Facts, now: Timestamp) -> Decision {
    if case.content.sort == Sort::Snapshot && !facts.lists {
        // The driver cannot be asked, so its administrator is believed.
        return save(case, &Answer { handle: handle.to_owned(), is_ready: true, ..Answer::default() });
    }
    let answer = done(&case.look);
    // What was asked for counts, also where the driver calls it otherwise.
    if let Some((answer, _)) = answer {
        let answer = Answer { handle: handle.to_owned(), ..answer.clone() };
        if !is_saved(case, &answer) {
            return save(case, &answer);
        }
    }
    let planned = match case.look(handle, facts) {
        Ok(planned) => planned,
        Err(problem) => return blocked(case, problem, now),
    };
    let looks = answer.map_or(0, |(answer, _)| answer.looks);
    let at = match answer {
        Some((_, since)) => facts.next_look(since, looks),
        None => retry_at(&case.look, now),
    };
    if let Some((failed, since)) = failure(&case.look).filter(|(failed, _)| must_be_told(failed)) {
        let (showing, _) = show(case, &failed.message, since, true, now);
        if !showing.is_empty() {
            return Decision { wake_at: Some(at), ..Decision::act(showing, Why::Waiting) };
        }
    }
    match at > now {
        true => Decision::wait_until(at, if answer.is_some() { Why::NotReady } else { Why::Waiting }),
        false => call(case, Kind::Look, planned, looks.saturating_add(1)),
    }
}

/// Shows what went wrong, in the status and as an event, unless both say so already; then until when the event does.
fn show(
    case: &Case,
    message: &str,
    since: Timestamp,
    exists: bool,
    now: Timestamp,
) -> (Vec<Action>, Option<Timestamp>) {
    let content = &case.content;
    let words = content.words();
    let reason = if exists { words.check_failed } else { words.creation_failed };
    let (tell, known_until) = match case.tell(Note::warning(reason, message), now) {
        Ok(tell) => (Some(tell), None),
        Err(until) => (None, Some(until)),
    };
    let error = Trouble { message: message.to_owned(), time: since };
    let save = || Action::SaveError { content: Box::new(content.clone()), error };
    let is_shown = content.error() == Some(message);
    (tell.into_iter().chain((!is_shown).then(save)).collect(), known_until)
}

/// What stands in the way is in an object that can change, and its change wakes us.
fn blocked(case: &Case, problem: Problem, now: Timestamp) -> Decision {
    let content = &case.content;
    let exists = content.handle().is_some() || !matches!(content.source, Source::Volumes(_));
    if !exists && case.may_be_made() && !content.is_marked() {
        return write(Action::Mark(content.clone()));
    }
    let (showing, known_until) = show(case, &problem.to_string(), now, exists, now);
    Decision { wake_at: known_until, ..Decision::act(showing, Why::Blocked(problem)) }
}
