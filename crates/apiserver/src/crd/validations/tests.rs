use serde_json::{Value, json};

use super::{Validations, validate};
use crate::kind::Kind;
use crate::status::{Faults, Status};

fn schema(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec}})
}

fn with(mut schema: Value, rule: Value) -> Value {
    schema["x-kubernetes-validations"] = json!([rule]);
    schema
}

/// What is wrong with the definition, each as field and message.
fn refused(schema: &Value) -> Vec<(String, String)> {
    let mut faults = Faults::default();
    validate("schema", schema, &mut faults);
    told(faults)
}

fn told(faults: Faults) -> Vec<(String, String)> {
    let causes = faults.into_result(Kind::named("Pod"), "p").map_err(|status: Status| status.details.causes);
    causes.err().unwrap_or_default().into_iter().map(|cause| (cause.field, cause.message)).collect()
}

/// What is wrong with an object, and what was before.
fn enforced(schema: &Value, new: Value, old: Option<Value>) -> (Vec<(String, String)>, Vec<String>) {
    assert_eq!(refused(schema), [], "{schema}");
    let mut faults = Faults::default();
    let warnings = Validations::of(schema).enforce(&new, old.as_ref(), &mut faults);
    (told(faults), warnings)
}

fn broken(schema: &Value, new: Value, old: Option<Value>) -> Vec<(String, String)> {
    enforced(schema, new, old).0
}

fn one(field: &str, message: &str) -> Vec<(String, String)> {
    vec![(field.to_owned(), message.to_owned())]
}

#[test]
fn a_broken_rule_names_its_field_by_reason_and_says_its_message() {
    let number = |rule: Value| schema(with(json!({"type": "integer"}), rule));
    for (rule, message) in [
        (json!({"rule": "self > 1"}), "Invalid value: \"integer\": failed rule: self > 1"),
        (json!({"rule": "self > 1", "message": " more "}), "Invalid value: \"integer\": more"),
        (json!({"rule": "self > 1", "reason": "FieldValueForbidden", "message": "m"}), "Forbidden: m"),
        (json!({"rule": "self > 1", "reason": "FieldValueRequired", "message": "m"}), "Required value: m"),
        (json!({"rule": "self > 1", "reason": "FieldValueDuplicate"}), "Duplicate value: \"integer\""),
        (json!({"rule": "self > 1", "reason": "FieldValueInvalid", "message": "m"}), "Invalid value: \"integer\": m"),
        (
            json!({"rule": "self > 1", "messageExpression": "'%d is too small'.format([self])"}),
            "Invalid value: \"integer\": 1 is too small",
        ),
        // What cannot be said is said otherwise.
        (json!({"rule": "self > 1", "message": "m", "messageExpression": "' '"}), "Invalid value: \"integer\": m"),
        (
            json!({"rule": "self > 1", "messageExpression": "'a\\nb'"}),
            "Invalid value: \"integer\": failed rule: self > 1",
        ),
        (
            json!({"rule": "self > 1", "message": "m", "messageExpression": "string(1 / (self - 1))"}),
            "Invalid value: \"integer\": m",
        ),
        (
            json!({"rule": "1 / (self - 1) > 0"}),
            "Invalid value: \"integer\": division by zero evaluating rule: 1 / (self - 1) > 0",
        ),
    ] {
        let schema = number(rule.clone());
        assert_eq!(broken(&schema, json!({"spec": 1}), None), one("spec", message), "{rule}");
    }
    assert_eq!(broken(&number(json!({"rule": "self > 1"})), json!({"spec": 2}), None), []);
    let any = schema(with(json!({"x-kubernetes-int-or-string": true}), json!({"rule": "self > 1"})));
    assert_eq!(
        broken(&any, json!({"spec": "a"}), None),
        one(
            "spec",
            "Invalid value: \"\": 'no such overload: _>_(string, int)': call arguments did not match a supported operator, \
             function or macro signature for rule: self > 1"
        )
    );
}

