//! Holding an object against the rules of its schema.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{Node, Rule, Validations};
use crate::cel::{Error, Program, Run, Value};
use crate::place::Place;
use crate::status::Faults;

/// What one rule may cost, and all rules of one object, in parts of expressions that are looked at. As upstream.
pub(super) const MAX_RULE: usize = 1_000_000;
pub(super) const MAX_OBJECT: usize = 10_000_000;
/// Bytes that a messageExpression may come to, as upstream.
const MAX_MESSAGE: usize = 5 << 10;
/// More of them nobody reads.
const MAX_WARNINGS: usize = 100;

const BLOCKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
const MESSAGE_OUT_OF_BUDGET: &str =
    "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";

/// A part of the object and what it was before, as far as that can be found; and the same of what is around it.
#[derive(Clone, Copy)]
struct Part<'a> {
    new: &'a Json,
    old: Option<&'a Json>,
    /// The innermost part that has an old value.
    known: Option<&'a Known<'a>>,
}

struct Known<'a> {
    new: &'a Json,
    old: &'a Json,
    same: OnceCell<bool>,
}

impl Known<'_> {
    fn is_same(&self) -> bool {
        *self.same.get_or_init(|| self.new == self.old)
    }
}

struct Enforcement<'f> {
    /// What the rules may still cost.
    left: usize,
    faults: &'f mut Faults,
    warnings: Vec<String>,
}

/// No further rule is looked at.
struct Enough;

impl Validations {
    /// Checks an object, and against what it was before. Returns what is wrong but did not change: nobody should have to mend
    /// what he did not touch.
    pub fn enforce(&self, new: &Json, old: Option<&Json>, faults: &mut Faults) -> Vec<String> {
        if let Some(broken) = &self.broken {
            faults.invalid("<nil>", "\"object\"", format_args!("rule compile error: {broken}"));
            return Vec::new();
        }
        let Some(root) = &self.root else { return Vec::new() };
        if faults.has_blocking() {
            faults.invalid("<nil>", "null", BLOCKED);
            return Vec::new();
        }
        let mut enforcement = Enforcement { left: MAX_OBJECT, faults, warnings: Vec::new() };
        let _enough = enforcement.node(root, Part { new, old, known: None }, &Place::Root);
        enforcement.warnings
    }
}

