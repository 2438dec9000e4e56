//! Secrets as the parameters of classes name them: a name and a namespace, each a template with tokens.

use std::collections::BTreeMap;

use crate::object::Key;

/// Class parameters that start so are for sidecars, not for the driver.
pub const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";

/// Why the parameters name no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Only one of the two is there.
    #[error("parameter {present:?} needs {missing:?} beside it, and neither may be empty")]
    FindHalf {
        /// The one that is there.
        present: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// A token that nobody knows.
    #[error("parameter {key:?} has the value {value:?} with the unknown token {token:?}; use {allowed}")]
    Expand {
        /// The parameter.
        key: &'static str,
        /// What it says.
        value: String,
        /// What is unknown of it.
        token: String,
        /// What would be known.
        allowed: &'static str,
    },
    /// With its tokens replaced it is no name.
    #[error("parameter {key:?} gives {value:?}, which is no {what}")]
    CheckName {
        /// The parameter.
        key: &'static str,
        /// What it gives.
        value: String,
        /// What it should be.
        what: &'static str,
    },
}

/// The tokens of one template: what each stands for, and which there are, for people.
pub struct Tokens<'a> {
    /// The value of a token.
    pub value_of: &'a dyn Fn(&str) -> Option<String>,
    /// As in `${pv.name} or ${pvc.namespace}`.
    pub allowed: &'static str,
}

/// The secret that a pair of parameters, name and namespace, names; `None` where neither is there.
pub fn secret(
    parameters: &BTreeMap<String, String>,
    (name, namespace): (&'static str, &'static str),
    name_tokens: &Tokens<'_>,
    namespace_tokens: &Tokens<'_>,
) -> Result<Option<Key>, Error> {
    if !parameters.contains_key(name) && !parameters.contains_key(namespace) {
        return Ok(None);
    }
    let value = |key: &str| parameters.get(key).filter(|value| !value.is_empty());
    match (value(name), value(namespace)) {
        (Some(name_template), Some(namespace_template)) => {
            let found = expand(name, name_template, name_tokens)?;
            let valid = found.len() <= 253 && found.split('.').all(is_label);
            if !valid {
                return Err(Error::CheckName { key: name, value: found, what: "name of a secret" });
            }
            let place = expand(namespace, namespace_template, namespace_tokens)?;
            if !is_label(&place) {
                return Err(Error::CheckName { key: namespace, value: place, what: "name of a namespace" });
            }
            Ok(Some(Key::namespaced(place, found)))
        }
        (Some(_), None) => Err(Error::FindHalf { present: name, missing: namespace }),
        (None, _) => Err(Error::FindHalf { present: namespace, missing: name }),
    }
}

/// Replaces `${token}`; a dollar sign that starts no known token can be part of no name, so it is an error.
fn expand(key: &'static str, template: &str, tokens: &Tokens<'_>) -> Result<String, Error> {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let token = after.strip_prefix('{').and_then(|body| body.split_once('}'));
        let (token, next) = token.unwrap_or((after, ""));
        let unknown =
            || Error::Expand { key, value: template.into(), token: format!("${{{token}}}"), allowed: tokens.allowed };
        expanded.push_str(&(tokens.value_of)(token).ok_or_else(unknown)?);
        rest = next;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A DNS-1123 label.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(parameters: &[(&str, &str)]) -> Result<Option<Key>, Error> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let value_of = |token: &str| (token == "content.name").then(|| "c1".to_owned());
        let tokens = Tokens { value_of: &value_of, allowed: "${content.name}" };
        secret(&parameters, ("name", "namespace"), &tokens, &tokens)
    }

    #[test]
    fn both_halves_with_their_tokens_replaced_name_a_secret() {
        assert_eq!(named(&[("other", "x")]), Ok(None));
        let found = named(&[("name", "a.${content.name}.b"), ("namespace", "${content.name}")]);
        assert_eq!(found, Ok(Some(Key::namespaced("c1", "a.c1.b"))));
    }

    #[test]
    fn half_a_name_an_unknown_token_and_an_impossible_name_are_errors() {
        for half in [&[("name", "a")][..], &[("namespace", "a")], &[("name", ""), ("namespace", "a")]] {
            assert!(matches!(named(half), Err(Error::FindHalf { .. })), "{half:?}");
        }
        for name in ["${content.uid}", "$content", "a$", "${content.name"] {
            assert!(matches!(named(&[("name", name), ("namespace", "a")]), Err(Error::Expand { .. })), "{name}");
        }
        assert!(matches!(named(&[("name", "A"), ("namespace", "a")]), Err(Error::CheckName { .. })));
        assert!(matches!(named(&[("name", "a"), ("namespace", "a.b")]), Err(Error::CheckName { .. })));
    }
}
