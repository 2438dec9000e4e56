//! Operators: what is equal, what comes first, and arithmetic.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::syntax::Operator;
use super::types::Merge;
use super::value::{List, Map};
use super::{Error, Run, Value};
use crate::bounds::encoded_length;

pub(super) fn no_overload(name: &str, values: &[&Value<'_>]) -> Error {
    let types: Vec<&str> = values.iter().map(|value| value.type_name()).collect();
    Error::Overload(format!("{name}({})", types.join(", ")))
}

fn failed(why: &str) -> Error {
    Error::Failed(why.to_owned())
}

pub(super) fn binary<'a>(
    operator: Operator,
    left: &Value<'a>,
    right: &Value<'a>,
    run: &mut Run,
) -> Result<Value<'a>, Error> {
    let ordered = |run: &mut Run, holds: fn(Ordering) -> bool| {
        run.charge(weight(left).min(weight(right)))?;
        // What is not a number is neither less nor more.
        if let (Some(left), Some(right)) = (as_double(left), as_double(right))
            && (left.is_nan() || right.is_nan())
        {
            return Ok(Value::Bool(false));
        }
        let ordering = compare(left, right).ok_or_else(|| no_overload(operator.name(), &[left, right]))?;
        Ok(Value::Bool(holds(ordering)))
    };
    match operator {
        Operator::Equal => Ok(Value::Bool(equal(left, right, run)?)),
        Operator::NotEqual => Ok(Value::Bool(!equal(left, right, run)?)),
        Operator::Less => ordered(run, Ordering::is_lt),
        Operator::LessOrEqual => ordered(run, Ordering::is_le),
        Operator::Greater => ordered(run, Ordering::is_gt),
        Operator::GreaterOrEqual => ordered(run, Ordering::is_ge),
        Operator::In => contains(left, right, run),
        Operator::Add => add(left, right, run),
        _ => arithmetic(operator, left, right),
    }
}

/// What looking at a whole value costs.
fn weight(value: &Value<'_>) -> usize {
    match value {
        Value::Text(text) => text.len() / 10 + 1,
        Value::Bytes(bytes) => bytes.len() / 10 + 1,
        _ => 1,
    }
}

fn as_double(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        Value::Double(number) => Some(*number),
        _ => None,
    }
}

/// Which comes first, of values that have an order. Numbers are compared as numbers, whatever their types.
pub(super) fn compare(left: &Value<'_>, right: &Value<'_>) -> Option<Ordering> {
    let whole = |value: &Value<'_>| match value {
        Value::Int(number) => Some(i128::from(*number)),
        Value::Uint(number) => Some(i128::from(*number)),
        _ => None,
    };
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        return Some(left.cmp(&right));
    }
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Text(left), Value::Text(right)) => Some((**left).cmp(&**right)),
        (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
        (Value::Timestamp(left), Value::Timestamp(right)) => Some(left.cmp(right)),
        (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
        (Value::Quantity(left), Value::Quantity(right)) => Some(left.cmp(right)),
        (Value::Semver(left), Value::Semver(right)) => Some(left.cmp(right)),
        _ => as_double(left)?.partial_cmp(&as_double(right)?),
    }
}

pub(super) fn equal<'a>(left: &Value<'a>, right: &Value<'a>, run: &mut Run) -> Result<bool, Error> {
    run.charge(weight(left).min(weight(right)))?;
    Ok(match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Type(left), Value::Type(right)) => left == right,
        (Value::Ip(left), Value::Ip(right)) => left == right,
        (Value::Cidr(left), Value::Cidr(right)) => left == right,
        (Value::Url(left), Value::Url(right)) => left == right,
        (Value::Format(left), Value::Format(right)) => left == right,
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(left)), Value::Optional(Some(right))) => equal(left, right, run)?,
        (Value::List(left), Value::List(right)) => equal_lists(left, right, run)?,
        (Value::Map(left), Value::Map(right)) => equal_maps(left, right, run)?,
        _ => compare(left, right) == Some(Ordering::Equal),
    })
}

