//! The secret that a class names for making and deleting snapshots, and the templates in its name.

use std::collections::BTreeMap;

use stowage_model::object::Meta;
use stowage_model::volume::SecretRef;

/// The parameter keys and the tokens of one sort of class.
pub struct Words {
    name: &'static str,
    namespace: &'static str,
    content: &'static str,
    object: &'static str,
    object_namespace: &'static str,
}

/// Of a VolumeSnapshotClass.
pub const SNAPSHOT: Words = Words {
    name: "csi.storage.k8s.io/snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/snapshotter-secret-namespace",
    content: "volumesnapshotcontent.name",
    object: "volumesnapshot.name",
    object_namespace: "volumesnapshot.namespace",
};

/// Of a VolumeGroupSnapshotClass.
pub const GROUP: Words = Words {
    name: "csi.storage.k8s.io/group-snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/group-snapshotter-secret-namespace",
    content: "volumegroupsnapshotcontent.name",
    object: "volumegroupsnapshot.name",
    object_namespace: "volumegroupsnapshot.namespace",
};

/// Why a class's secret parameters mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("parameter {present:?} needs {missing:?} beside it, and neither may be empty")]
    FindHalf { present: &'static str, missing: &'static str },
    #[error("parameter {key:?} has the value {value:?} with the unknown token {token:?}; use {allowed}")]
    Expand { key: &'static str, value: String, token: String, allowed: String },
    #[error("parameter {key:?} gives {value:?}, which is no {what}")]
    CheckName { key: &'static str, value: String, what: &'static str },
}

/// The secret of a class for one content, if it names any. Without the user's object only the content's name is known.
pub fn resolve(
    words: &Words,
    parameters: &BTreeMap<String, String>,
    content: &str,
    about: Option<&Meta>,
) -> Result<Option<SecretRef>, Error> {
    let value = |key: &str| parameters.get(key).filter(|value| !value.is_empty());
    let (name, namespace) = match (value(words.name), value(words.namespace)) {
        (Some(name), Some(namespace)) => (name, namespace),
        (None, None) if !parameters.contains_key(words.name) && !parameters.contains_key(words.namespace) => {
            return Ok(None);
        }
        (Some(_), None) => return Err(Error::FindHalf { present: words.name, missing: words.namespace }),
        (None, _) => return Err(Error::FindHalf { present: words.namespace, missing: words.name }),
    };
    // The namespace is the administrator's to choose, so the user's own name is no part of it.
    let mut tokens = vec![(words.content, content)];
    tokens.extend(about.map(|about| (words.object_namespace, about.namespace.as_str())));
    let namespace = expand(words.namespace, namespace, &tokens)?;
    if !is_label(&namespace) {
        return Err(Error::CheckName { key: words.namespace, value: namespace, what: "name of a namespace" });
    }
    tokens.extend(about.map(|about| (words.object, about.name.as_str())));
    let name = expand(words.name, name, &tokens)?;
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(Error::CheckName { key: words.name, value: name, what: "name of a secret" });
    }
    Ok(Some(SecretRef { namespace, name }))
}

/// Replaces `${token}`; a dollar sign that starts no known token can be part of no name, so it is an error.
fn expand(key: &'static str, template: &str, tokens: &[(&str, &str)]) -> Result<String, Error> {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let token = after.strip_prefix('{').and_then(|body| body.split_once('}'));
        let (token, next) = token.unwrap_or((after, ""));
        let Some((_, value)) = tokens.iter().find(|(known, _)| *known == token) else {
            let allowed: Vec<String> = tokens.iter().map(|(known, _)| format!("${{{known}}}")).collect();
            let token = format!("${{{token}}}");
            return Err(Error::Expand { key, value: template.into(), token, allowed: allowed.join(" or ") });
        };
        expanded.push_str(value);
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

    fn resolved(parameters: &[(&str, &str)]) -> Result<Option<SecretRef>, Error> {
        let about = Meta { namespace: "shop".into(), name: "nightly".into(), ..Meta::default() };
        let parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        resolve(&SNAPSHOT, &parameters, "snapcontent-1", Some(&about))
    }

    #[test]
    fn a_class_without_secret_names_none() {
        assert_eq!(resolved(&[("size", "big")]), Ok(None));
    }

    #[test]
    fn every_token_is_replaced() {
        let name = "${volumesnapshot.namespace}.${volumesnapshot.name}.${volumesnapshotcontent.name}";
        let secret = resolved(&[(SNAPSHOT.name, name), (SNAPSHOT.namespace, "${volumesnapshot.namespace}")]);
        let expected = SecretRef { namespace: "shop".into(), name: "shop.nightly.snapcontent-1".into() };
        assert_eq!(secret, Ok(Some(expected)));
    }

    #[test]
    fn a_name_without_a_namespace_is_refused_and_so_is_an_empty_one() {
        let half = Error::FindHalf { present: SNAPSHOT.name, missing: SNAPSHOT.namespace };
        assert_eq!(resolved(&[(SNAPSHOT.name, "s")]), Err(half.clone()));
        assert_eq!(resolved(&[(SNAPSHOT.name, "s"), (SNAPSHOT.namespace, "")]), Err(half));
        assert!(resolved(&[(SNAPSHOT.namespace, "")]).is_err());
    }

    #[test]
    fn the_users_name_is_no_part_of_the_namespace() {
        let error = resolved(&[(SNAPSHOT.name, "s"), (SNAPSHOT.namespace, "${volumesnapshot.name}")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("${volumesnapshot.name}") && text.contains("${volumesnapshot.namespace}"), "{text}");
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_value() {
        let error = resolved(&[(SNAPSHOT.name, "Big_Secret"), (SNAPSHOT.namespace, "shop")]).unwrap_err();
        assert!(error.to_string().contains("\"Big_Secret\""), "{error}");
    }

    #[test]
    fn without_the_users_object_only_the_contents_name_is_known() {
        let both = |template: &str| {
            let pairs = [(GROUP.name, template), (GROUP.namespace, "ops")];
            let parameters = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            resolve(&GROUP, &parameters, "groupsnapcontent-1", None)
        };
        assert_eq!(both("${volumegroupsnapshotcontent.name}").unwrap().unwrap().name, "groupsnapcontent-1");
        assert!(both("${volumegroupsnapshot.name}").is_err());
    }
}
