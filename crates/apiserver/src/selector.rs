//! Label and field selectors.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::kind::Kind;
use crate::object::{Key, Object};
use crate::rules::metadata::{is_label_value, is_qualified_name};
use crate::status::Status;

/// Which objects of a kind a list, watch or deletion is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    label: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    place: Place,
    value: String,
    equal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Name,
    Namespace,
    Pointer(&'static str),
}

impl Selector {
    /// Parses the `labelSelector` and `fieldSelector` of a request for `kind`.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Status> {
        let parsed = |what: &str, text: &str, why: String| {
            Status::bad_request(format!("unable to parse the {what} selector {text:?}: {why}"))
        };
        let label_terms = split_outside_parentheses(labels);
        let labels = label_terms
            .iter()
            .map(|term| Requirement::parse(term).map_err(|why| parsed("label", labels, why)))
            .collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .filter(|term| !term.is_empty())
            .map(|term| Field::parse(kind, term).map_err(|why| parsed("field", fields, why)))
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether keys alone tell what is selected.
    pub(crate) fn is_of_keys(&self) -> bool {
        self.labels.is_empty() && !self.fields.iter().any(|f| matches!(f.place, Place::Pointer(_)))
    }

    /// Whether an object of this key may be selected.
    pub(crate) fn matches_key(&self, key: &Key) -> bool {
        self.fields.iter().all(|f| match f.place {
            Place::Name => (*key.name == f.value) == f.equal,
            Place::Namespace => (*key.namespace == f.value) == f.equal,
            Place::Pointer(_) => true,
        })
    }

    /// Whether this object is selected.
    pub fn matches(&self, key: &Key, object: &Object) -> bool {
        if !self.matches_key(key) {
            return false;
        }
        if self.is_of_keys() {
            return true;
        }
        let tree = object.tree();
        let field_matches = |f: &Field| match f.place {
            Place::Pointer(pointer) => (as_text(pointer, tree.pointer(pointer)) == f.value) == f.equal,
            Place::Name | Place::Namespace => true,
        };
        let labels = tree.pointer("/metadata/labels");
        self.fields.iter().all(field_matches)
            && self.labels.iter().all(|r| r.matches(labels.and_then(|l| l.get(&r.label)).and_then(Value::as_str)))
    }
}

/// Fields that are false where they are left out.
const FLAGS: [&str; 2] = ["/spec/unschedulable", "/spec/hostNetwork"];

fn as_text(pointer: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) if FLAGS.contains(&pointer) => "false".to_owned(),
        None | Some(Value::Null) => String::new(),
        Some(Value::String(s)) => s.clone(),
        Some(other) => other.to_string(),
    }
}

impl Requirement {
    fn parse(term: &str) -> Result<Self, String> {
        let requirement = Self::read(term.trim())?;
        if !is_qualified_name(&requirement.label) {
            return Err(format!("{:?} is not a label's name", requirement.label));
        }
        let values = match &requirement.test {
            Test::In(values) | Test::NotIn(values) => values,
            _ => return Ok(requirement),
        };
        match values.iter().find(|value| !is_label_value(value)) {
            Some(value) => Err(format!("{value:?} is not a label's value")),
            None => Ok(requirement),
        }
    }

