//! Functions of texts, and regular expressions.

use super::Gives::{self, Bool, Int};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::value::List;
use crate::cel::{Error, Value};

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const TEXT: Takes = Takes::Text;
const INT: Takes = Takes::Int;

const fn method(name: &'static str, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method: true, takes, gives, call }
}

pub(super) const TABLE: &[Function] = &[
    method("contains", &[TEXT, TEXT], Bool, contains),
    method("startsWith", &[TEXT, TEXT], Bool, starts_with),
    method("endsWith", &[TEXT, TEXT], Bool, ends_with),
    method("matches", &[TEXT, TEXT], Bool, matches),
    Function { name: "matches", method: false, takes: &[TEXT, TEXT], gives: Bool, call: matches },
    method("find", &[TEXT, TEXT], Gives::Text, find),
    method("findAll", &[TEXT, TEXT], Gives::Texts, find_all),
    method("findAll", &[TEXT, TEXT, INT], Gives::Texts, find_all),
    method("charAt", &[TEXT, INT], Gives::Text, char_at),
    method("indexOf", &[TEXT, TEXT], Int, index_of),
    method("indexOf", &[TEXT, TEXT, INT], Int, index_of),
    method("lastIndexOf", &[TEXT, TEXT], Int, last_index_of),
    method("lastIndexOf", &[TEXT, TEXT, INT], Int, last_index_of),
    method("lowerAscii", &[TEXT], Gives::Text, |call| changed(call, str::to_ascii_lowercase)),
    method("upperAscii", &[TEXT], Gives::Text, |call| changed(call, str::to_ascii_uppercase)),
    method("trim", &[TEXT], Gives::Text, |call| changed(call, |text| text.trim().to_owned())),
    method("reverse", &[TEXT], Gives::Text, |call| changed(call, |text| text.chars().rev().collect())),
    method("replace", &[TEXT, TEXT, TEXT], Gives::Text, replace),
    method("replace", &[TEXT, TEXT, TEXT, INT], Gives::Text, replace),
    method("split", &[TEXT, TEXT], Gives::Texts, split),
    method("split", &[TEXT, TEXT, INT], Gives::Texts, split),
    method("substring", &[TEXT, INT], Gives::Text, substring),
    method("substring", &[TEXT, INT, INT], Gives::Text, substring),
    method("format", &[TEXT, Takes::List], Gives::Text, super::formats::format),
    Function { name: "strings.quote", method: false, takes: &[TEXT], gives: Gives::Text, call: quote },
];

fn two<'c>(call: &mut Call<'c, '_>) -> Result<Option<(&'c str, &'c str)>, Error> {
    let [Value::Text(text), Value::Text(part)] = call.values else { return Ok(None) };
    call.run.charge((text.len() + part.len()) / 10)?;
    Ok(Some((text, part)))
}

fn contains<'a>(mut call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(two(&mut call)?.map(|(text, part)| Value::Bool(text.contains(part))))
}

fn starts_with<'a>(mut call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(two(&mut call)?.map(|(text, part)| Value::Bool(text.starts_with(part))))
}

fn ends_with<'a>(mut call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(two(&mut call)?.map(|(text, part)| Value::Bool(text.ends_with(part))))
}

fn matches<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(text), Value::Text(pattern)] = call.values else { return Ok(None) };
    let regex = call.regexes.get(pattern, text, call.run)?;
    Ok(Some(Value::Bool(regex.is_match(text))))
}

fn find<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(text), Value::Text(pattern)] = call.values else { return Ok(None) };
    let regex = call.regexes.get(pattern, text, call.run)?;
    Ok(Some(Value::text(regex.find(text).map_or("", |found| found.as_str()))))
}

fn find_all<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, pattern, most) = match call.values {
        [Value::Text(text), Value::Text(pattern)] => (text, pattern, -1),
        [Value::Text(text), Value::Text(pattern), Value::Int(most)] => (text, pattern, *most),
        _ => return Ok(None),
    };
    let regex = call.regexes.get(pattern, text, call.run)?;
    call.run.charge(text.len())?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok(Some(Value::list(regex.find_iter(text).take(most).map(|found| Value::text(found.as_str())).collect())))
}

/// The byte where a character stands; also for the one after the last.
fn byte_of(text: &str, index: i64) -> Result<usize, Error> {
    let wrong = || failed(format!("index out of range: {index}"));
    let index = usize::try_from(index).map_err(|_| wrong())?;
    text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(index).ok_or_else(wrong)
}

