//! Evaluating an expression, with an account of what it costs.

use super::functions;
use super::operate::{binary, lookup, no_overload};
use super::regexes::Regexes;
use super::syntax::{Comprehension, Expr, Literal, Node, Shape};
use super::value::{Map, Value};
use super::{Error, types};

/// What evaluations may still cost. A part of an expression costs one, and so do ten bytes of a text that is looked at.
#[derive(Debug)]
pub(crate) struct Run {
    left: usize,
}

impl Run {
    pub fn new(most: usize) -> Self {
        Self { left: most }
    }

    pub fn left(&self) -> usize {
        self.left
    }

    pub(super) fn charge(&mut self, cost: usize) -> Result<(), Error> {
        let left = self.left.checked_sub(cost);
        self.left = left.unwrap_or_default();
        left.map(|_| ()).ok_or(Error::Cost)
    }
}

/// The variables at one place, the innermost first.
struct Scope<'s, 'a> {
    name: &'a str,
    value: Value<'a>,
    outer: Option<&'s Self>,
}

struct Evaluation<'a, 'r> {
    regexes: &'a Regexes,
    run: &'r mut Run,
}

pub(super) fn evaluate<'a>(
    expr: &'a Expr,
    regexes: &'a Regexes,
    own: &Value<'a>,
    old_self: Option<&Value<'a>>,
    run: &mut Run,
) -> Result<Value<'a>, Error> {
    let own = Scope { name: "self", value: own.clone(), outer: None };
    let old = old_self.map(|value| Scope { name: "oldSelf", value: value.clone(), outer: Some(&own) });
    Evaluation { regexes, run }.value(expr, old.as_ref().unwrap_or(&own))
}

fn as_bool(value: &Value<'_>, name: &str) -> Result<bool, Error> {
    match value {
        Value::Bool(value) => Ok(*value),
        other => Err(no_overload(name, &[other])),
    }
}

