//! The secret that a class names for making and deleting snapshots, and the templates in its name.

use std::collections::BTreeMap;

use stowage_model::object::{Key, Meta};
use stowage_model::template::{self, Error, Tokens};

/// The parameter keys and the tokens of one sort of class.
pub struct Words {
    name: &'static str,
    namespace: &'static str,
    content: &'static str,
    object: &'static str,
    object_namespace: &'static str,
    /// The tokens that a name may have, and a namespace, for people.
    in_names: &'static str,
    in_namespaces: &'static str,
}

/// Of a VolumeSnapshotClass.
pub const SNAPSHOT: Words = Words {
    name: "csi.storage.k8s.io/snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/snapshotter-secret-namespace",
    content: "volumesnapshotcontent.name",
    object: "volumesnapshot.name",
    object_namespace: "volumesnapshot.namespace",
    in_names: "${volumesnapshotcontent.name}, ${volumesnapshot.namespace} or ${volumesnapshot.name}",
    in_namespaces: "${volumesnapshotcontent.name} or ${volumesnapshot.namespace}",
};

/// Of a VolumeGroupSnapshotClass.
pub const GROUP: Words = Words {
    name: "csi.storage.k8s.io/group-snapshotter-secret-name",
    namespace: "csi.storage.k8s.io/group-snapshotter-secret-namespace",
    content: "volumegroupsnapshotcontent.name",
    object: "volumegroupsnapshot.name",
    object_namespace: "volumegroupsnapshot.namespace",
    in_names: "${volumegroupsnapshotcontent.name}, ${volumegroupsnapshot.namespace} or ${volumegroupsnapshot.name}",
    in_namespaces: "${volumegroupsnapshotcontent.name} or ${volumegroupsnapshot.namespace}",
};

/// The secret of a class for one content, if it names any. Without the user's object only the content's name is known.
pub fn resolve(
    words: &Words,
    parameters: &BTreeMap<String, String>,
    content: &str,
    about: Option<&Meta>,
) -> Result<Option<Key>, Error> {
    let name_of = |token: &str| match token {
        token if token == words.content => Some(content.to_owned()),
        token if token == words.object_namespace => about.map(|about| about.namespace.clone()),
        token if token == words.object => about.map(|about| about.name.clone()),
        _ => None,
    };
    // The namespace is the administrator's to choose, so the user's own name is no part of it.
    let namespace_of = |token: &str| name_of(token).filter(|_| token != words.object);
    let names = Tokens { value_of: &name_of, allowed: words.in_names };
    let namespaces = Tokens { value_of: &namespace_of, allowed: words.in_namespaces };
    template::secret(parameters, (words.name, words.namespace), &names, &namespaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(parameters: &[(&str, &str)]) -> Result<Option<Key>, Error> {
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
        let expected = Key::namespaced("shop", "shop.nightly.snapcontent-1");
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
