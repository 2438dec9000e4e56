//! Where volumes can be made and used: node affinity, allowed topologies and CSI topology segments.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thiserror::Error;

use crate::class::TopologySelectorTerm;
use crate::node::Node;
use crate::selector::{self, NodeSelector, Operator};
use crate::volume::Volume;

/// A place as CSI names it: topology key to value.
pub type Segments = BTreeMap<String, String>;

/// Why a node has no place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The driver reported no key.
    #[error("driver has no topology keys on node {node:?}; is it registered there with NodeGetInfo topology?")]
    FindKeys {
        /// The node.
        node: String,
    },
    /// The node has no label for a key.
    #[error("node {node:?} has no label {key:?}, which the driver names as a topology key")]
    FindLabel {
        /// The node.
        node: String,
        /// The topology key.
        key: String,
    },
}

/// Whether the volume can be used on the node: without required affinity, everywhere.
pub fn reaches(volume: &Volume, node: &Node) -> Result<bool, selector::Error> {
    match volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref()) {
        None => Ok(true),
        Some(required) => required.matches(&node.meta.name, &node.meta.labels),
    }
}

/// Whether a class allows volumes where these labels are: no term at all allows every place.
pub fn allows(terms: &[TopologySelectorTerm], labels: &BTreeMap<String, String>) -> bool {
    let holds = |term: &TopologySelectorTerm| {
        !term.match_label_expressions.is_empty()
            && term
                .match_label_expressions
                .iter()
                .all(|expression| labels.get(&expression.key).is_some_and(|value| expression.values.contains(value)))
    };
    terms.is_empty() || terms.iter().any(holds)
}

/// All places that the terms allow, sorted, each once: the product of the values inside a term, over all terms.
pub fn flatten(terms: &[TopologySelectorTerm]) -> Vec<Segments> {
    let mut places = Vec::new();
    for term in terms.iter().filter(|term| !term.match_label_expressions.is_empty()) {
        let expressions = term.match_label_expressions.iter();
        places.extend(product(expressions.map(|expression| (expression.key.as_str(), expression.values.as_slice()))));
    }
    places.sort();
    places.dedup();
    places
}

/// Where a node is for a driver with these topology keys.
pub fn of_node(node: &Node, keys: &[String]) -> Result<Segments, Error> {
    if keys.is_empty() {
        return Err(Error::FindKeys { node: node.meta.name.clone() });
    }
    let segment = |key: &String| match node.meta.labels.get(key) {
        Some(value) => Ok((key.clone(), value.clone())),
        None => Err(Error::FindLabel { node: node.meta.name.clone(), key: key.clone() }),
    };
    keys.iter().map(segment).collect()
}

/// Whether every segment of the inner place is also one of the outer.
pub fn is_within(inner: &Segments, outer: &Segments) -> bool {
    inner.iter().all(|(key, value)| outer.get(key) == Some(value))
}

/// The `nodeAffinity` field of a volume that is accessible from these places; none if there is no place to name.
pub fn to_node_affinity(places: &[Segments]) -> Option<Value> {
    let terms: Vec<Value> = places
        .iter()
        .filter(|place| !place.is_empty())
        .map(|place| {
            let expressions: Vec<Value> = place
                .iter()
                .map(|(key, value)| json!({"key": key, "operator": Operator::In.as_str(), "values": [value]}))
                .collect();
            json!({ "matchExpressions": expressions })
        })
        .collect();
    (!terms.is_empty()).then(|| json!({"required": {"nodeSelectorTerms": terms}}))
}

/// The places a node selector names, as far as it names them by `In`; terms with other conditions are left out.
pub fn from_node_selector(selector: &NodeSelector) -> Vec<Segments> {
    let mut places = Vec::new();
    for term in &selector.node_selector_terms {
        let expressions = &term.match_expressions;
        let plain = term.match_fields.is_empty() && expressions.iter().all(|e| e.operator == Operator::In);
        if plain && !expressions.is_empty() {
            places.extend(product(expressions.iter().map(|e| (e.key.as_str(), e.values.as_slice()))));
        }
    }
    places.sort();
    places.dedup();
    places
}

fn product<'a>(choices: impl Iterator<Item = (&'a str, &'a [String])>) -> Vec<Segments> {
    choices.fold(vec![Segments::new()], |places, (key, values)| {
        let extend = |place: &Segments| {
            let place = place.clone();
            values.iter().map(move |value| {
                let mut place = place.clone();
                place.insert(key.to_owned(), value.clone());
                place
            })
        };
        places.iter().flat_map(extend).collect()
    })
}

#[cfg(test)]
mod tests;