#[test]
fn rules_stand_anywhere_and_their_fields_are_named_as_upstream() {
    let text = || with(json!({"type": "string"}), json!({"rule": "self != 'bad'", "message": "m"}));
    let root = with(schema(json!({"type": "object"})), json!({"rule": "self.metadata.name != 'bad'", "message": "m"}));
    let bad = || json!({"metadata": {"name": "bad"}, "spec": {}});
    assert_eq!(broken(&root, bad(), None), one("<nil>", "Invalid value: \"object\": m"));
    for (spec, value, field) in [
        (text(), json!("bad"), "spec"),
        (json!({"type": "object", "properties": {"a": text()}}), json!({"a": "bad"}), "spec.a"),
        (json!({"type": "object", "additionalProperties": text()}), json!({"k.x": "bad"}), "spec[k.x]"),
        (json!({"type": "array", "items": text()}), json!(["x", "bad"]), "spec[1]"),
        (json!({"type": "object", "properties": {"1st": text()}}), json!({"1st": "bad"}), "spec.1st"),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"properties": {
                "a": {"x-kubernetes-validations": [{"rule": "self != 'bad'", "message": "m"}]}}}]}),
            json!({"a": "bad"}),
            "spec.a",
        ),
    ] {
        let schema = schema(spec);
        assert_eq!(
            broken(&schema, json!({"spec": value}), None),
            one(field, "Invalid value: \"string\": m"),
            "{schema}"
        );
    }
    let path = |path: &str| {
        let rule = json!({"rule": "false", "message": "m", "fieldPath": path});
        let inner = json!({"type": "object", "properties": {"a.b": {"type": "string"}}});
        let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
        with(schema(json!({"type": "object", "properties": {"a": inner, "m": map}})), rule)
    };
    for (asked, field) in
        [(".spec", "spec"), (".spec.a", "spec.a"), (".spec.a['a.b']", "spec.a.a.b"), (".spec.m['k']", "spec.m[k]")]
    {
        assert_eq!(broken(&path(asked), json!({"spec": {}}), None), one(field, "Invalid value: \"object\": m"));
    }
    let nullable = schema(with(json!({"type": "string", "nullable": true}), json!({"rule": "false"})));
    assert_eq!(broken(&nullable, json!({"spec": null}), None), []);
}

