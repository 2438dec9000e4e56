//! `size` and the conversions between types.

use super::Gives::{self, Bool, Bytes, Double, Duration, Int, Text, Timestamp, Type, Uint};
use super::Takes::{Any, Texts};
use super::{Call, Function, Outcome, Takes, failed, time};
use crate::cel::Value;

const fn of(name: &'static str, gives: Gives, call: for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>) -> Function {
    Function { name, method: false, takes: &[Any], gives, call }
}

const fn sized(takes: &'static [Takes], method: bool) -> Function {
    Function { name: "size", method, takes, gives: Int, call: size }
}

pub(super) const TABLE: &[Function] = &[
    sized(&[Takes::Text], false),
    sized(&[Takes::Bytes], false),
    sized(&[Takes::List], false),
    sized(&[Takes::Map], false),
    sized(&[Takes::Text], true),
    sized(&[Takes::Bytes], true),
    sized(&[Takes::List], true),
    sized(&[Takes::Map], true),
    of("int", Int, int),
    of("uint", Uint, uint),
    of("double", Double, double),
    of("string", Text, string),
    of("bytes", Bytes, bytes),
    of("bool", Bool, boolean),
    of("timestamp", Timestamp, timestamp),
    of("duration", Duration, duration),
    of("type", Type, type_of),
    of("dyn", Gives::Dyn, same),
    Function { name: "join", method: true, takes: &[Texts], gives: Text, call: super::strings::join },
    Function { name: "join", method: true, takes: &[Texts, Takes::Text], gives: Text, call: super::strings::join },
];

fn size<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let size = match call.values {
        [Value::Text(text)] => {
            call.run.charge(text.len() / 10)?;
            text.chars().count()
        }
        [Value::Bytes(bytes)] => bytes.len(),
        [Value::List(list)] => list.len(),
        [Value::Map(map)] => map.len(),
        _ => return Ok(None),
    };
    Ok(Some(Value::Int(i64::try_from(size).unwrap_or(i64::MAX))))
}

fn int<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let number = match call.values {
        [Value::Int(number)] => Some(*number),
        [Value::Uint(number)] => i64::try_from(*number).ok(),
        // The largest double below 2^63 is what fits.
        [Value::Double(number)] => (number.abs() < 9_223_372_036_854_775_807.0).then_some(*number as i64),
        [Value::Text(text)] => {
            return text
                .parse()
                .map(|n| Some(Value::Int(n)))
                .map_err(|_| failed("type conversion error from string to int"));
        }
        [Value::Timestamp(at)] => Some(at.as_second()),
        _ => return Ok(None),
    };
    number.map(|number| Some(Value::Int(number))).ok_or_else(|| failed("integer overflow"))
}

fn uint<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let number = match call.values {
        [Value::Uint(number)] => Some(*number),
        [Value::Int(number)] => u64::try_from(*number).ok(),
        [Value::Double(number)] => (*number >= 0.0 && *number < 18_446_744_073_709_551_615.0).then_some(*number as u64),
        [Value::Text(text)] => text.parse().ok(),
        _ => return Ok(None),
    };
    number.map(|number| Some(Value::Uint(number))).ok_or_else(|| failed("unsigned integer overflow"))
}

fn double<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(Some(Value::Double(match call.values {
        [Value::Double(number)] => *number,
        [Value::Int(number)] => *number as f64,
        [Value::Uint(number)] => *number as f64,
        [Value::Text(text)] => text.parse().map_err(|_| failed("type conversion error from string to double"))?,
        _ => return Ok(None),
    })))
}

fn string<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    match call.values {
        [Value::Text(text)] => Ok(Some(Value::Text(text.clone()))),
        [Value::Bytes(bytes)] => match str::from_utf8(bytes) {
            Ok(text) => {
                call.run.charge(text.len() / 10)?;
                Ok(Some(Value::text(text)))
            }
            Err(_) => Err(failed("invalid UTF-8 in bytes, cannot convert to string")),
        },
        [Value::Quantity(_) | Value::Url(_) | Value::Semver(_) | Value::List(_) | Value::Map(_) | Value::Null] => {
            Ok(None)
        }
        [value] => {
            let mut text = String::new();
            value.write(&mut text, call.run)?;
            Ok(Some(Value::text(text)))
        }
        _ => Ok(None),
    }
}

fn bytes<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    match call.values {
        [Value::Bytes(bytes)] => Ok(Some(Value::Bytes(bytes.clone()))),
        [Value::Text(text)] => {
            call.run.charge(text.len() / 10)?;
            Ok(Some(Value::Bytes(text.as_bytes().into())))
        }
        _ => Ok(None),
    }
}

fn boolean<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    match call.values {
        [Value::Bool(value)] => Ok(Some(Value::Bool(*value))),
        [Value::Text(text)] => match &**text {
            "true" | "True" | "TRUE" | "t" | "1" => Ok(Some(Value::Bool(true))),
            "false" | "False" | "FALSE" | "f" | "0" => Ok(Some(Value::Bool(false))),
            _ => Err(failed("type conversion error from string to bool")),
        },
        _ => Ok(None),
    }
}

fn timestamp<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    match call.values {
        [Value::Timestamp(at)] => Ok(Some(Value::Timestamp(*at))),
        [Value::Int(seconds)] => {
            let at = jiff::Timestamp::from_second(*seconds).map_err(|_| failed("timestamp overflow"))?;
            Ok(Some(Value::Timestamp(at)))
        }
        [Value::Text(text)] => {
            let at = time::timestamp(text).ok_or_else(|| failed("type conversion error from string to timestamp"))?;
            Ok(Some(Value::Timestamp(at)))
        }
        _ => Ok(None),
    }
}

fn duration<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    match call.values {
        [Value::Duration(duration)] => Ok(Some(Value::Duration(*duration))),
        [Value::Text(text)] => {
            let of = time::duration(text).ok_or_else(|| failed("type conversion error from string to duration"))?;
            Ok(Some(Value::Duration(of)))
        }
        _ => Ok(None),
    }
}

fn type_of<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(call.values.first().map(|value| Value::Type(value.type_name())))
}

fn same<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(call.values.first().cloned())
}
