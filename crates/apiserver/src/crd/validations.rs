//! `x-kubernetes-validations`: the rules of a schema, read once for each version of a definition.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pattern::MAX_COMPILED;
use crate::cel::{self, Program, Type};
use crate::object::text;
use crate::status::Faults;

mod enforce;
mod field_path;

#[cfg(test)]
mod tests;

const NAME: &str = "x-kubernetes-validations";
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// All rules of one schema; none at all if it has none.
#[derive(Debug, Default)]
pub(super) struct Validations {
    root: Option<Node>,
    /// Why not all of them could be read, which no definition that was accepted has.
    broken: Option<String>,
}

/// The rules at one place of the schema and below it.
#[derive(Debug)]
struct Node {
    rules: Vec<Rule>,
    /// What expressions see here.
    of: Type,
    /// As the schema calls it.
    type_name: String,
    members: BTreeMap<String, Node>,
    others: Option<Box<Node>>,
    items: Option<Box<Node>>,
    /// By which an element is found again in the list before, if it can be.
    keys: Option<Vec<String>>,
    all_of: Vec<Node>,
}

#[derive(Debug)]
struct Rule {
    program: Program,
    /// The message, or else the rule.
    shown: String,
    message: String,
    message_expression: Option<Program>,
    reason: String,
    field_path: String,
    optional_old_self: bool,
}

/// Whether there is a rule anywhere in this schema.
pub(super) fn has_rules(schema: &Value) -> bool {
    let own = schema.get(NAME).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
    let one = |name: &str| schema.get(name).is_some_and(has_rules);
    let each = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten().any(has_rules);
    own || one("items")
        || one("additionalProperties")
        || one("not")
        || ["allOf", "anyOf", "oneOf"].into_iter().any(each)
        || schema.get("properties").and_then(Value::as_object).is_some_and(|all| all.values().any(has_rules))
}

/// Checks the rules of a schema that stands at `path` of a definition.
pub(super) fn validate(path: &str, schema: &Value, faults: &mut Faults) {
    if has_rules(schema) {
        let at = At { path, rules: schema, schema, uncorrelatable: None };
        Reader { room: MAX_COMPILED, faults }.node(at, Type::of(schema, true));
    }
}

impl Validations {
    pub fn of(schema: &Value) -> Self {
        if !has_rules(schema) {
            return Self::default();
        }
        let mut faults = Faults::default();
        let at = At { path: "", rules: schema, schema, uncorrelatable: None };
        let root = Reader { room: MAX_COMPILED, faults: &mut faults }.node(at, Type::of(schema, true));
        Self { root, broken: faults.sentences().next() }
    }

    pub fn is_empty(&self) -> bool {
        self.root.is_none() && self.broken.is_none()
    }
}

/// Where rules stand, and what they are about. Inside of `allOf` these are two places.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a str,
    rules: &'a Value,
    schema: &'a Value,
    /// The list around this whose elements cannot be found again in the list before.
    uncorrelatable: Option<&'a str>,
}

struct Reader<'a> {
    /// What compiled patterns may still take.
    room: usize,
    faults: &'a mut Faults,
}