impl Enforcement<'_> {
    fn node(&mut self, node: &Node, part: Part<'_>, place: &Place<'_>) -> Result<(), Enough> {
        // What is null is judged by the rules around it.
        if part.new.is_null() {
            return Ok(());
        }
        let own;
        let mut part = Part { old: part.old.filter(|old| !old.is_null()), ..part };
        if let Some(old) = part.old {
            own = Known { new: part.new, old, same: OnceCell::new() };
            part.known = Some(&own);
        }
        for rule in &node.rules {
            self.rule(node, rule, part, place)?;
        }
        for inner in &node.all_of {
            self.node(inner, part, place)?;
        }
        match part.new {
            Json::Array(elements) => self.elements(node, elements, part, place),
            Json::Object(members) => {
                for (name, new) in members {
                    let old = part.old.and_then(|old| old.get(name));
                    let part = Part { new, old, known: part.known };
                    if let Some(others) = &node.others {
                        self.node(others, part, &place.key(name))?;
                    } else if let Some(member) = node.members.get(name) {
                        self.node(member, part, &place.member(name))?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// An element has an old value where its keys say which it is.
    fn elements(&mut self, node: &Node, elements: &[Json], part: Part<'_>, place: &Place<'_>) -> Result<(), Enough> {
        let Some(items) = &node.items else { return Ok(()) };
        let key = |element: &Json, keys: &[String]| -> Vec<String> {
            keys.iter().map(|key| element.get(key).map(Json::to_string).unwrap_or_default()).collect()
        };
        let before: BTreeMap<Vec<String>, &Json> = match (&node.keys, part.old.and_then(Json::as_array)) {
            (Some(keys), Some(old)) => old.iter().map(|element| (key(element, keys), element)).collect(),
            _ => BTreeMap::new(),
        };
        for (index, new) in elements.iter().enumerate() {
            let old = node.keys.as_ref().and_then(|keys| before.get(&key(new, keys)).copied());
            self.node(items, Part { new, old, known: part.known }, &place.element(index))?;
        }
        Ok(())
    }

    fn rule(&mut self, node: &Node, rule: &Rule, part: Part<'_>, place: &Place<'_>) -> Result<(), Enough> {
        // A rule about a change is for what was there before.
        if rule.program.uses_old_self() && part.old.is_none() && !rule.optional_old_self {
            return Ok(());
        }
        if self.faults.is_full() {
            return Err(Enough);
        }
        let own = Value::of(part.new, &node.of);
        let old = part.old.map(|old| Value::of(old, &node.of));
        let old = match rule.optional_old_self {
            true => Some(Value::Optional(old.map(Into::into))),
            false => old,
        };
        let type_name = format!("{:?}", node.type_name);
        let invalid = |faults: &mut Faults, why: &str| faults.invalid(shown(place), &type_name, why);
        let why = match self.evaluate(&rule.program, &own, old.as_ref()) {
            Ok(Value::Bool(true)) => return Ok(()),
            Ok(_) => None,
            Err(Error::Cost) => {
                let why = match self.left {
                    0 => OUT_OF_BUDGET.to_owned(),
                    _ => format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                        Error::Cost,
                        rule.shown
                    ),
                };
                invalid(self.faults, &why);
                return Err(Enough);
            }
            Err(error @ Error::Overload(_)) => Some(format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                rule.shown
            )),
            Err(error) => Some(format!("{error} evaluating rule: {}", rule.shown)),
        };
        if let Some(why) = why {
            invalid(self.faults, &why);
            return Ok(());
        }
        let message = match &rule.message_expression {
            Some(program) => match self.evaluate(program, &own, old.as_ref()) {
                Err(Error::Cost) => {
                    invalid(self.faults, MESSAGE_OUT_OF_BUDGET);
                    return Err(Enough);
                }
                outcome => outcome.ok().and_then(|value| said(&value)).unwrap_or_else(|| rule.message.clone()),
            },
            None => rule.message.clone(),
        };
        self.broken(rule, part, place, &type_name, &message);
        Ok(())
    }

    /// What a program comes to; what it cost is no longer left.
    fn evaluate<'a>(
        &mut self,
        program: &'a Program,
        own: &Value<'a>,
        old: Option<&Value<'a>>,
    ) -> Result<Value<'a>, Error> {
        let most = self.left.min(MAX_RULE);
        let mut run = Run::new(most);
        let outcome = program.evaluate(own, old, &mut run);
        self.left -= most - run.left();
        outcome
    }

    fn broken(&mut self, rule: &Rule, part: Part<'_>, place: &Place<'_>, type_name: &str, message: &str) {
        let field = match (place.is_root(), rule.field_path.as_str()) {
            (_, "") => shown(place),
            (true, path) => path.to_owned(),
            (false, path) => format!("{place}.{path}"),
        };
        let mut fault = Faults::default();
        match rule.reason.as_str() {
            "FieldValueForbidden" => fault.forbidden(field, message),
            "FieldValueRequired" => fault.required(field, message),
            "FieldValueDuplicate" => fault.duplicate(field, &type_name.trim_matches('"').into()),
            _ => fault.invalid(field, type_name, message),
        }
        if !rule.program.uses_old_self() && part.known.is_some_and(Known::is_same) {
            if self.warnings.len() < MAX_WARNINGS {
                self.warnings.extend(fault.sentences());
            }
        } else {
            self.faults.append(fault);
        }
    }
}

/// The path of a field as upstream writes it, which has a word for the whole object.
fn shown(place: &Place<'_>) -> String {
    if place.is_root() { "<nil>".to_owned() } else { crate::place::clipped(place, MAX_MESSAGE) }
}

/// A message that can be told.
fn said(value: &Value<'_>) -> Option<String> {
    let Value::Text(text) = value else { return None };
    let text = text.trim();
    (!text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')).then(|| text.to_owned())
}