fn index_at(text: &str, byte: usize) -> i64 {
    i64::try_from(text[..byte].chars().count()).unwrap_or(i64::MAX)
}

fn char_at<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(text), Value::Int(index)] = call.values else { return Ok(None) };
    call.run.charge(text.len() / 10)?;
    let byte = byte_of(text, *index)?;
    Ok(Some(Value::text(text[byte..].chars().next().map(String::from).unwrap_or_default())))
}

fn index_of<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, part, from) = match call.values {
        [Value::Text(text), Value::Text(part)] => (text, part, 0),
        [Value::Text(text), Value::Text(part), Value::Int(from)] => (text, part, *from),
        _ => return Ok(None),
    };
    call.run.charge((text.len() + part.len()) / 10)?;
    let from = byte_of(text, from)?;
    Ok(Some(Value::Int(text[from..].find(&**part).map_or(-1, |found| index_at(text, from + found)))))
}

fn last_index_of<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, part, until) = match call.values {
        [Value::Text(text), Value::Text(part)] => (text, part, text.len()),
        [Value::Text(text), Value::Text(part), Value::Int(until)] => (text, part, byte_of(text, *until)?),
        _ => return Ok(None),
    };
    call.run.charge((text.len() + part.len()) / 10)?;
    // Where it begins counts, not where it ends.
    let end = until.saturating_add(part.len()).min(text.len());
    let end = text.ceil_char_boundary(end);
    let found = text[..end].rfind(&**part).filter(|found| *found <= until);
    Ok(Some(Value::Int(found.map_or(-1, |found| index_at(text, found)))))
}

fn changed<'a>(call: Call<'_, 'a>, change: fn(&str) -> String) -> Outcome<'a> {
    let [Value::Text(text)] = call.values else { return Ok(None) };
    call.run.charge(text.len() / 10)?;
    Ok(Some(Value::text(change(text))))
}

fn replace<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, from, to, most) = match call.values {
        [Value::Text(text), Value::Text(from), Value::Text(to)] => (text, from, to, -1),
        [Value::Text(text), Value::Text(from), Value::Text(to), Value::Int(most)] => (text, from, to, *most),
        _ => return Ok(None),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    call.run.charge(text.len() / 10)?;
    // Before it is made: an empty text stands between all characters.
    let places = text.matches(&**from).take(most).count();
    call.run.charge((text.len() + places.saturating_mul(to.len())) / 10)?;
    Ok(Some(Value::text(text.replacen(&**from, to, most))))
}

fn split<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, by, most) = match call.values {
        [Value::Text(text), Value::Text(by)] => (text, by, -1),
        [Value::Text(text), Value::Text(by), Value::Int(most)] => (text, by, *most),
        _ => return Ok(None),
    };
    call.run.charge(text.len() / 10)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    call.run.charge(text.matches(&**by).take(most).count())?;
    let parts: Vec<Value<'_>> = if by.is_empty() {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        if most > 0 && parts.len() > most {
            let rest = parts.split_off(most - 1).concat();
            parts.push(rest);
        }
        parts.into_iter().take(most).map(Value::text).collect()
    } else {
        text.splitn(most, &**by).map(Value::text).collect()
    };
    Ok(Some(Value::list(parts)))
}

fn substring<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (text, from, to) = match call.values {
        [Value::Text(text), Value::Int(from)] => (text, *from, None),
        [Value::Text(text), Value::Int(from), Value::Int(to)] => (text, *from, Some(*to)),
        _ => return Ok(None),
    };
    call.run.charge(text.len() / 10)?;
    let start = byte_of(text, from)?;
    let end = to.map_or(Ok(text.len()), |to| byte_of(text, to))?;
    let part = text.get(start..end);
    part.map(|part| Some(Value::text(part)))
        .ok_or_else(|| failed("invalid substring range: the start is after the end"))
}

pub(super) fn join<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (list, between): (&List<'_>, &str) = match call.values {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::Text(between)] => (list, between),
        _ => return Ok(None),
    };
    let mut joined = String::new();
    for (index, element) in list.iter().enumerate() {
        let Value::Text(text) = element else { return Ok(None) };
        call.run.charge((text.len() + between.len()) / 10 + 1)?;
        joined.push_str(if index == 0 { "" } else { between });
        joined.push_str(&text);
    }
    Ok(Some(Value::text(joined)))
}

fn quote<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(text)] = call.values else { return Ok(None) };
    call.run.charge(text.len() / 10)?;
    Ok(Some(Value::text(format!("{:?}", &**text))))
}
