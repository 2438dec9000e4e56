//! Which secrets a class names for which use, and the templates in their names.

use std::collections::BTreeMap;

use stowage_model::Annotations;
use stowage_model::claim::Claim;

use crate::intent::{SecretRef, SecretRefs};

/// Class parameters that start so are for the provisioner, not for the driver.
pub const PREFIX: &str = "csi.storage.k8s.io/";

/// Keys for the default secret of every use; the more specific ones win.
const DEFAULT: (&str, &str) = ("csi.storage.k8s.io/secret-name", "csi.storage.k8s.io/secret-namespace");

/// The parameter keys of one use: name and namespace, in the current and the deprecated form.
struct Use {
    current: (&'static str, &'static str),
    deprecated: Option<(&'static str, &'static str)>,
}

macro_rules! current {
    ($use:literal) => {
        (
            concat!("csi.storage.k8s.io/", $use, "-secret-name"),
            concat!("csi.storage.k8s.io/", $use, "-secret-namespace"),
        )
    };
}

const PROVISIONER: Use = Use {
    current: current!("provisioner"),
    deprecated: Some(("csiProvisionerSecretName", "csiProvisionerSecretNamespace")),
};
const CONTROLLER_PUBLISH: Use = Use {
    current: current!("controller-publish"),
    deprecated: Some(("csiControllerPublishSecretName", "csiControllerPublishSecretNamespace")),
};
const NODE_STAGE: Use = Use {
    current: current!("node-stage"),
    deprecated: Some(("csiNodeStageSecretName", "csiNodeStageSecretNamespace")),
};
const NODE_PUBLISH: Use = Use {
    current: current!("node-publish"),
    deprecated: Some(("csiNodePublishSecretName", "csiNodePublishSecretNamespace")),
};
const CONTROLLER_EXPAND: Use = Use { current: current!("controller-expand"), deprecated: None };
const NODE_EXPAND: Use = Use { current: current!("node-expand"), deprecated: None };
const CONTROLLER_MODIFY: Use = Use { current: current!("controller-modify"), deprecated: None };

const USES: [&Use; 7] = [
    &PROVISIONER,
    &CONTROLLER_PUBLISH,
    &NODE_STAGE,
    &NODE_PUBLISH,
    &CONTROLLER_EXPAND,
    &NODE_EXPAND,
    &CONTROLLER_MODIFY,
];

/// Why a class's secret parameters mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("parameters {current:?} and {deprecated:?} say the same thing; keep the first")]
    ChooseKey { current: &'static str, deprecated: &'static str },
    #[error("parameter {present:?} needs {missing:?} beside it, and neither may be empty")]
    FindHalf { present: &'static str, missing: &'static str },
    #[error("parameter {key:?} has the value {value:?} with the unknown token {token:?}; use {allowed}")]
    Expand { key: &'static str, value: String, token: String, allowed: &'static str },
    #[error("parameter {key:?} gives {value:?}, which is no {what}")]
    CheckName { key: &'static str, value: String, what: &'static str },
}

/// What the templates may speak of.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub volume: &'a str,
    pub claim: &'a str,
    pub namespace: &'a str,
    pub annotations: &'a Annotations,
}

impl<'a> Subject<'a> {
    pub fn of(claim: &'a Claim, volume: &'a str) -> Self {
        let meta = &claim.meta;
        Self { volume, claim: &meta.name, namespace: &meta.namespace, annotations: &meta.annotations }
    }
}

/// Whether a key with our prefix names a secret.
pub fn is_key(key: &str) -> bool {
    let pairs = USES.iter().map(|used| used.current).chain([DEFAULT]);
    pairs.into_iter().any(|(name, namespace)| key == name || key == namespace)
}

/// The secrets of every use.
pub fn resolve(parameters: &BTreeMap<String, String>, subject: Subject<'_>) -> Result<SecretRefs, Error> {
    let find = |used| reference(used, parameters, subject);
    Ok(SecretRefs {
        provisioner: find(&PROVISIONER)?,
        controller_publish: find(&CONTROLLER_PUBLISH)?,
        node_stage: find(&NODE_STAGE)?,
        node_publish: find(&NODE_PUBLISH)?,
        controller_expand: find(&CONTROLLER_EXPAND)?,
        node_expand: find(&NODE_EXPAND)?,
        controller_modify: find(&CONTROLLER_MODIFY)?,
    })
}

/// The secret of CreateVolume and DeleteVolume.
pub fn provisioner(parameters: &BTreeMap<String, String>, subject: Subject<'_>) -> Result<Option<SecretRef>, Error> {
    reference(&PROVISIONER, parameters, subject)
}

fn reference(
    used: &Use,
    parameters: &BTreeMap<String, String>,
    subject: Subject<'_>,
) -> Result<Option<SecretRef>, Error> {
    let named = |pair: (&str, &str)| parameters.contains_key(pair.0) || parameters.contains_key(pair.1);
    let keys = match used.deprecated {
        Some(deprecated) if named(deprecated) && named(used.current) => {
            return Err(Error::ChooseKey { current: used.current.0, deprecated: deprecated.0 });
        }
        Some(deprecated) if named(deprecated) => deprecated,
        _ if named(used.current) => used.current,
        _ if named(DEFAULT) => DEFAULT,
        _ => return Ok(None),
    };
    let value = |key: &str| parameters.get(key).filter(|value| !value.is_empty());
    match (value(keys.0), value(keys.1)) {
        (Some(name), Some(namespace)) => Ok(Some(SecretRef {
            name: expand_name(keys.0, name, subject)?,
            namespace: expand_namespace(keys.1, namespace, subject)?,
        })),
        (Some(_), None) => Err(Error::FindHalf { present: keys.0, missing: keys.1 }),
        (None, _) => Err(Error::FindHalf { present: keys.1, missing: keys.0 }),
    }
}