    fn read(term: &str) -> Result<Self, String> {
        if let Some(label) = term.strip_prefix('!') {
            return Ok(Self { label: label.trim().to_owned(), test: Test::Absent });
        }
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some((label, value)) = term.split_once(operator) {
                let values = BTreeSet::from([value.trim().to_owned()]);
                let test = if equal { Test::In(values) } else { Test::NotIn(values) };
                return Ok(Self { label: label.trim().to_owned(), test });
            }
        }
        if let Some((label, value)) = term.split_once(['<', '>']) {
            let number = value.trim().parse().map_err(|_| format!("{value:?} is not a whole number"))?;
            let test = if term.contains('>') { Test::Greater(number) } else { Test::Less(number) };
            return Ok(Self { label: label.trim().to_owned(), test });
        }
        let Some((label, rest)) = term.split_once(char::is_whitespace) else {
            return Ok(Self { label: term.to_owned(), test: Test::Exists });
        };
        let (operator, set) = rest.split_once('(').ok_or_else(|| format!("{term:?} has no set of values"))?;
        let set = set.trim_end().strip_suffix(')').ok_or_else(|| format!("{term:?} does not end with ')'"))?;
        let values = set.split(',').map(|v| v.trim().to_owned()).collect();
        let test = match operator.trim() {
            "in" => Test::In(values),
            "notin" => Test::NotIn(values),
            other => return Err(format!("{other:?} is not an operator; use in or notin")),
        };
        Ok(Self { label: label.to_owned(), test })
    }

    fn matches(&self, value: Option<&str>) -> bool {
        match (&self.test, value) {
            (Test::In(set), Some(v)) => set.contains(v),
            (Test::Greater(than), Some(v)) => v.parse::<i64>().is_ok_and(|v| v > *than),
            (Test::Less(than), Some(v)) => v.parse::<i64>().is_ok_and(|v| v < *than),
            (Test::In(_) | Test::Exists | Test::Greater(_) | Test::Less(_), None) | (Test::Absent, Some(_)) => false,
            (Test::NotIn(set), Some(v)) => !set.contains(v),
            (Test::NotIn(_) | Test::Absent, None) | (Test::Exists, Some(_)) => true,
        }
    }
}

impl Field {
    fn parse(kind: &Kind, term: &str) -> Result<Self, String> {
        let (name, value, equal) = term
            .split_once("!=")
            .map(|(n, v)| (n, v, false))
            .or_else(|| term.split_once("==").or_else(|| term.split_once('=')).map(|(n, v)| (n, v, true)))
            .ok_or_else(|| format!("{term:?} has no =, == or !="))?;
        let place = match name.trim() {
            "metadata.name" => Place::Name,
            "metadata.namespace" => Place::Namespace,
            other => kind
                .fields
                .iter()
                .find(|(field, _)| *field == other)
                .map(|(_, pointer)| Place::Pointer(pointer))
                .ok_or_else(|| format!("field label not supported: {other}"))?,
        };
        Ok(Self { place, value: value.trim().to_owned(), equal })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|term| !term.trim().is_empty())
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str) -> bool {
        let pod = Kind::named("Pod");
        let tree = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"},
        });
        let object = Object::encode(tree, 1);
        Selector::parse(pod, labels, fields).unwrap().matches(&Key::new("n", "a"), &object)
    }

    #[test]
    fn labels_are_compared_by_equality_sets_and_existence() {
        for matching in ["app=web", "app==web", "app!=x", "app in (web, db),tier", "app notin (db)", "!x", "x!=1", ""] {
            assert!(selects(matching, ""), "{matching}");
        }
        for other in ["app>1", "app=db", "app!=web", "app in (a,b)", "!app", "x", "app=web,tier=back"] {
            assert!(!selects(other, ""), "{other}");
        }
    }

    #[test]
    fn labels_are_compared_as_numbers() {
        let node = Kind::named("Node");
        let object = Object::encode(json!({"metadata": {"name": "a", "labels": {"gpus": "4"}}}), 1);
        for (selector, expected) in [("gpus>3", true), ("gpus > 4", false), ("gpus<5", true), ("cpus<5", false)] {
            let matches = Selector::parse(node, selector, "").unwrap().matches(&Key::new("", "a"), &object);
            assert_eq!(matches, expected, "{selector}");
        }
    }

    #[test]
    fn fields_are_compared_by_equality() {
        for matching in [
            "spec.hostNetwork=false",
            "metadata.name=a",
            "spec.nodeName=node-1,status.phase!=Failed",
            "metadata.namespace=n",
        ] {
            assert!(selects("", matching), "{matching}");
        }
        for other in ["metadata.name!=a", "spec.nodeName=", "status.phase==Pending"] {
            assert!(!selects("", other), "{other}");
        }
    }

    #[test]
    fn an_unknown_field_and_a_broken_set_are_refused() {
        let pod = Kind::named("Pod");
        assert_eq!(Selector::parse(pod, "", "spec.volumes=x").unwrap_err().code, 400);
        for broken in ["app in web", "a b", "app=x y", "=web", "app>many", "(app)"] {
            assert_eq!(Selector::parse(pod, broken, "").unwrap_err().code, 400, "{broken}");
        }
    }
}
