//! Versions of the form `1.2.3-rc.1+build`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Gives::{self, Bool, Int};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::Value;

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const NAME: &str = "kubernetes.Semver";
const SEMVER: Takes = Takes::Opaque(NAME);

/// A version; what was built of it does not count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Semver {
    numbers: [i64; 3],
    pre: Vec<Part>,
}

/// Numbers come before texts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Text(String),
}

impl Ord for Semver {
    fn cmp(&self, other: &Self) -> Ordering {
        let released = |version: &Self| version.pre.is_empty();
        self.numbers
            .cmp(&other.numbers)
            .then(released(self).cmp(&released(other)))
            .then_with(|| self.pre.cmp(&other.pre))
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

const fn of(name: &'static str, method: bool, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method, takes, gives, call }
}

pub(super) const TABLE: &[Function] = &[
    of("semver", false, &[Takes::Text], Gives::Opaque(NAME), made),
    of("semver", false, &[Takes::Text, Takes::Bool], Gives::Opaque(NAME), made),
    of("isSemver", false, &[Takes::Text], Bool, is_one),
    of("isSemver", false, &[Takes::Text, Takes::Bool], Bool, is_one),
    of("major", true, &[SEMVER], Int, |call| number(call, 0)),
    of("minor", true, &[SEMVER], Int, |call| number(call, 1)),
    of("patch", true, &[SEMVER], Int, |call| number(call, 2)),
    of("isLessThan", true, &[SEMVER, SEMVER], Bool, |call| compared(call, |o| Value::Bool(o.is_lt()))),
    of("isGreaterThan", true, &[SEMVER, SEMVER], Bool, |call| compared(call, |o| Value::Bool(o.is_gt()))),
    of("compareTo", true, &[SEMVER, SEMVER], Int, |call| compared(call, |o| Value::Int(o as i64))),
];

/// `tolerant` allows a leading v, leading zeros and fewer than three numbers.
fn parse(text: &str, tolerant: bool) -> Option<Semver> {
    if text.len() > 256 {
        return None;
    }
    let text = if tolerant { text.trim().trim_start_matches('v') } else { text };
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    if build.is_some_and(|build| !build.split('.').all(word)) {
        return None;
    }
    let (text, pre) = text.split_once('-').map_or((text, None), |(text, pre)| (text, Some(pre)));
    let canonical = |part: &str| tolerant || part == "0" || !part.starts_with('0');
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut numbers = [0; 3];
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() > 3 || (parts.len() < 3 && !tolerant) {
        return None;
    }
    for (number, part) in numbers.iter_mut().zip(parts) {
        *number = part.parse().ok().filter(|_| digits(part) && canonical(part))?;
    }
    let part = |part: &str| match digits(part) {
        true => part.parse().ok().filter(|_| canonical(part)).map(Part::Number),
        false => word(part).then(|| Part::Text(part.to_owned())),
    };
    let pre = pre.map_or(Some(Vec::new()), |pre| pre.split('.').map(part).collect())?;
    Some(Semver { numbers, pre })
}

fn read(call: &Call<'_, '_>) -> Option<Option<Semver>> {
    match call.values {
        [Value::Text(text)] => Some(parse(text, false)),
        [Value::Text(text), Value::Bool(tolerant)] => Some(parse(text, *tolerant)),
        _ => None,
    }
}

fn made<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let Some(version) = read(&call) else { return Ok(None) };
    version
        .map(|version| Some(Value::Semver(Arc::new(version))))
        .ok_or_else(|| failed("this is not a semantic version"))
}

fn is_one<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(read(&call).map(|version| Value::Bool(version.is_some())))
}

fn number<'a>(call: Call<'_, 'a>, place: usize) -> Outcome<'a> {
    let [Value::Semver(version)] = call.values else { return Ok(None) };
    Ok(version.numbers.get(place).map(|number| Value::Int(*number)))
}

fn compared<'a>(call: Call<'_, 'a>, read: fn(Ordering) -> Value<'a>) -> Outcome<'a> {
    let [Value::Semver(one), Value::Semver(other)] = call.values else { return Ok(None) };
    Ok(Some(read(one.cmp(other))))
}
