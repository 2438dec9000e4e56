//! Which secrets a class names for which use, and the templates in their names.

use std::collections::BTreeMap;

use stowage_model::Annotations;
use stowage_model::claim::Claim;
use stowage_model::object::Key;
use stowage_model::template::{self, Tokens};

use crate::intent::{SecretRef, SecretRefs};

/// Class parameters that start so are for the provisioner, not for the driver.
pub const PREFIX: &str = template::RESERVED_PREFIX;

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
    #[error(transparent)]
    Template(#[from] template::Error),
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
    let of_namespace = |token: &str| match token {
        "pv.name" => Some(subject.volume.to_owned()),
        "pvc.namespace" => Some(subject.namespace.to_owned()),
        _ => None,
    };
    let of_name = |token: &str| match token {
        "pvc.name" => Some(subject.claim.to_owned()),
        _ => of_namespace(token).or_else(|| {
            let annotation = token.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            subject.annotations.get(annotation).map(str::to_owned)
        }),
    };
    let names = Tokens {
        value_of: &of_name,
        allowed: "${pv.name}, ${pvc.name}, ${pvc.namespace} or ${pvc.annotations['KEY']}",
    };
    let namespaces = Tokens { value_of: &of_namespace, allowed: "${pv.name} or ${pvc.namespace}" };
    let found = template::secret(parameters, keys, &names, &namespaces)?;
    Ok(found.map(|Key { namespace, name }| SecretRef { namespace, name }))
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
            assert!(matches!(resolved(half), Err(Error::Template(template::Error::FindHalf { .. }))), "{half:?}");
        }
    }

    #[test]
    fn unknown_tokens_and_impossible_names_are_errors() {
        for name in ["${pvc.uid}", "$pvc", "a$", "${pvc.name", "${pvc.annotations['none']}"] {
            assert!(
                matches!(
                    resolved(&[(NAME, name), (NAMESPACE, "a")]),
                    Err(Error::Template(template::Error::Expand { .. }))
                ),
                "{name}"
            );
        }
        assert!(matches!(
            resolved(&[(NAME, "a"), (NAMESPACE, "${pvc.name}")]),
            Err(Error::Template(template::Error::Expand { .. }))
        ));
        assert!(matches!(
            resolved(&[(NAME, "A"), (NAMESPACE, "a")]),
            Err(Error::Template(template::Error::CheckName { .. }))
        ));
        assert!(matches!(
            resolved(&[(NAME, "a"), (NAMESPACE, "a.b")]),
            Err(Error::Template(template::Error::CheckName { .. }))
        ));
    }
}
