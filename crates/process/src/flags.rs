//! Lets clap read the `args:` that Kubernetes manifests give to the Go originals.
//!
//! Go's flag packages take `-name` for `--name`, `--name=true` for a switch, `_` for `-`, any next word as a
//! value (even `-1`) and the last of several settings. The words are rewritten before clap sees them, so the
//! argument structs stay plain: a switch is a `bool`, and one that defaults to true is
//! `#[arg(long, action = ArgAction::Set, default_value_t = true)]`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

/// Parses this process's arguments as the Go originals would, or exits with clap's message. A process that was started as
/// `SERVICE healthcheck ADDRESS` ends here with its answer.
pub fn parse<P: clap::Parser>() -> P {
    crate::healthcheck::end_if_asked();
    try_parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// Parses the given words, the program's name first, as the Go originals would.
pub fn try_parse_from<P: clap::Parser>(words: impl IntoIterator<Item = OsString>) -> Result<P, clap::Error> {
    let mut command = P::command().args_override_self(true);
    let words = normalize(words.into_iter(), &command);
    let matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Rewrites words (the program's name first) from Go's conventions to clap's, by what `command` declares.
pub fn normalize(mut words: impl Iterator<Item = OsString>, command: &Command) -> Vec<OsString> {
    let mut command = command.clone();
    command.build();
    let mut scope = Scope::of(&command);
    let mut out: Vec<OsString> = words.next().into_iter().collect();
    while let Some(word) = words.next() {
        if word == "--" {
            out.push(word);
            out.extend(words);
            break;
        }
        // A flag's name is always text; what is not can only be a positional value.
        let Some(flag) = word.to_str().and_then(Flag::read) else {
            scope.enter(&word);
            out.push(word);
            continue;
        };
        match scope.find(&flag) {
            Some((name, arg)) => push_known(&mut out, &name, arg, flag.value, &mut words),
            None => out.push(scope.spell_unknown(&flag, &word)),
        }
    }
    out
}

/// One word that starts with a dash, taken apart.
struct Flag<'a> {
    dashes: usize,
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Flag<'a> {
    fn read(word: &'a str) -> Option<Self> {
        let body = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
        if body.is_empty() || body.starts_with(['-', '=']) {
            return None;
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        Some(Self { dashes: word.len() - body.len(), name, value })
    }
}

/// The command whose flags apply at this point, and the global flags of those around it.
struct Scope<'a> {
    command: &'a Command,
    globals: Vec<&'a Arg>,
}

impl<'a> Scope<'a> {
    fn of(command: &'a Command) -> Self {
        Self { command, globals: Vec::new() }
    }

    fn enter(&mut self, word: &OsStr) {
        if let Some(inner) = self.command.find_subcommand(word) {
            self.globals.extend(self.command.get_arguments().filter(|arg| arg.is_global_set()));
            self.command = inner;
        }
    }

    fn arguments(&self) -> impl Iterator<Item = &'a Arg> {
        self.command.get_arguments().chain(self.globals.iter().copied())
    }

    /// The declared flag this one means, with the spelling clap knows.
    fn find(&self, flag: &Flag<'_>) -> Option<(String, &'a Arg)> {
        let dashed = flag.name.replace('_', "-");
        let long = [flag.name, dashed.as_str()]
            .into_iter()
            .find_map(|name| self.arguments().find(|arg| is_long(arg, name)).map(|arg| (format!("--{name}"), arg)));
        long.or_else(|| {
            let mut letters = flag.name.chars();
            let (letter, None) = (letters.next()?, letters.next()) else { return None };
            self.find_short(letter).map(|arg| (format!("-{letter}"), arg))
        })
    }

    fn find_short(&self, letter: char) -> Option<&'a Arg> {
        self.arguments().find(|arg| {
            arg.get_short() == Some(letter) || arg.get_all_short_aliases().is_some_and(|all| all.contains(&letter))
        })
    }

    /// `-v5` is for clap to read; `-no-such-flag` gets its second dash so that clap's message shows the whole name.
    fn spell_unknown(&self, flag: &Flag<'_>, word: &OsStr) -> OsString {
        let first_is_short = flag.name.chars().next().is_some_and(|letter| self.find_short(letter).is_some());
        if flag.dashes == 1 && flag.name.chars().count() > 1 && !first_is_short {
            let mut spelled = OsString::from("-");
            spelled.push(word);
            return spelled;
        }
        word.to_owned()
    }
}

fn is_long(arg: &Arg, name: &str) -> bool {
    arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
}

fn push_known(
    out: &mut Vec<OsString>,
    name: &str,
    arg: &Arg,
    value: Option<&str>,
    following: &mut impl Iterator<Item = OsString>,
) {
    match Kind::of(arg) {
        Kind::Switch => match value.map(go_bool) {
            None | Some(Some(true)) => out.push(name.into()),
            // The last setting wins, so an earlier `--name` goes too.
            Some(Some(false)) => out.retain(|word| word != name),
            Some(None) => out.push(joined(name, OsStr::new(value.unwrap_or_default()))),
        },
        Kind::Boolean => {
            let value = value.unwrap_or("true");
            let spelled = match go_bool(value) {
                Some(true) => "true",
                Some(false) => "false",
                None => value,
            };
            out.push(joined(name, OsStr::new(spelled)));
        }
        Kind::Value => match value.map(OsString::from).or_else(|| following.next()) {
            Some(value) => out.push(joined(name, &value)),
            None => out.push(name.into()),
        },
    }
}

fn joined(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(name);
    word.push("=");
    word.push(value);
    word
}

/// What a flag does with a value.
enum Kind {
    /// Takes none: set by being there.
    Switch,
    /// Takes `true` or `false`, and may stand alone for `true`.
    Boolean,
    /// Takes one, from the same word or the next.
    Value,
}

impl Kind {
    fn of(arg: &Arg) -> Self {
        match arg.get_action() {
            ArgAction::Set | ArgAction::Append => {
                let possible = arg.get_possible_values();
                let is_bool = possible.len() == 2
                    && ["true", "false"].iter().all(|b| possible.iter().any(|p| p.matches(b, false)));
                if is_bool { Self::Boolean } else { Self::Value }
            }
            _ => Self::Switch,
        }
    }
}

/// What Go's `strconv.ParseBool` accepts.
pub(crate) fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