impl Reader<'_> {
    fn node(&mut self, at: At<'_>, of: Option<Type>) -> Option<Node> {
        let At { path, rules, schema, uncorrelatable } = at;
        if !has_rules(rules) {
            return None;
        }
        for junctor in ["not", "anyOf", "oneOf"] {
            let parts = rules.get(junctor);
            if parts.is_some_and(|parts| has_rules(parts) || parts.as_array().into_iter().flatten().any(has_rules)) {
                self.faults.forbidden(format!("{path}.{junctor}.{NAME}"), "must be empty to be structural");
            }
        }
        let own = self.rules(at, of.as_ref());
        // What expressions cannot see has no rules below it either.
        let of = of?;
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        let list_keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
        let keys = (text("x-kubernetes-list-type") == "map")
            .then(|| list_keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>());
        let below = |name: &str| Some((rules.get(name)?, schema.get(name)?));
        let items = below("items").and_then(|(rules, schema)| {
            let Type::List(list) = &of else { return None };
            let uncorrelatable = uncorrelatable.or_else(|| keys.is_none().then_some(path));
            let path = format!("{path}.items");
            self.node(At { path: &path, rules, schema, uncorrelatable }, Some(list.element.clone()))
        });
        let others = below("additionalProperties").and_then(|(rules, schema)| {
            let Type::Map(inner) = &of else { return None };
            let path = format!("{path}.additionalProperties");
            self.node(At { path: &path, rules, schema, uncorrelatable }, Some((**inner).clone()))
        });
        let mut members = BTreeMap::new();
        for (name, rules) in rules.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let Some(schema) = schema.get("properties").and_then(|all| all.get(name)) else { continue };
            let field = match cel::escape(name) {
                Some(escaped) => of.field(&escaped).map(|(_, of)| of.clone()),
                None => Type::of(schema, cel::is_resource(schema)),
            };
            let path = format!("{path}.properties[{name}]");
            let node = self.node(At { path: &path, rules, schema, uncorrelatable }, field);
            members.extend(node.map(|node| (name.clone(), node)));
        }
        let mut all_of = Vec::new();
        for (index, rules) in rules.get("allOf").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let path = format!("{path}.allOf[{index}]");
            all_of.extend(self.node(At { path: &path, rules, ..at }, Some(of.clone())));
        }
        Some(Node {
            rules: own,
            type_name: text("type").to_owned(),
            members,
            others: others.map(Box::new),
            items: items.map(Box::new),
            keys,
            all_of,
            of,
        })
    }

    fn rules(&mut self, at: At<'_>, of: Option<&Type>) -> Vec<Rule> {
        let rules = at.rules.get(NAME).and_then(Value::as_array);
        let mut read = Vec::new();
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            if self.faults.is_full() {
                break;
            }
            let path = format!("{}.{NAME}[{index}]", at.path);
            let Some(of) = of else {
                let why = "rules cannot be about a value whose type the schema does not say";
                self.faults.invalid(format!("{path}.rule"), format!("{:?}", text(rule, "/rule")), why);
                continue;
            };
            let before = self.faults.count();
            let field_path = self.words(&path, rule, at.schema);
            let compiled =
                if before == self.faults.count() { self.compile(&path, rule, of, at.uncorrelatable) } else { None };
            read.extend(compiled.map(|rule| Rule { field_path, ..rule }));
        }
        read
    }

    /// Everything but the expressions; returns the path that the rule's faults are to name.
    fn words(&mut self, path: &str, rule: &Value, schema: &Value) -> String {
        let (expression, message) = (text(rule, "/rule"), text(rule, "/message"));
        let quoted = |name: &str| format!("{:?}", text(rule, &format!("/{name}")));
        if expression.trim().is_empty() {
            self.faults.required(format!("{path}.rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            let why = "message must be non-empty if specified";
            self.faults.invalid(format!("{path}.message"), quoted("message"), why);
        } else if message.trim().contains('\n') {
            self.faults.invalid(format!("{path}.message"), quoted("message"), "message must not contain line breaks");
        } else if expression.trim().contains('\n') && message.is_empty() {
            let why = "message must be specified if rule contains line breaks";
            self.faults.required(format!("{path}.message"), why);
        }
        let message_expression = text(rule, "/messageExpression");
        if !message_expression.is_empty() && message_expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.faults.required(format!("{path}.messageExpression"), why);
        }
        crate::rules::one_of(&format!("{path}.reason"), "/reason", rule, &REASONS, self.faults);
        let asked = text(rule, "/fieldPath");
        if asked.is_empty() {
            return String::new();
        }
        field_path::normalized(asked, schema).unwrap_or_else(|why| {
            let why = format!("fieldPath must be a valid path: {why}");
            self.faults.invalid(format!("{path}.fieldPath"), quoted("fieldPath"), why);
            String::new()
        })
    }

    fn compile(&mut self, path: &str, rule: &Value, of: &Type, uncorrelatable: Option<&str>) -> Option<Rule> {
        let optional = rule.get("optionalOldSelf").and_then(Value::as_bool);
        let old_self = if optional == Some(true) { Type::optional(of.clone()) } else { of.clone() };
        let mut compiled = |name: &str, wanted: fn(&Type) -> bool, otherwise: &str| {
            let expression = text(rule, &format!("/{name}"));
            let outcome = match Program::compile(expression, of, &old_self) {
                Err(why) => Err(format!("compilation failed: {why}")),
                Ok(program) if !wanted(program.result()) => Err(otherwise.to_owned()),
                Ok(program) => match self.room.checked_sub(program.weight()) {
                    Some(left) => {
                        self.room = left;
                        Ok(program)
                    }
                    None => Err(format!("the patterns of all rules may take {MAX_COMPILED} bytes compiled")),
                },
            };
            outcome.map_err(|why| self.faults.invalid(format!("{path}.{name}"), format!("{expression:?}"), why)).ok()
        };
        let is_bool = |of: &Type| matches!(of, Type::Bool | Type::Dyn);
        let is_text = |of: &Type| matches!(of, Type::Text | Type::Dyn);
        let program = compiled("rule", is_bool, "cel expression must evaluate to a bool");
        let message_expression = (!text(rule, "/messageExpression").is_empty())
            .then(|| compiled("messageExpression", is_text, "messageExpression must evaluate to a string"));
        let program = program?;
        let expression = text(rule, "/rule").trim();
        if let (true, Some(list)) = (program.uses_old_self(), uncorrelatable) {
            let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
            self.faults.invalid(format!("{path}.rule"), format!("{expression:?}"), why);
        }
        if let (false, Some(optional)) = (program.uses_old_self(), optional) {
            let why = "may not be set if oldSelf is not used in rule";
            self.faults.invalid(format!("{path}.optionalOldSelf"), optional, why);
        }
        let message = text(rule, "/message").trim();
        Some(Rule {
            program,
            shown: if message.is_empty() { expression } else { message }.to_owned(),
            message: if message.is_empty() { format!("failed rule: {expression}") } else { message.to_owned() },
            message_expression: message_expression.flatten(),
            reason: text(rule, "/reason").to_owned(),
            field_path: String::new(),
            optional_old_self: optional == Some(true),
        })
    }
}