impl<'a> Evaluation<'a, '_> {
    /// Recurses once for each part of a chain, and does nothing else, so that a long one takes little of the stack.
    fn value(&mut self, expr: &'a Expr, scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        self.run.charge(1)?;
        match expr.before() {
            Some(before) => {
                let before = self.value(before, scope)?;
                self.go_on(expr, before, scope)
            }
            None => self.alone(expr, scope),
        }
    }

    /// What comes of a part that goes on from this value.
    #[inline(never)]
    fn go_on(&mut self, expr: &'a Expr, before: Value<'a>, scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        match &expr.node {
            Node::Select { field, optional, .. } => self.select(&before, field, *optional),
            Node::Index { index, optional, .. } => self.index(before, index, *optional, scope),
            Node::Call { name, arguments, .. } => self.call(name, vec![before], &arguments[1..], scope),
            Node::Binary(operator, parts) => {
                let right = self.value(&parts[1], scope)?;
                binary(*operator, &before, &right, self.run)
            }
            Node::Comprehension(comprehension) => self.comprehension(comprehension, &before, scope),
            _ => Ok(before),
        }
    }

    fn call(
        &mut self,
        name: &str,
        mut values: Vec<Value<'a>>,
        arguments: &'a [Expr],
        scope: &Scope<'_, 'a>,
    ) -> Result<Value<'a>, Error> {
        for argument in arguments {
            values.push(self.value(argument, scope)?);
        }
        functions::call(name, &values, self.regexes, self.run)
    }

    #[inline(never)]
    fn alone(&mut self, expr: &'a Expr, scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        match &expr.node {
            Node::Literal(literal) => Ok(constant(literal)),
            Node::Name(name) => variable(name, scope),
            Node::Has { operand, field } => {
                let operand = self.value(operand, scope)?;
                Ok(Value::Bool(self.member(&operand, field)?.is_some()))
            }
            Node::Call { name, arguments, .. } => self.call(name, Vec::new(), arguments, scope),
            Node::And(parts) => self.junction(parts, false, scope),
            Node::Or(parts) => self.junction(parts, true, scope),
            Node::Not(operand) => Ok(Value::Bool(!as_bool(&self.value(operand, scope)?, "!_")?)),
            Node::Negate(operand) => match self.value(operand, scope)? {
                Value::Int(number) => {
                    number.checked_neg().map(Value::Int).ok_or_else(|| Error::Failed("integer overflow".to_owned()))
                }
                Value::Double(number) => Ok(Value::Double(-number)),
                other => Err(no_overload("-_", &[&other])),
            },
            Node::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                let holds = as_bool(&self.value(condition, scope)?, "_?_:_")?;
                self.value(if holds { then } else { otherwise }, scope)
            }
            Node::List(elements) => self.list(elements, scope),
            Node::Map(entries) => self.map(entries, scope),
            Node::Select { .. } | Node::Index { .. } | Node::Binary(..) | Node::Comprehension(_) => {
                Err(Error::Failed("a part that goes on from another stands alone".to_owned()))
            }
        }
    }

    /// Bytes are decoded each time they are asked for.
    fn read(&mut self, value: &Value<'a>) -> Result<(), Error> {
        match value {
            Value::Bytes(bytes) => self.run.charge(bytes.len() / 10),
            _ => Ok(()),
        }
    }

    /// One side that decides is enough, also when the other fails.
    fn junction(&mut self, parts: &'a [Expr], deciding: bool, scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        let mut failure = None;
        for part in parts {
            let value = self.value(part, scope).and_then(|v| as_bool(&v, if deciding { "_||_" } else { "_&&_" }));
            match value {
                Ok(value) if value == deciding => return Ok(Value::Bool(deciding)),
                Ok(_) => {}
                Err(Error::Cost) => return Err(Error::Cost),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!deciding)), Err)
    }

    fn member(&mut self, operand: &Value<'a>, field: &str) -> Result<Option<Value<'a>>, Error> {
        match operand {
            Value::Map(map) => {
                if let Map::Made(entries) = map {
                    self.run.charge(entries.len())?;
                }
                let found = map.member(field);
                found.as_ref().map_or(Ok(()), |value| self.read(value))?;
                Ok(found)
            }
            Value::Optional(Some(inner)) => self.member(inner, field),
            Value::Optional(None) => Ok(None),
            other => Err(no_overload("_._", &[other])),
        }
    }

    fn select(&mut self, operand: &Value<'a>, field: &str, optional: bool) -> Result<Value<'a>, Error> {
        let found = self.member(operand, field)?;
        // What is chosen of an optional is optional itself.
        if optional || matches!(operand, Value::Optional(_)) {
            return Ok(Value::Optional(found.map(Into::into)));
        }
        found.ok_or_else(|| Error::Failed(format!("no such key: {field}")))
    }

    fn index(
        &mut self,
        operand: Value<'a>,
        index: &'a Expr,
        optional: bool,
        scope: &Scope<'_, 'a>,
    ) -> Result<Value<'a>, Error> {
        let index = self.value(index, scope)?;
        let chained = matches!(operand, Value::Optional(_));
        let operand = match &operand {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => (**inner).clone(),
            _ => operand,
        };
        let found = match (&operand, &index) {
            (Value::List(list), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
                let position = match index {
                    Value::Int(number) => usize::try_from(number).ok(),
                    Value::Uint(number) => usize::try_from(number).ok(),
                    Value::Double(number) if number.fract() == 0.0 && number >= 0.0 => Some(number as usize),
                    _ => None,
                };
                let found = position.and_then(|position| list.get(position));
                found.as_ref().map_or(Ok(()), |value| self.read(value))?;
                found
            }
            (Value::Map(map), _) => lookup(map, &index, self.run)?,
            _ => return Err(no_overload("_[_]", &[&operand, &index])),
        };
        if optional || chained {
            return Ok(Value::Optional(found.map(Into::into)));
        }
        found.ok_or_else(|| {
            let mut key = String::new();
            let shown = index.write(&mut key, self.run).is_ok();
            let key = if shown { key } else { "?".to_owned() };
            Error::Failed(match operand {
                Value::List(_) => format!("index out of bounds: {key}"),
                _ => format!("no such key: {key}"),
            })
        })
    }

    fn list(&mut self, elements: &'a [(Expr, bool)], scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        let mut made = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.value(element, scope)?, optional) {
                (Value::Optional(inner), true) => made.extend(inner.map(|inner| (*inner).clone())),
                (value, _) => made.push(value),
            }
        }
        Ok(Value::list(made))
    }

    fn map(&mut self, entries: &'a [(Expr, Expr, bool)], scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
        let mut made = Vec::with_capacity(entries.len());
        for (key, value, optional) in entries {
            let key = self.value(key, scope)?;
            match (self.value(value, scope)?, optional) {
                (Value::Optional(inner), true) => made.extend(inner.map(|inner| (key, (*inner).clone()))),
                (value, _) => made.push((key, value)),
            }
        }
        Ok(Value::Map(Map::Made(made.into())))
    }

    fn comprehension(
        &mut self,
        it: &'a Comprehension,
        range: &Value<'a>,
        scope: &Scope<'_, 'a>,
    ) -> Result<Value<'a>, Error> {
        if matches!(it.shape, Shape::OptionalMap | Shape::OptionalFlatMap) {
            return self.optional(it, range, scope);
        }
        let items: Box<dyn Iterator<Item = (Value<'a>, Value<'a>)>> = match range {
            // Numbers of elements are far below the largest integer.
            Value::List(list) => {
                Box::new(list.iter().enumerate().map(|(index, value)| (Value::Int(index as i64), value)))
            }
            Value::Map(map) => {
                self.run.charge(map.breadth())?;
                Box::new(map.entries().into_iter())
            }
            other => return Err(no_overload("comprehension", &[other])),
        };
        let of_map = matches!(range, Value::Map(_));
        let mut found = Found::default();
        for (key, value) in items {
            self.run.charge(1)?;
            self.read(&value)?;
            let done = match it.variables.as_slice() {
                [first, second] => {
                    let first = Scope { name: first, value: key.clone(), outer: Some(scope) };
                    let scope = Scope { name: second, value, outer: Some(&first) };
                    self.step(it, &key, &scope, &mut found)?
                }
                [only, ..] => {
                    let item = if of_map { key.clone() } else { value };
                    let scope = Scope { name: only, value: item.clone(), outer: Some(scope) };
                    self.step(it, &item, &scope, &mut found)?
                }
                [] => true,
            };
            if done {
                break;
            }
        }
        found.result(it.shape)
    }

    /// One element; whether the others need not be looked at.
    fn step(
        &mut self,
        it: &'a Comprehension,
        item: &Value<'a>,
        scope: &Scope<'_, 'a>,
        found: &mut Found<'a>,
    ) -> Result<bool, Error> {
        if let Some(filter) = &it.filter
            && !as_bool(&self.value(filter, scope)?, "filter")?
        {
            return Ok(false);
        }
        let value = self.value(&it.body, scope);
        match it.shape {
            Shape::All | Shape::Exists => match value.and_then(|value| as_bool(&value, "predicate")) {
                Ok(holds) if holds == (it.shape == Shape::Exists) => {
                    found.decided = true;
                    return Ok(true);
                }
                Ok(_) => {}
                Err(Error::Cost) => return Err(Error::Cost),
                Err(error) => found.failure = found.failure.take().or(Some(error)),
            },
            Shape::ExistsOne => found.count += usize::from(as_bool(&value?, "predicate")?),
            Shape::Filter => {
                if as_bool(&value?, "predicate")? {
                    found.list.push(item.clone());
                }
            }
            Shape::TransformMap => found.map.push((item.clone(), value?)),
            Shape::Map | Shape::OptionalMap | Shape::OptionalFlatMap => found.list.push(value?),
        }
        Ok(false)
    }

    fn optional(
        &mut self,
        it: &'a Comprehension,
        range: &Value<'a>,
        scope: &Scope<'_, 'a>,
    ) -> Result<Value<'a>, Error> {
        let (Value::Optional(inner), [name, ..]) = (range, it.variables.as_slice()) else {
            return Err(no_overload("optMap", &[range]));
        };
        let Some(inner) = inner else { return Ok(Value::Optional(None)) };
        let scope = Scope { name, value: (**inner).clone(), outer: Some(scope) };
        let value = self.value(&it.body, &scope)?;
        Ok(if it.shape == Shape::OptionalMap { Value::some(value) } else { value })
    }
}

