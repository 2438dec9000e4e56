//! Quantities of resources.

use super::Gives::{self, Bool, Int};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::Value;
use crate::quantity::{NANO, parse_nano};

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const NAME: &str = "kubernetes.Quantity";
const QUANTITY: Takes = Takes::Opaque(NAME);
const GIVEN: Gives = Gives::Opaque(NAME);

const fn of(name: &'static str, method: bool, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method, takes, gives, call }
}

pub(super) const TABLE: &[Function] = &[
    of("quantity", false, &[Takes::Text], GIVEN, |call| {
        let [Value::Text(text)] = call.values else { return Ok(None) };
        parse(text).map(|n| Some(Value::Quantity(n))).ok_or_else(|| failed(format!("{:?} is not a quantity", &**text)))
    }),
    of("isQuantity", false, &[Takes::Text], Bool, |call| {
        let [Value::Text(text)] = call.values else { return Ok(None) };
        Ok(Some(Value::Bool(parse(text).is_some())))
    }),
    of("sign", true, &[QUANTITY], Int, |call| with(call, |n| Ok(Value::Int(n.signum() as i64)))),
    of("isInteger", true, &[QUANTITY], Bool, |call| with(call, |n| Ok(Value::Bool(whole(n).is_some())))),
    of("asInteger", true, &[QUANTITY], Int, |call| {
        with(call, |n| whole(n).map(Value::Int).ok_or_else(|| failed("cannot convert value to integer")))
    }),
    of("asApproximateFloat", true, &[QUANTITY], Gives::Double, |call| {
        with(call, |n| Ok(Value::Double(n as f64 / NANO as f64)))
    }),
    of("add", true, &[QUANTITY, QUANTITY], GIVEN, |call| both(call, i128::checked_add)),
    of("add", true, &[QUANTITY, Takes::Int], GIVEN, |call| both(call, i128::checked_add)),
    of("sub", true, &[QUANTITY, QUANTITY], GIVEN, |call| both(call, i128::checked_sub)),
    of("sub", true, &[QUANTITY, Takes::Int], GIVEN, |call| both(call, i128::checked_sub)),
    of("isLessThan", true, &[QUANTITY, QUANTITY], Bool, |call| compared(call, |one, other| Value::Bool(one < other))),
    of("isGreaterThan", true, &[QUANTITY, QUANTITY], Bool, |call| {
        compared(call, |one, other| Value::Bool(one > other))
    }),
    of("compareTo", true, &[QUANTITY, QUANTITY], Int, |call| {
        compared(call, |one, other| Value::Int(one.cmp(&other) as i64))
    }),
];

/// Longer ones are no quantities that anybody means.
fn parse(text: &str) -> Option<i128> {
    if text.len() > 64 { None } else { parse_nano(text) }
}

fn whole(nano: i128) -> Option<i64> {
    if nano % NANO == 0 { i64::try_from(nano / NANO).ok() } else { None }
}

fn with<'a>(call: Call<'_, 'a>, read: fn(i128) -> Result<Value<'a>, crate::cel::Error>) -> Outcome<'a> {
    let [Value::Quantity(nano)] = call.values else { return Ok(None) };
    read(*nano).map(Some)
}

fn both<'a>(call: Call<'_, 'a>, sum: fn(i128, i128) -> Option<i128>) -> Outcome<'a> {
    let (one, other) = match call.values {
        [Value::Quantity(one), Value::Quantity(other)] => (*one, *other),
        [Value::Quantity(one), Value::Int(other)] => (*one, i128::from(*other) * NANO),
        _ => return Ok(None),
    };
    sum(one, other).map(|sum| Some(Value::Quantity(sum))).ok_or_else(|| failed("quantity overflow"))
}

fn compared<'a>(call: Call<'_, 'a>, read: fn(i128, i128) -> Value<'a>) -> Outcome<'a> {
    let [Value::Quantity(one), Value::Quantity(other)] = call.values else { return Ok(None) };
    Ok(Some(read(*one, *other)))
}