#[test]
fn rules_about_changes_are_for_what_was_there_before() {
    let fixed = |schema: Value| with(schema, json!({"rule": "self == oldSelf", "message": "fixed"}));
    let text = || fixed(json!({"type": "string"}));
    let element = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": text()}});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": element});
    let atomic = json!({"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text()}});
    for (spec, old, new, field) in [
        (text(), json!("a"), json!("b"), Some("spec")),
        (text(), json!("a"), json!("a"), None),
        (text(), json!(null), json!("b"), None),
        (
            json!({"type": "object", "additionalProperties": text()}),
            json!({"a": "1"}),
            json!({"a": "2"}),
            Some("spec[a]"),
        ),
        (json!({"type": "object", "additionalProperties": text()}), json!({"a": "1"}), json!({"b": "2"}), None),
        (keyed.clone(), json!([{"k": "a", "v": "1"}]), json!([{"k": "b"}, {"k": "a", "v": "2"}]), Some("spec[1].v")),
        (keyed.clone(), json!([{"k": "a", "v": "1"}]), json!([{"k": "b", "v": "2"}]), None),
        (atomic, json!({"a": "1"}), json!({"a": "2"}), Some("spec.a")),
        (
            fixed(json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            json!({"a": "1"}),
            json!({"a": "1", "b": 1}),
            Some("spec"),
        ),
    ] {
        let schema = schema(spec);
        let found = broken(&schema, json!({"spec": new}), Some(json!({"spec": old})));
        assert_eq!(found.first().map(|(field, _)| field.as_str()), field, "{schema}");
        assert_eq!(broken(&schema, json!({"spec": new}), None), []);
    }
    let optional = json!({"rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": true});
    let optional = schema(with(json!({"type": "string"}), optional));
    assert_eq!(broken(&optional, json!({"spec": "a"}), None), []);
    assert_eq!(broken(&optional, json!({"spec": "a"}), Some(json!({"spec": "b"}))).len(), 1);
    let on_create = json!({"rule": "oldSelf.hasValue()", "optionalOldSelf": true, "message": "never created"});
    let on_create = schema(with(json!({"type": "string"}), on_create));
    assert_eq!(broken(&on_create, json!({"spec": "a"}), None), one("spec", "Invalid value: \"string\": never created"));
}

#[test]
fn what_was_wrong_before_and_did_not_change_is_only_a_warning() {
    let number = schema(json!({"type": "object", "properties": {
        "a": with(json!({"type": "integer"}), json!({"rule": "self > 1", "message": "m"})), "b": {"type": "integer"}}}));
    let (faults, warnings) =
        enforced(&number, json!({"spec": {"a": 1, "b": 2}}), Some(json!({"spec": {"a": 1, "b": 1}})));
    assert_eq!(faults, []);
    assert_eq!(warnings, ["spec.a: Invalid value: \"integer\": m"]);
    let (faults, warnings) = enforced(&number, json!({"spec": {"a": 0}}), Some(json!({"spec": {"a": 1}})));
    assert_eq!((faults.len(), warnings.len()), (1, 0));
    let (faults, warnings) = enforced(&number, json!({"spec": {"a": 1}}), Some(json!({"spec": {}})));
    assert_eq!((faults.len(), warnings.len()), (1, 0));
}

#[test]
fn a_definition_with_a_rule_that_makes_no_sense_is_refused_with_its_place() {
    let at = |name: &str| format!("schema.properties[spec].x-kubernetes-validations[0].{name}");
    for (rule, field, why) in [
        (
            json!({"rule": "self.x > 1"}),
            "rule",
            "compilation failed: ERROR: <input>:1:5: type 'int' does not support field",
        ),
        (json!({"rule": "self > "}), "rule", "\"self > \": compilation failed: ERROR: <input>:1:8: Syntax error"),
        (json!({"rule": "self + 1"}), "rule", "cel expression must evaluate to a bool"),
        (json!({"rule": " "}), "rule", "rule is not specified"),
        (json!({"message": "m"}), "rule", "rule is not specified"),
        (json!({"rule": "true", "message": " "}), "message", "must be non-empty"),
        (json!({"rule": "true", "message": "a\nb"}), "message", "must not contain line breaks"),
        (json!({"rule": "true &&\ntrue"}), "message", "message must be specified if rule contains line breaks"),
        (json!({"rule": "true", "messageExpression": "1"}), "messageExpression", "must evaluate to a string"),
        (json!({"rule": "true", "messageExpression": "x"}), "messageExpression", "undeclared reference to 'x'"),
        (json!({"rule": "true", "reason": "Whim"}), "reason", "Unsupported value: \"Whim\""),
        (json!({"rule": "true", "fieldPath": ".none"}), "fieldPath", "does not refer to a valid field"),
        (json!({"rule": "true", "fieldPath": "none"}), "fieldPath", "expected [ or ."),
        (json!({"rule": "true", "optionalOldSelf": true}), "optionalOldSelf", "may not be set if oldSelf is not used"),
    ] {
        let found = refused(&schema(with(json!({"type": "integer"}), rule.clone())));
        assert_eq!(found.len(), 1, "{rule}: {found:?}");
        assert!(found[0].0 == at(field) && found[0].1.contains(why), "{rule}: {found:?}");
    }
    let list = with(json!({"type": "string"}), json!({"rule": "self == oldSelf"}));
    let found = refused(&schema(json!({"type": "array", "items": list})));
    assert!(found[0].1.contains("uncorrelatable portion of the schema within schema.properties[spec]"), "{found:?}");
    let rule = json!([{"rule": "true"}]);
    let found = refused(&schema(json!({"type": "object", "not": {"x-kubernetes-validations": rule}})));
    assert_eq!(found[0].0, "schema.properties[spec].not.x-kubernetes-validations");
    let unseen = json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": rule});
    assert!(refused(&schema(unseen))[0].1.contains("whose type the schema does not say"));
}

#[test]
fn objects_that_are_wrong_in_themselves_are_not_held_against_the_rules() {
    let schema = schema(with(json!({"type": "integer"}), json!({"rule": "self > 1"})));
    let mut faults = Faults::default();
    faults.wrong_type("spec", "string", "spec in body must be of type integer");
    Validations::of(&schema).enforce(&json!({"spec": "a"}), None, &mut faults);
    let (field, message) = told(faults).remove(1);
    assert!(field == "<nil>" && message.starts_with("Invalid value: null: some validation rules were not checked"));
}

#[test]
fn rules_that_cost_too_much_end_with_a_sentence() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let rule = |rule: &str| json!({"rule": rule, "message": "m"});
    let each = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))";
    let numbers = json!({"spec": (0..2000).collect::<Vec<_>>()});
    let found = broken(&schema(with(list.clone(), rule(each))), numbers.clone(), None);
    assert_eq!(
        found,
        one(
            "spec",
            "Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be \
             run due to call cost exceeds limit for rule: m"
        )
    );
    // Each rule is cheap enough, and all together are not.
    let mut many = list;
    many["x-kubernetes-validations"] = (0..400).map(|_| rule("self.all(a, a + 0 + 0 + 0 + 0 + 0 >= 0)")).collect();
    let found = broken(&schema(many), numbers.clone(), None);
    assert_eq!(found.len(), 1);
    assert!(found[0].1.contains("running out of cost budget, no further validation rules will be run"), "{found:?}");
    // A rule for each of very many elements.
    let items = with(json!({"type": "integer"}), rule("[1, 2, 3, 4, 5, 6, 7, 8].all(x, x > 0)"));
    let numbers = json!({"spec": vec![1; 300_000]});
    let found = broken(&schema(json!({"type": "array", "items": items})), numbers, None);
    assert!(found[0].1.contains("running out of cost budget"), "{found:?}");
}

#[test]
fn very_many_rules_are_read_in_reasonable_time() {
    // 3 MB of rules, the most that a definition may have.
    let rules: Value =
        (0..40_000).map(|_| json!({"rule": "self.all(x, x.matches('^a+$')) || size(self) > 3"})).collect();
    let mut many = json!({"type": "array", "items": {"type": "string"}});
    many["x-kubernetes-validations"] = rules;
    assert!(refused(&schema(many)).iter().all(|(_, why)| why.contains("bytes compiled")));
}