fn expand_name(key: &'static str, template: &str, subject: Subject<'_>) -> Result<String, Error> {
    const ALLOWED: &str = "${pv.name}, ${pvc.name}, ${pvc.namespace} or ${pvc.annotations['KEY']}";
    let value = expand(key, template, ALLOWED, |token| match token {
        "pv.name" => Some(subject.volume.to_owned()),
        "pvc.name" => Some(subject.claim.to_owned()),
        "pvc.namespace" => Some(subject.namespace.to_owned()),
        _ => {
            let annotation = token.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            subject.annotations.get(annotation).map(str::to_owned)
        }
    })?;
    let valid = value.len() <= 253 && value.split('.').all(is_label);
    if valid { Ok(value) } else { Err(Error::CheckName { key, value, what: "name of a secret" }) }
}

fn expand_namespace(key: &'static str, template: &str, subject: Subject<'_>) -> Result<String, Error> {
    let value = expand(key, template, "${pv.name} or ${pvc.namespace}", |token| match token {
        "pv.name" => Some(subject.volume.to_owned()),
        "pvc.namespace" => Some(subject.namespace.to_owned()),
        _ => None,
    })?;
    if is_label(&value) { Ok(value) } else { Err(Error::CheckName { key, value, what: "name of a namespace" }) }
}

/// Replaces `${token}`; a dollar sign that starts no known token can be part of no name, so it is an error.
fn expand(
    key: &'static str,
    template: &str,
    allowed: &'static str,
    value_of: impl Fn(&str) -> Option<String>,
) -> Result<String, Error> {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let token = after.strip_prefix('{').and_then(|body| body.split_once('}'));
        let (token, next) = token.unwrap_or((after, ""));
        let unknown = || Error::Expand { key, value: template.into(), token: format!("${{{token}}}"), allowed };
        expanded.push_str(&value_of(token).ok_or_else(unknown)?);
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

    fn resolved(parameters: &[(&str, &str)]) -> Result<SecretRefs, Error> {
        let annotations = Annotations::from_iter([("team/secret".to_owned(), "blue".to_owned())]);
        let subject = Subject { volume: "pvc-u1", claim: "db", namespace: "shop", annotations: &annotations };
        let parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        resolve(&parameters, subject)
    }

    fn at(namespace: &str, name: &str) -> Option<SecretRef> {
        Some(SecretRef { namespace: namespace.into(), name: name.into() })
    }

    const NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
    const NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";

    #[test]
    fn a_class_without_secrets_names_none() {
        assert_eq!(resolved(&[("size", "big")]), Ok(SecretRefs::default()));
    }

    #[test]
    fn every_token_is_replaced() {
        let secrets = resolved(&[
            (NAME, "${pvc.namespace}.${pvc.name}.${pv.name}.${pvc.annotations['team/secret']}"),
            (NAMESPACE, "${pvc.namespace}"),
        ]);
        assert_eq!(secrets.unwrap().provisioner, at("shop", "shop.db.pvc-u1.blue"));
    }

    #[test]
    fn the_default_pair_serves_every_use_that_has_no_own() {
        let secrets = resolved(&[(DEFAULT.0, "all"), (DEFAULT.1, "ns"), (NAME, "own"), (NAMESPACE, "ns")]).unwrap();
        assert_eq!(secrets.provisioner, at("ns", "own"));
        for other in [secrets.controller_publish, secrets.node_stage, secrets.node_publish, secrets.controller_modify] {
            assert_eq!(other, at("ns", "all"));
        }
    }

    #[test]
    fn the_deprecated_keys_work_alone_but_not_beside_the_current_ones() {
        let old = [("csiNodeStageSecretName", "a"), ("csiNodeStageSecretNamespace", "b")];
        assert_eq!(resolved(&old).unwrap().node_stage, at("b", "a"));
        let both = [old[0], old[1], ("csi.storage.k8s.io/node-stage-secret-name", "a")];
        assert!(matches!(resolved(&both), Err(Error::ChooseKey { .. })));
    }

    #[test]
    fn half_a_reference_is_an_error() {
        for half in [&[(NAME, "a")][..], &[(NAMESPACE, "a")], &[(NAME, ""), (NAMESPACE, "a")]] {
            assert!(matches!(resolved(half), Err(Error::FindHalf { .. })), "{half:?}");
        }
    }

    #[test]
    fn unknown_tokens_and_impossible_names_are_errors() {
        for name in ["${pvc.uid}", "$pvc", "a$", "${pvc.name", "${pvc.annotations['none']}"] {
            assert!(matches!(resolved(&[(NAME, name), (NAMESPACE, "a")]), Err(Error::Expand { .. })), "{name}");
        }
        assert!(matches!(resolved(&[(NAME, "a"), (NAMESPACE, "${pvc.name}")]), Err(Error::Expand { .. })));
        assert!(matches!(resolved(&[(NAME, "A"), (NAMESPACE, "a")]), Err(Error::CheckName { .. })));
        assert!(matches!(resolved(&[(NAME, "a"), (NAMESPACE, "a.b")]), Err(Error::CheckName { .. })));
    }
}
