//! Values that may be absent.

use super::Gives::{self, Bool};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::Value;

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const OPTIONAL: Takes = Takes::Optional;

const fn of(name: &'static str, method: bool, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method, takes, gives, call }
}

pub(super) const TABLE: &[Function] = &[
    of("optional.of", false, &[Takes::Any], Gives::OptionalFirst, |call| {
        Ok(call.values.first().cloned().map(Value::some))
    }),
    of("optional.none", false, &[], Gives::OptionalDyn, |_| Ok(Some(Value::Optional(None)))),
    of("optional.ofNonZeroValue", false, &[Takes::Any], Gives::OptionalFirst, non_zero),
    of("hasValue", true, &[OPTIONAL], Bool, |call| {
        let [Value::Optional(inner)] = call.values else { return Ok(None) };
        Ok(Some(Value::Bool(inner.is_some())))
    }),
    of("value", true, &[OPTIONAL], Gives::Inner, |call| {
        let [Value::Optional(inner)] = call.values else { return Ok(None) };
        inner.as_ref().map(|inner| Some((**inner).clone())).ok_or_else(|| failed("optional.none() dereference"))
    }),
    of("orValue", true, &[OPTIONAL, Takes::Any], Gives::Inner, |call| {
        let [Value::Optional(inner), other] = call.values else { return Ok(None) };
        Ok(Some(inner.as_ref().map_or_else(|| other.clone(), |inner| (**inner).clone())))
    }),
    of("or", true, &[OPTIONAL, OPTIONAL], Gives::First, |call| {
        let [first @ Value::Optional(inner), other] = call.values else { return Ok(None) };
        Ok(Some(if inner.is_some() { first.clone() } else { other.clone() }))
    }),
];

fn non_zero<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let Some(value) = call.values.first() else { return Ok(None) };
    let zero = match value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) | Value::Optional(None) => true,
        Value::Double(number) => *number == 0.0,
        Value::Text(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.len() == 0,
        Value::Map(map) => map.len() == 0,
        Value::Duration(duration) => duration.is_zero(),
        _ => false,
    };
    Ok(Some(if zero { Value::Optional(None) } else { Value::some(value.clone()) }))
}
