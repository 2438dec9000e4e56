//! Label selectors of claims and node selectors of volumes and pods.

use std::collections::BTreeMap;

use thiserror::Error;

text_enum! {
    /// How a requirement compares.
    pub enum Operator {
        /// The value is one of the list.
        #[default]
        In = "In",
        /// The key is absent or its value is none of the list.
        NotIn = "NotIn",
        /// The key is there.
        Exists = "Exists",
        /// The key is not there.
        DoesNotExist = "DoesNotExist",
        /// The value is an integer greater than the one given (node selectors only).
        Gt = "Gt",
        /// The value is an integer less than the one given (node selectors only).
        Lt = "Lt",
    }
}

projection! {
    /// One condition on one key.
    pub struct Requirement {
        /// The label or field.
        pub key: String,
        /// How it compares.
        pub operator: Operator,
        /// What it is compared with.
        pub values: Vec<String>,
    }

    /// A selector over labels; all of its conditions must hold, and none holds for everything.
    pub struct LabelSelector {
        /// Labels that must have exactly these values.
        pub match_labels: BTreeMap<String, String>,
        /// Further conditions.
        pub match_expressions: Vec<Requirement>,
    }

    /// A selector over nodes: one of its terms must hold, and no term holds for nothing.
    pub struct NodeSelector {
        /// The alternatives.
        pub node_selector_terms: Vec<NodeSelectorTerm>,
    }

    /// One alternative: all of its conditions must hold; an empty one holds for nothing.
    pub struct NodeSelectorTerm {
        /// Conditions on the node's labels.
        pub match_expressions: Vec<Requirement>,
        /// Conditions on the node's fields; only `metadata.name` exists.
        pub match_fields: Vec<Requirement>,
    }
}

/// Why a selector means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The operator is not known or not allowed here.
    #[error("selector key {key:?}: operator {operator} is not allowed here")]
    UseOperator {
        /// The requirement's key.
        key: String,
        /// The operator.
        operator: Operator,
    },
    /// The number of values does not suit the operator.
    #[error("selector key {key:?}: operator {operator} needs {needs}, values are {values:?}")]
    CountValues {
        /// The requirement's key.
        key: String,
        /// The operator.
        operator: Operator,
        /// What the operator needs.
        needs: &'static str,
        /// What was given.
        values: Vec<String>,
    },
    /// A field other than `metadata.name`.
    #[error("node selector field {key:?} is not known, only metadata.name is")]
    KnowField {
        /// The field.
        key: String,
    },
}

impl Requirement {
    /// A requirement that the key has one of the values.
    pub fn one_of(key: impl Into<String>, values: impl IntoIterator<Item = String>) -> Self {
        Self { key: key.into(), operator: Operator::In, values: values.into_iter().collect() }
    }

    fn needs(&self, needs: &'static str) -> Error {
        Error::CountValues { key: self.key.clone(), operator: self.operator, needs, values: self.values.clone() }
    }

    fn holds(&self, value: Option<&str>) -> Result<bool, Error> {
        let listed = || value.is_some_and(|value| self.values.iter().any(|v| v == value));
        match self.operator {
            Operator::In | Operator::NotIn if self.values.is_empty() => Err(self.needs("at least one value")),
            Operator::In => Ok(listed()),
            Operator::NotIn => Ok(!listed()),
            Operator::Exists | Operator::DoesNotExist if !self.values.is_empty() => Err(self.needs("no value")),
            Operator::Exists => Ok(value.is_some()),
            Operator::DoesNotExist => Ok(value.is_none()),
            Operator::Gt | Operator::Lt => {
                let bound: i64 = match self.values.as_slice() {
                    [bound] => bound.parse().map_err(|_| self.needs("one integer"))?,
                    _ => return Err(self.needs("one integer")),
                };
                // A label that is no integer is simply no match, as upstream has it.
                let Some(value) = value.and_then(|value| value.parse::<i64>().ok()) else { return Ok(false) };
                Ok(if self.operator == Operator::Gt { value > bound } else { value < bound })
            }
            Operator::Unknown => Err(Error::UseOperator { key: self.key.clone(), operator: self.operator }),
        }
    }
}

impl LabelSelector {
    /// Whether the labels satisfy every condition; a malformed condition is an error whatever the labels are.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> Result<bool, Error> {
        let mut all = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        for requirement in &self.match_expressions {
            if matches!(requirement.operator, Operator::Gt | Operator::Lt) {
                return Err(Error::UseOperator { key: requirement.key.clone(), operator: requirement.operator });
            }
            all &= requirement.holds(labels.get(&requirement.key).map(String::as_str))?;
        }
        Ok(all)
    }

    /// Whether it has no condition.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

impl NodeSelector {
    /// Whether one term holds for the node. A malformed term is an error only if no other term holds.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> Result<bool, Error> {
        let mut malformed = None;
        for term in &self.node_selector_terms {
            match term.matches(name, labels) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => malformed = malformed.or(Some(error)),
            }
        }
        malformed.map_or(Ok(false), Err)
    }
}

impl NodeSelectorTerm {
    /// Whether every condition holds for the node, and there is at least one.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> Result<bool, Error> {
        let mut all = !(self.match_expressions.is_empty() && self.match_fields.is_empty());
        for requirement in &self.match_expressions {
            all &= requirement.holds(labels.get(&requirement.key).map(String::as_str))?;
        }
        for requirement in &self.match_fields {
            if requirement.key != "metadata.name" {
                return Err(Error::KnowField { key: requirement.key.clone() });
            }
            if !matches!(requirement.operator, Operator::In | Operator::NotIn) {
                return Err(Error::UseOperator { key: requirement.key.clone(), operator: requirement.operator });
            }
            if requirement.values.len() != 1 {
                return Err(requirement.needs("one value"));
            }
            all &= requirement.holds(Some(name))?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
