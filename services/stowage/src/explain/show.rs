//! The report as people and as machines read it.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::report::{Cause, Leader, Mark, Report, State, Step, Story, Who, ago};

/// What kubectl calls the kinds here.
fn short(story: &Story) -> &'static str {
    match story.kind.plural {
        "persistentvolumeclaims" => "pvc",
        "persistentvolumes" => "pv",
        "volumesnapshots" => "volumesnapshot",
        _ => "pod",
    }
}

/// Escapes around a text, or none.
struct Ink(bool);

impl Ink {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn state(&self, state: State) -> String {
        let (code, word) = match state {
            State::Stuck => ("1;31", "STUCK"),
            State::Waiting => ("33", "waits"),
            State::Working => ("36", "moves"),
            State::Fine => ("32", "fine"),
        };
        self.paint(code, word)
    }

    fn mark(&self, mark: Mark) -> String {
        let code = match mark {
            Mark::Done => "32",
            Mark::Here => "1;33",
            Mark::NotYet => "2",
        };
        self.paint(code, &format!("{:<7}", mark.as_str()))
    }
}

/// For people.
pub fn text(report: &Report, is_coloured: bool) -> String {
    let ink = Ink(is_coloured);
    let mut out = String::new();
    for story in &report.stories {
        match report.is_of_one {
            true => whole(&mut out, story, report.now, &ink),
            false => line(&mut out, story, report.now, &ink),
        }
    }
    if !report.is_of_one {
        let count = |state| report.stories.iter().filter(|story| story.state() == state).count();
        let (stuck, waiting, working) = (count(State::Stuck), count(State::Waiting), count(State::Working));
        let summary = match stuck + waiting + working {
            0 => "every claim, pod, volume and snapshot that was seen is where it should be".to_owned(),
            _ => format!(
                "{stuck} stuck, {waiting} waiting for somebody, {working} moving; `stowage explain KIND NAME` says more"
            ),
        };
        add(&mut out, &summary);
    }
    for unread in &report.unread {
        add(&mut out, &format!("not read: {}: {}", unread.kind.plural, unread.why));
    }
    out
}

fn add(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

fn line(out: &mut String, story: &Story, now: Timestamp, ink: &Ink) {
    let since = story.since.map(|at| ago(at, now)).unwrap_or_default();
    let why = story.causes.first().map(|cause| cause.why.as_str()).unwrap_or_default();
    // One line each, whatever a driver says.
    let why = plain(&why.split_whitespace().collect::<Vec<_>>().join(" "));
    let name = format!("{} {}", short(story), story.key);
    add(out, &format!("{}  {name}  {} {since}: {why}", ink.state(story.state()), plain(&story.phase)));
}

fn whole(out: &mut String, story: &Story, now: Timestamp, ink: &Ink) {
    let since = story.since.map(|at| format!(" for {}", ago(at, now))).unwrap_or_default();
    add(out, &format!("{} {}: {}{since}, {}", short(story), story.key, plain(&story.phase), ink.state(story.state())));
    for step in &story.steps {
        let when = step.since.map(|at| format!("  ({} ago)", ago(at, now))).unwrap_or_default();
        add(out, &format!("  {}  {}{when}", ink.mark(step.mark), plain(&step.name)));
    }
    for (number, cause) in story.causes.iter().enumerate() {
        out.push('\n');
        let label = if number == 0 { "why:    " } else { "also:   " };
        add(out, &format!("  {label} {}", indented(&cause.why)));
        add(out, &format!("  next:    {}", who(&cause.who, now)));
        add(out, &format!("  way out: {}", indented(&cause.way_out)));
    }
}

/// Lines of a driver's answer stay below its first.
fn indented(text: &str) -> String {
    text.trim().lines().map(plain).collect::<Vec<_>>().join("\n           ")
}

/// Whoever may write an event, a Lease or a claim writes to this terminal: what would move its cursor is shown as what it is.
fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

fn who(who: &Who, now: Timestamp) -> String {
    let renewed = |at: &Option<Timestamp>| at.map(|at| format!(", renewed {} ago", ago(at, now))).unwrap_or_default();
    let mut text = who.component.clone();
    let written = match &who.leader {
        Leader::None => Ok(()),
        Leader::Unread => write!(text, " (Leases may not be read)"),
        Leader::Absent { names } => write!(text, " (no Lease {})", names.join(" or ")),
        Leader::Released { lease, .. } => write!(text, " (Lease {lease} is held by nobody)"),
        Leader::Ahead { lease } => write!(text, " (Lease {lease} was renewed in the future)"),
        Leader::Abandoned { lease, renewed } => {
            write!(text, " (Lease {lease} is abandoned, renewed {} ago)", ago(*renewed, now))
        }
        Leader::Stale { lease, holder, renewed: at } => {
            write!(text, " (dead: {holder} held Lease {lease}{})", renewed(at))
        }
        Leader::Alive { lease, holder, renewed: at } => write!(text, " ({holder} holds Lease {lease}{})", renewed(at)),
    };
    written.expect("a string takes every write");
    plain(&text)
}

/// For machines; `id` of a cause and the words of `state` and `mark` stay.
pub fn json(report: &Report) -> Value {
    let unread = report.unread.iter().map(|unread| json!({ "kind": unread.kind.kind, "why": unread.why }));
    json!({
        "time": report.now.to_string(),
        "stuck": report.is_stuck(),
        "objects": report.stories.iter().map(story_json).collect::<Vec<_>>(),
        "unread": unread.collect::<Vec<_>>(),
    })
}

fn story_json(story: &Story) -> Value {
    let namespace = Some(story.key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    json!({
        "kind": story.kind.kind,
        "namespace": namespace,
        "name": story.key.name,
        "state": story.state().as_str(),
        "phase": story.phase,
        "since": time(story.since),
        "steps": story.steps.iter().map(step_json).collect::<Vec<_>>(),
        "causes": story.causes.iter().map(cause_json).collect::<Vec<_>>(),
    })
}

fn time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| at.to_string().into())
}

fn step_json(step: &Step) -> Value {
    json!({ "step": step.name, "mark": step.mark.as_str(), "since": time(step.since) })
}

fn cause_json(cause: &Cause) -> Value {
    let (state, lease) = match &cause.who.leader {
        Leader::None => ("none", Value::Null),
        Leader::Unread => ("unread", Value::Null),
        Leader::Absent { names } => ("absent", json!({ "names": names })),
        Leader::Released { lease, renewed } => {
            ("released", json!({ "name": lease.to_string(), "renewed": time(*renewed) }))
        }
        Leader::Ahead { lease } => ("ahead", json!({ "name": lease.to_string() })),
        Leader::Abandoned { lease, renewed } => {
            ("abandoned", json!({ "name": lease.to_string(), "renewed": renewed.to_string() }))
        }
        Leader::Stale { lease, holder, renewed } => {
            ("stale", json!({ "name": lease.to_string(), "holder": holder, "renewed": time(*renewed) }))
        }
        Leader::Alive { lease, holder, renewed } => {
            ("alive", json!({ "name": lease.to_string(), "holder": holder, "renewed": time(*renewed) }))
        }
    };
    json!({
        "id": cause.id,
        "state": cause.state.as_str(),
        "why": cause.why,
        "next": { "component": cause.who.component, "leader": state, "lease": lease },
        "wayOut": cause.way_out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_moves_no_cursor() {
        assert_eq!(indented("\u{1b}[2Jno space\nleft\u{9b}"), "\u{fffd}[2Jno space\n           left\u{fffd}");
    }
}
