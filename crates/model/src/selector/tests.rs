use serde_json::{Value, json};

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn requirement(operator: &str, values: Value) -> Value {
    json!({"key": "k", "operator": operator, "values": values})
}

fn label_selector(operator: &str, values: Value) -> LabelSelector {
    serde_json::from_value(json!({"matchExpressions": [requirement(operator, values)]})).unwrap()
}

fn node_selector(terms: Value) -> NodeSelector {
    serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap()
}

#[test]
fn each_operator_compares_a_present_other_and_absent_label() {
    let (same, other, absent) = (labels(&[("k", "a")]), labels(&[("k", "z")]), labels(&[]));
    for (operator, values, on_same, on_other, on_absent) in [
        ("In", json!(["a", "b"]), true, false, false),
        ("NotIn", json!(["a", "b"]), false, true, true),
        ("Exists", json!([]), true, true, false),
        ("Exists", Value::Null, true, true, false),
        ("DoesNotExist", json!([]), false, false, true),
    ] {
        let selector = label_selector(operator, values);
        assert_eq!(selector.matches(&same), Ok(on_same), "{operator}");
        assert_eq!(selector.matches(&other), Ok(on_other), "{operator}");
        assert_eq!(selector.matches(&absent), Ok(on_absent), "{operator}");
    }
}

#[test]
fn an_empty_label_selector_matches_everything() {
    assert_eq!(LabelSelector::default().matches(&labels(&[])), Ok(true));
    assert!(LabelSelector::default().is_empty());
}

#[test]
fn labels_and_expressions_must_all_hold() {
    let selector: LabelSelector = serde_json::from_value(
        json!({"matchLabels": {"a": "1"}, "matchExpressions": [requirement("Exists", json!([]))]}),
    )
    .unwrap();
    assert_eq!(selector.matches(&labels(&[("a", "1"), ("k", "")])), Ok(true));
    assert_eq!(selector.matches(&labels(&[("a", "1")])), Ok(false));
    assert_eq!(selector.matches(&labels(&[("k", "")])), Ok(false));
}

#[test]
fn a_malformed_label_selector_is_an_error_for_all_labels() {
    for (operator, values) in [
        ("In", json!([])),
        ("NotIn", json!([])),
        ("Exists", json!(["a"])),
        ("DoesNotExist", json!(["a"])),
        ("Gt", json!(["1"])),
        ("Like", json!(["a"])),
    ] {
        let selector = label_selector(operator, values);
        assert!(selector.matches(&labels(&[])).is_err(), "{operator}");
        assert!(selector.matches(&labels(&[("k", "a")])).is_err(), "{operator}");
    }
}

#[test]
fn greater_and_less_compare_integers() {
    let greater = node_selector(json!([{"matchExpressions": [requirement("Gt", json!(["5"]))]}]));
    let less = node_selector(json!([{"matchExpressions": [requirement("Lt", json!(["5"]))]}]));
    for (label, is_greater, is_less) in
        [("4", false, true), ("5", false, false), ("6", true, false), ("10", true, false), ("x", false, false)]
    {
        assert_eq!(greater.matches("n", &labels(&[("k", label)])), Ok(is_greater), "{label}");
        assert_eq!(less.matches("n", &labels(&[("k", label)])), Ok(is_less), "{label}");
    }
    assert_eq!(greater.matches("n", &labels(&[])), Ok(false));
    for values in [json!([]), json!(["1", "2"]), json!(["five"])] {
        let malformed = node_selector(json!([{"matchExpressions": [requirement("Gt", values)]}]));
        assert!(malformed.matches("n", &labels(&[("k", "6")])).is_err());
    }
}

#[test]
fn a_node_selector_without_terms_and_an_empty_term_match_nothing() {
    assert_eq!(node_selector(json!([])).matches("n", &labels(&[])), Ok(false));
    assert_eq!(node_selector(json!([{}])).matches("n", &labels(&[])), Ok(false));
}

#[test]
fn a_node_is_matched_by_its_name_field() {
    let by_name = |operator: &str, values: Value| {
        node_selector(json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]}]))
    };
    assert_eq!(by_name("In", json!(["node1"])).matches("node1", &labels(&[])), Ok(true));
    assert_eq!(by_name("In", json!(["node1"])).matches("node2", &labels(&[])), Ok(false));
    assert_eq!(by_name("NotIn", json!(["node1"])).matches("node2", &labels(&[])), Ok(true));
    assert!(by_name("In", json!(["node1", "node2"])).matches("node1", &labels(&[])).is_err());
    assert!(by_name("Exists", json!([])).matches("node1", &labels(&[])).is_err());
    let other = node_selector(json!([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}]));
    assert_eq!(other.matches("node1", &labels(&[])), Err(Error::KnowField { key: "spec.x".to_owned() }));
}

#[test]
fn a_malformed_term_hurts_only_if_no_other_term_matches() {
    let malformed = json!({"matchExpressions": [requirement("In", json!([]))]});
    let good = json!({"matchExpressions": [requirement("In", json!(["a"]))]});
    let selector = node_selector(json!([malformed, good]));
    assert_eq!(selector.matches("n", &labels(&[("k", "a")])), Ok(true));
    assert!(selector.matches("n", &labels(&[("k", "z")])).is_err());
}
