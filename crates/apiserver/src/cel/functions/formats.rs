//! Named formats, and `format` of a text.

use std::fmt::Write as _;

use super::Gives;
use super::{Call, Function, Outcome, Takes, failed, time};
use crate::cel::{Error, Run, Value};
use crate::rules::metadata::is_dns_label;

const NAME: &str = "kubernetes.NamedFormat";

/// What a text of a format must be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    name: &'static str,
    rule: &'static str,
    holds: fn(&str) -> bool,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const LABEL: &str =
    "must be lower case letters, digits and '-', begin and end with a letter or digit, and have at most 63 characters";
const SUBDOMAIN: &str = "must be DNS labels with '.' between them, of at most 253 characters";

const fn of(name: &'static str, rule: &'static str, holds: fn(&str) -> bool) -> Format {
    Format { name, rule, holds }
}

const FORMATS: [Format; 13] = [
    of("dns1123Label", LABEL, is_dns_label),
    of("dns1123Subdomain", SUBDOMAIN, is_subdomain),
    of("dns1035Label", "must be a DNS label that begins with a letter", is_1035),
    of("dns1123LabelPrefix", LABEL, |text| is_dns_label(text.trim_end_matches('-'))),
    of("dns1123SubdomainPrefix", SUBDOMAIN, |text| is_subdomain(text.trim_end_matches('-'))),
    of("dns1035LabelPrefix", "must be a DNS label that begins with a letter", |text| {
        is_1035(text.trim_end_matches('-'))
    }),
    of(
        "qualifiedName",
        "must be a name of at most 63 letters, digits, '-', '_' and '.', with or without a DNS subdomain and '/' before it",
        is_qualified,
    ),
    of(
        "labelValue",
        "must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        |text| text.is_empty() || is_name(text),
    ),
    of("uri", "must be an absolute URI", |text| text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some())),
    of("uuid", "must be a UUID", is_uuid),
    of("byte", "must be base64", is_base64),
    of("date", "must be a date such as 2006-01-02", |text| {
        text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10
    }),
    of("datetime", "must be a time such as 2006-01-02T15:04:05Z", |text| {
        time::timestamp(text).is_some() && text.len() > 10
    }),
];

const fn named(name: &'static str, call: for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>) -> Function {
    Function { name, method: false, takes: &[], gives: Gives::Opaque(NAME), call }
}

fn known<'a>(name: &str) -> Option<Value<'a>> {
    FORMATS.into_iter().find(|format| format.name == name).map(Value::Format)
}

pub(super) const TABLE: &[Function] = &[
    named("format.dns1123Label", |_| Ok(known("dns1123Label"))),
    named("format.dns1123Subdomain", |_| Ok(known("dns1123Subdomain"))),
    named("format.dns1035Label", |_| Ok(known("dns1035Label"))),
    named("format.dns1123LabelPrefix", |_| Ok(known("dns1123LabelPrefix"))),
    named("format.dns1123SubdomainPrefix", |_| Ok(known("dns1123SubdomainPrefix"))),
    named("format.dns1035LabelPrefix", |_| Ok(known("dns1035LabelPrefix"))),
    named("format.qualifiedName", |_| Ok(known("qualifiedName"))),
    named("format.labelValue", |_| Ok(known("labelValue"))),
    named("format.uri", |_| Ok(known("uri"))),
    named("format.uuid", |_| Ok(known("uuid"))),
    named("format.byte", |_| Ok(known("byte"))),
    named("format.date", |_| Ok(known("date"))),
    named("format.datetime", |_| Ok(known("datetime"))),
    Function {
        name: "format.named",
        method: false,
        takes: &[Takes::Text],
        gives: Gives::OptionalOpaque(NAME),
        call: |call| {
            let [Value::Text(name)] = call.values else { return Ok(None) };
            Ok(Some(Value::Optional(known(name).map(Into::into))))
        },
    },
    Function {
        name: "validate",
        method: true,
        takes: &[Takes::Opaque(NAME), Takes::Text],
        gives: Gives::OptionalTexts,
        call: |call| {
            let [Value::Format(format), Value::Text(text)] = call.values else { return Ok(None) };
            call.run.charge(text.len() / 10)?;
            let broken = (!(format.holds)(text)).then(|| Value::list(vec![Value::given(format.rule)]));
            Ok(Some(Value::Optional(broken.map(Into::into))))
        },
    },
];

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_1035(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63 && text.chars().all(inner) && text.starts_with(outer) && text.ends_with(outer)
}

fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text
            .bytes()
            .enumerate()
            .all(|(index, b)| if dashes.contains(&index) { b == b'-' } else { b.is_ascii_hexdigit() })
}

fn is_base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

/// `"%s of %d".format([..])`.
pub(super) fn format<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(pattern), Value::List(values)] = call.values else { return Ok(None) };
    call.run.charge(pattern.len() / 10)?;
    let mut made = String::new();
    let mut next = 0;
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            made.push(character);
            continue;
        }
        let mut precision = None;
        let mut verb = characters.next();
        if verb == Some('.') {
            let digits: String = characters.clone().take_while(char::is_ascii_digit).take(3).collect();
            verb = characters.nth(digits.len());
            precision = digits.parse::<usize>().ok().map(|digits| digits.min(100));
        }
        let verb = verb.ok_or_else(|| failed("could not parse formatting clause: a % stands at the end"))?;
        if verb == '%' {
            made.push('%');
            continue;
        }
        let value = values.get(next).ok_or_else(|| failed(format!("index {next} out of range")))?;
        next += 1;
        clause(verb, precision, &value, &mut made, call.run)?;
    }
    Ok(Some(Value::text(made)))
}

fn clause(
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
    made: &mut String,
    run: &mut Run,
) -> Result<(), Error> {
    let before = made.len();
    let precision = precision.unwrap_or(6);
    let double = match value {
        Value::Double(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        _ => None,
    };
    let written = match (verb, value) {
        ('s', value) => return value.write(made, run),
        ('d', Value::Int(number)) => write!(made, "{number}"),
        ('d', Value::Uint(number)) => write!(made, "{number}"),
        ('b', Value::Int(number)) => write!(made, "{number:b}"),
        ('b', Value::Uint(number)) => write!(made, "{number:b}"),
        ('b', Value::Bool(value)) => write!(made, "{}", u8::from(*value)),
        ('o', Value::Int(number)) => write!(made, "{number:o}"),
        ('o', Value::Uint(number)) => write!(made, "{number:o}"),
        ('x', Value::Int(number)) => write!(made, "{number:x}"),
        ('x', Value::Uint(number)) => write!(made, "{number:x}"),
        ('X', Value::Int(number)) => write!(made, "{number:X}"),
        ('X', Value::Uint(number)) => write!(made, "{number:X}"),
        ('x' | 'X', Value::Text(text)) => hex(verb, text.as_bytes(), made),
        ('x' | 'X', Value::Bytes(bytes)) => hex(verb, bytes, made),
        ('f', _) if double.is_some() => write!(made, "{:.precision$}", double.unwrap_or_default()),
        ('e', _) if double.is_some() => write!(made, "{:.precision$e}", double.unwrap_or_default()),
        _ => return Err(failed(format!("error during formatting: %{verb} does not take a {}", value.type_name()))),
    };
    written.map_err(|_| failed("error during formatting"))?;
    run.charge((made.len() - before) / 10 + 1)
}

fn hex(verb: char, bytes: &[u8], made: &mut String) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| if verb == 'x' { write!(made, "{byte:02x}") } else { write!(made, "{byte:02X}") })
}
