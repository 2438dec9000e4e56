//! Functions of lists, and of lists as sets.

use std::cmp::Ordering;

use super::Gives::{self, Bool, Int};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::operate::{binary, compare, equal};
use crate::cel::syntax::Operator;
use crate::cel::value::List;
use crate::cel::{Error, Run, Value};

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const LIST: Takes = Takes::List;

const fn method(name: &'static str, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method: true, takes, gives, call }
}

const fn set(name: &'static str, call: Implementation) -> Function {
    Function { name, method: false, takes: &[LIST, LIST], gives: Bool, call }
}

pub(super) const TABLE: &[Function] = &[
    method("isSorted", &[LIST], Bool, is_sorted),
    method("sum", &[LIST], Gives::Element, sum),
    method("min", &[LIST], Gives::Element, |call| extreme(call, Ordering::Less)),
    method("max", &[LIST], Gives::Element, |call| extreme(call, Ordering::Greater)),
    method("indexOf", &[LIST, Takes::Any], Int, |call| index_of(call, false)),
    method("lastIndexOf", &[LIST, Takes::Any], Int, |call| index_of(call, true)),
    method("slice", &[LIST, Takes::Int, Takes::Int], Gives::First, slice),
    method("reverse", &[LIST], Gives::First, reverse),
    method("distinct", &[LIST], Gives::First, distinct),
    method("sort", &[LIST], Gives::First, sort),
    set("sets.contains", |call| with_sets(call, |one, other, run| holds_all(one, other, run))),
    set("sets.equivalent", |call| {
        with_sets(call, |one, other, run| Ok(holds_all(one, other, run)? && holds_all(other, one, run)?))
    }),
    set("sets.intersects", |call| with_sets(call, intersects)),
];

fn is_sorted<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    call.run.charge(list.len())?;
    for (one, next) in list.iter().zip(list.iter().skip(1)) {
        match compare(&one, &next) {
            Some(Ordering::Greater) => return Ok(Some(Value::Bool(false))),
            Some(_) => {}
            None => return Ok(None),
        }
    }
    Ok(Some(Value::Bool(true)))
}

fn sum<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    let mut all = list.iter();
    let Some(mut sum) = all.next() else { return Ok(Some(Value::Int(0))) };
    for element in all {
        call.run.charge(1)?;
        if !matches!(element, Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)) {
            return Ok(None);
        }
        sum = binary(Operator::Add, &sum, &element, call.run)?;
    }
    Ok(Some(sum))
}

fn extreme<'a>(call: Call<'_, 'a>, wanted: Ordering) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    let mut best: Option<Value<'a>> = None;
    for element in list.iter() {
        call.run.charge(1)?;
        best = Some(match best {
            None => element,
            Some(best) => match compare(&element, &best) {
                Some(ordering) if ordering == wanted => element,
                Some(_) => best,
                None => return Ok(None),
            },
        });
    }
    let name = if wanted == Ordering::Less { "min" } else { "max" };
    best.map(Some).ok_or_else(|| failed(format!("{name} called on empty list")))
}

fn index_of<'a>(call: Call<'_, 'a>, last: bool) -> Outcome<'a> {
    let [Value::List(list), wanted] = call.values else { return Ok(None) };
    let mut found = -1;
    for (index, element) in (0_i64..).zip(list.iter()) {
        if equal(&element, wanted, call.run)? {
            found = index;
            if !last {
                break;
            }
        }
    }
    Ok(Some(Value::Int(found)))
}

fn slice<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list), Value::Int(from), Value::Int(to)] = call.values else { return Ok(None) };
    let (from, to) = match (usize::try_from(*from), usize::try_from(*to)) {
        (Ok(from), Ok(to)) if from <= to && to <= list.len() => (from, to),
        _ => return Err(failed(format!("cannot slice({from}, {to}), list is length {}", list.len()))),
    };
    call.run.charge(to)?;
    Ok(Some(Value::list(list.iter().take(to).skip(from).collect())))
}

fn reverse<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    call.run.charge(list.len())?;
    let mut all: Vec<Value<'a>> = list.iter().collect();
    all.reverse();
    Ok(Some(Value::list(all)))
}

fn distinct<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    let mut kept: Vec<Value<'a>> = Vec::new();
    for element in list.iter() {
        if !is_in(&kept, &element, call.run)? {
            kept.push(element);
        }
    }
    Ok(Some(Value::list(kept)))
}

fn sort<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = call.values else { return Ok(None) };
    // As many comparisons as sorting takes at most, about.
    call.run.charge(list.len().saturating_mul(list.len().checked_ilog2().unwrap_or(0) as usize + 1))?;
    let mut all: Vec<Value<'a>> = list.iter().collect();
    if all.iter().zip(all.iter().skip(1)).any(|(one, next)| compare(one, next).is_none()) {
        return Ok(None);
    }
    all.sort_by(|one, other| compare(one, other).unwrap_or(Ordering::Equal));
    Ok(Some(Value::list(all)))
}

fn with_sets<'a>(call: Call<'_, 'a>, holds: fn(&List<'a>, &List<'a>, &mut Run) -> Result<bool, Error>) -> Outcome<'a> {
    let [Value::List(one), Value::List(other)] = call.values else { return Ok(None) };
    Ok(Some(Value::Bool(holds(one, other, call.run)?)))
}

fn is_in<'a>(elements: &[Value<'a>], wanted: &Value<'a>, run: &mut Run) -> Result<bool, Error> {
    for element in elements {
        if equal(element, wanted, run)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn holds_all<'a>(one: &List<'a>, other: &List<'a>, run: &mut Run) -> Result<bool, Error> {
    run.charge(one.len())?;
    let one: Vec<Value<'a>> = one.iter().collect();
    for wanted in other.iter() {
        if !is_in(&one, &wanted, run)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(one: &List<'a>, other: &List<'a>, run: &mut Run) -> Result<bool, Error> {
    run.charge(one.len())?;
    let one: Vec<Value<'a>> = one.iter().collect();
    for wanted in other.iter() {
        if is_in(&one, &wanted, run)? {
            return Ok(true);
        }
    }
    Ok(false)
}