/// What a comprehension has come to so far.
#[derive(Default)]
struct Found<'a> {
    decided: bool,
    count: usize,
    failure: Option<Error>,
    list: Vec<Value<'a>>,
    map: Vec<(Value<'a>, Value<'a>)>,
}

impl<'a> Found<'a> {
    fn result(self, shape: Shape) -> Result<Value<'a>, Error> {
        match (shape, self.failure) {
            (Shape::All | Shape::Exists, Some(failure)) if !self.decided => Err(failure),
            (Shape::All, _) => Ok(Value::Bool(!self.decided)),
            (Shape::Exists, _) => Ok(Value::Bool(self.decided)),
            (Shape::ExistsOne, _) => Ok(Value::Bool(self.count == 1)),
            (Shape::TransformMap, _) => Ok(Value::Map(Map::Made(self.map.into()))),
            _ => Ok(Value::list(self.list)),
        }
    }
}

fn constant(literal: &Literal) -> Value<'_> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::Text(text) => Value::given(text),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}

fn variable<'a>(name: &str, scope: &Scope<'_, 'a>) -> Result<Value<'a>, Error> {
    let mut at = Some(scope);
    while let Some(scope) = at {
        if scope.name == name {
            return Ok(scope.value.clone());
        }
        at = scope.outer;
    }
    let named = types::NAMES.iter().find(|(known, _)| *known == name);
    named.map(|(_, value)| Value::Type(value)).ok_or_else(|| Error::Failed(format!("no such attribute: {name}")))
}