/// Lists that are sets or maps have no order.
fn equal_lists<'a>(left: &List<'a>, right: &List<'a>, run: &mut Run) -> Result<bool, Error> {
    if left.len() != right.len() {
        return Ok(false);
    }
    if let (List::Given(one, of), List::Given(other, _)) = (left, right) {
        match &of.merge {
            Merge::Set => {
                let one: BTreeSet<String> = written(one, run)?.into_iter().collect();
                let other: BTreeSet<String> = written(other, run)?.into_iter().collect();
                return Ok(one == other);
            }
            Merge::Keyed(keys) => {
                let others = by_key(other, keys, run)?;
                for element in *one {
                    let Some(other) = others.get(&key_of(element, keys, run)?) else { return Ok(false) };
                    if !equal(&Value::of(element, &of.element), &Value::of(other, &of.element), run)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            Merge::Atomic => {}
        }
    }
    for (left, right) in left.iter().zip(right.iter()) {
        if !equal(&left, &right, run)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn written(elements: &[Json], run: &mut Run) -> Result<Vec<String>, Error> {
    let each = elements.iter().map(|element| {
        let written = element.to_string();
        run.charge(written.len() / 10 + 1)?;
        Ok(written)
    });
    each.collect()
}

fn key_of(element: &Json, keys: &[String], run: &mut Run) -> Result<Vec<String>, Error> {
    let key: Vec<String> = keys.iter().map(|key| element.get(key).map(Json::to_string).unwrap_or_default()).collect();
    run.charge(key.iter().map(|part| part.len() / 10 + 1).sum())?;
    Ok(key)
}

fn by_key<'a>(elements: &'a [Json], keys: &[String], run: &mut Run) -> Result<BTreeMap<Vec<String>, &'a Json>, Error> {
    let each = elements.iter().map(|element| Ok((key_of(element, keys, run)?, element)));
    each.collect()
}

fn equal_maps<'a>(left: &Map<'a>, right: &Map<'a>, run: &mut Run) -> Result<bool, Error> {
    if left.len() != right.len() {
        return Ok(false);
    }
    if let (Map::Object(left, of), Map::Object(right, _)) = (left, right) {
        let mut known = BTreeSet::new();
        for (raw, of) in of.fields.values() {
            run.charge(1)?;
            known.insert(raw.as_str());
            let same = match (left.get(raw), right.get(raw)) {
                (Some(left), Some(right)) => equal(&Value::of(left, of), &Value::of(right, of), run)?,
                (left, right) => left.is_none() && right.is_none(),
            };
            if !same {
                return Ok(false);
            }
        }
        // What expressions cannot see is part of the object all the same.
        let unseen = |name: &&String| !known.contains(name.as_str());
        run.charge(left.len() + right.len())?;
        for name in left.keys().chain(right.keys()).filter(unseen) {
            run.charge(left.get(name).map_or(0, encoded_length) / 10)?;
            if left.get(name) != right.get(name) {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    run.charge(left.breadth())?;
    for (key, value) in left.entries() {
        let Some(other) = lookup(right, &key, run)? else { return Ok(false) };
        if !equal(&value, &other, run)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The value of a key.
pub(super) fn lookup<'a>(map: &Map<'a>, key: &Value<'a>, run: &mut Run) -> Result<Option<Value<'a>>, Error> {
    match (map, key) {
        (Map::Given(..) | Map::Object(..), Value::Text(name)) => Ok(map.member(name)),
        (Map::Given(..) | Map::Object(..), _) => Ok(None),
        (Map::Made(entries), key) => {
            for (found, value) in entries.iter() {
                if equal(found, key, run)? {
                    return Ok(Some(value.clone()));
                }
            }
            Ok(None)
        }
    }
}

fn contains<'a>(left: &Value<'a>, right: &Value<'a>, run: &mut Run) -> Result<Value<'a>, Error> {
    match right {
        Value::List(list) => {
            for element in list.iter() {
                if equal(left, &element, run)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Map(map) => Ok(Value::Bool(lookup(map, left, run)?.is_some())),
        _ => Err(no_overload("@in", &[left, right])),
    }
}

fn add<'a>(left: &Value<'a>, right: &Value<'a>, run: &mut Run) -> Result<Value<'a>, Error> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            run.charge((left.len() + right.len()) / 10 + 1)?;
            Ok(Value::text([&**left, &**right].concat()))
        }
        (Value::Bytes(left), Value::Bytes(right)) => {
            run.charge((left.len() + right.len()) / 10 + 1)?;
            Ok(Value::Bytes([&**left, &**right].concat().into()))
        }
        (Value::List(left), Value::List(right)) => join(left, right, run),
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at)) => {
            at.checked_add(*by).map(Value::Timestamp).map_err(|_| failed("timestamp overflow"))
        }
        (Value::Duration(left), Value::Duration(right)) => {
            left.checked_add(*right).map(Value::Duration).ok_or_else(|| failed("duration overflow"))
        }
        _ => arithmetic(Operator::Add, left, right),
    }
}

/// One list after the other. Of sets, each element once; of lists with keys, the second has the word.
fn join<'a>(left: &List<'a>, right: &List<'a>, run: &mut Run) -> Result<Value<'a>, Error> {
    run.charge(left.len() + right.len())?;
    let plain = || Value::list(left.iter().chain(right.iter()).collect());
    let (List::Given(one, of), List::Given(other, _)) = (left, right) else { return Ok(plain()) };
    let element = |tree| Value::of(tree, &of.element);
    match &of.merge {
        Merge::Atomic => Ok(plain()),
        Merge::Set => {
            let mut seen = BTreeSet::new();
            let all = written(one, run)?.into_iter().chain(written(other, run)?).zip(one.iter().chain(*other));
            Ok(Value::list(all.filter(|(key, _)| seen.insert(key.clone())).map(|(_, tree)| element(tree)).collect()))
        }
        Merge::Keyed(keys) => {
            let mut newer = by_key(other, keys, run)?;
            let mut all = Vec::with_capacity(one.len());
            for tree in *one {
                all.push(element(newer.remove(&key_of(tree, keys, run)?).unwrap_or(tree)));
            }
            for tree in *other {
                all.extend(newer.remove(&key_of(tree, keys, run)?).map(element));
            }
            Ok(Value::list(all))
        }
    }
}

fn arithmetic<'a>(operator: Operator, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || failed("integer overflow");
    let zero = || failed(if operator == Operator::Modulo { "modulus by zero" } else { "division by zero" });
    match (left, right) {
        (Value::Int(_), Value::Int(0)) if matches!(operator, Operator::Divide | Operator::Modulo) => Err(zero()),
        (Value::Uint(_), Value::Uint(0)) if matches!(operator, Operator::Divide | Operator::Modulo) => Err(zero()),
        (Value::Int(left), Value::Int(right)) => {
            let result = match operator {
                Operator::Add => left.checked_add(*right),
                Operator::Subtract => left.checked_sub(*right),
                Operator::Multiply => left.checked_mul(*right),
                Operator::Divide => left.checked_div(*right),
                _ => left.checked_rem(*right),
            };
            result.map(Value::Int).ok_or_else(overflow)
        }
        (Value::Uint(left), Value::Uint(right)) => {
            let result = match operator {
                Operator::Add => left.checked_add(*right),
                Operator::Subtract => left.checked_sub(*right),
                Operator::Multiply => left.checked_mul(*right),
                Operator::Divide => left.checked_div(*right),
                _ => left.checked_rem(*right),
            };
            result.map(Value::Uint).ok_or_else(|| failed("unsigned integer overflow"))
        }
        (Value::Double(left), Value::Double(right)) if operator != Operator::Modulo => {
            Ok(Value::Double(match operator {
                Operator::Add => left + right,
                Operator::Subtract => left - right,
                Operator::Multiply => left * right,
                _ => left / right,
            }))
        }
        (Value::Timestamp(left), Value::Timestamp(right)) if operator == Operator::Subtract => {
            Ok(Value::Duration(left.duration_since(*right)))
        }
        (Value::Timestamp(at), Value::Duration(by)) if operator == Operator::Subtract => {
            at.checked_sub(*by).map(Value::Timestamp).map_err(|_| failed("timestamp overflow"))
        }
        (Value::Duration(left), Value::Duration(right)) if operator == Operator::Subtract => {
            left.checked_sub(*right).map(Value::Duration).ok_or_else(|| failed("duration overflow"))
        }
        _ => Err(no_overload(operator.name(), &[left, right])),
    }
}
