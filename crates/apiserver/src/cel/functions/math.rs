//! `math`, and base64.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::Gives::{self, Bool, Double};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::Value;
use crate::cel::operate::compare;

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const NUMBER: Takes = Takes::Number;

const fn function(name: &'static str, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method: false, takes, gives, call }
}

pub(super) const TABLE: &[Function] = &[
    function("math.greatest", &[Takes::List], Gives::Element, |call| extreme(call, Ordering::Greater)),
    function("math.greatest", &[NUMBER], Gives::First, |call| extreme(call, Ordering::Greater)),
    function("math.greatest", &[NUMBER; 2], Gives::Dyn, |call| extreme(call, Ordering::Greater)),
    function("math.greatest", &[NUMBER; 3], Gives::Dyn, |call| extreme(call, Ordering::Greater)),
    function("math.greatest", &[NUMBER; 4], Gives::Dyn, |call| extreme(call, Ordering::Greater)),
    function("math.least", &[Takes::List], Gives::Element, |call| extreme(call, Ordering::Less)),
    function("math.least", &[NUMBER], Gives::First, |call| extreme(call, Ordering::Less)),
    function("math.least", &[NUMBER; 2], Gives::Dyn, |call| extreme(call, Ordering::Less)),
    function("math.least", &[NUMBER; 3], Gives::Dyn, |call| extreme(call, Ordering::Less)),
    function("math.least", &[NUMBER; 4], Gives::Dyn, |call| extreme(call, Ordering::Less)),
    function("math.abs", &[NUMBER], Gives::First, abs),
    function("math.sign", &[NUMBER], Gives::First, sign),
    function("math.ceil", &[Takes::Double], Double, |call| rounded(call, f64::ceil)),
    function("math.floor", &[Takes::Double], Double, |call| rounded(call, f64::floor)),
    function("math.round", &[Takes::Double], Double, |call| rounded(call, f64::round)),
    function("math.trunc", &[Takes::Double], Double, |call| rounded(call, f64::trunc)),
    function("math.isNaN", &[Takes::Double], Bool, |call| is(call, f64::is_nan)),
    function("math.isInf", &[Takes::Double], Bool, |call| is(call, f64::is_infinite)),
    function("math.isFinite", &[Takes::Double], Bool, |call| is(call, f64::is_finite)),
    function("base64.encode", &[Takes::Bytes], Gives::Text, encode),
    function("base64.decode", &[Takes::Text], Gives::Bytes, decode),
];

fn extreme<'a>(call: Call<'_, 'a>, wanted: Ordering) -> Outcome<'a> {
    let list;
    let values = match call.values {
        [Value::List(given)] => {
            call.run.charge(given.len())?;
            list = given.iter().collect::<Vec<_>>();
            list.as_slice()
        }
        values => values,
    };
    if values.iter().any(|value| !matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))) {
        return Ok(None);
    }
    let better = |best: Value<'a>, value: &Value<'a>| match compare(value, &best) == Some(wanted) {
        true => value.clone(),
        false => best,
    };
    let (first, rest) = values.split_first().ok_or_else(|| failed("math: the list must not be empty"))?;
    Ok(Some(rest.iter().fold(first.clone(), better)))
}

fn abs<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(match call.values {
        [Value::Int(number)] => Some(Value::Int(number.checked_abs().ok_or_else(|| failed("integer overflow"))?)),
        [Value::Uint(number)] => Some(Value::Uint(*number)),
        [Value::Double(number)] => Some(Value::Double(number.abs())),
        _ => None,
    })
}

fn sign<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    Ok(match call.values {
        [Value::Int(number)] => Some(Value::Int(number.signum())),
        [Value::Uint(number)] => Some(Value::Uint(u64::from(*number > 0))),
        [Value::Double(number)] if *number == 0.0 || number.is_nan() => Some(Value::Double(*number)),
        [Value::Double(number)] => Some(Value::Double(number.signum())),
        _ => None,
    })
}

fn rounded<'a>(call: Call<'_, 'a>, round: fn(f64) -> f64) -> Outcome<'a> {
    let [Value::Double(number)] = call.values else { return Ok(None) };
    Ok(Some(Value::Double(round(*number))))
}

fn is<'a>(call: Call<'_, 'a>, holds: fn(f64) -> bool) -> Outcome<'a> {
    let [Value::Double(number)] = call.values else { return Ok(None) };
    Ok(Some(Value::Bool(holds(*number))))
}

fn encode<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Bytes(bytes)] = call.values else { return Ok(None) };
    call.run.charge(bytes.len() / 5)?;
    Ok(Some(Value::text(STANDARD.encode(bytes))))
}

fn decode<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Text(text)] = call.values else { return Ok(None) };
    call.run.charge(text.len() / 5)?;
    let decoded = STANDARD.decode(text.as_bytes()).or_else(|_| STANDARD_NO_PAD.decode(text.as_bytes()));
    decoded.map(|bytes| Some(Value::Bytes(bytes.into()))).map_err(|error| failed(error.to_string()))
}
