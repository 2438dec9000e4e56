//! What classes and volume attributes say. Keys are the original's, in any case.

use std::collections::BTreeMap;

pub const SERVER: &str = "server";
pub const SHARE: &str = "share";
pub const SUB_DIR: &str = "subdir";
const ON_DELETE: &str = "ondelete";
pub const MOUNT_OPTIONS: &str = "mountoptions";
pub const MOUNT_PERMISSIONS: &str = "mountpermissions";

/// Where a placeholder's value comes from: claims from the provisioner's --extra-create-metadata, pods from the kubelet.
const PLACEHOLDERS: [(&str, &str); 7] = [
    ("${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name"),
    ("${pvc.metadata.namespace}", "csi.storage.k8s.io/pvc/namespace"),
    ("${pv.metadata.name}", "csi.storage.k8s.io/pv/name"),
    ("${pod.metadata.name}", "csi.storage.k8s.io/pod.name"),
    ("${pod.metadata.namespace}", "csi.storage.k8s.io/pod.namespace"),
    ("${pod.metadata.uid}", "csi.storage.k8s.io/pod.uid"),
    ("${pod.spec.serviceAccountName}", "csi.storage.k8s.io/serviceaccount.name"),
];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("parameter {key:?} is unknown; use server, share, subDir, onDelete or mountPermissions")]
    Unknown { key: String },
    #[error("parameter {key:?} of a snapshot class is unknown; use server, share or mountOptions")]
    UnknownOfSnapshot { key: String },
    #[error("parameter {key} is missing; name the {what}")]
    Missing { key: &'static str, what: &'static str },
    #[error("mountPermissions {value:?} must be permission bits in octal, such as 0770")]
    Permissions { value: String },
    #[error("onDelete {value:?} is unknown; use delete, retain or archive")]
    OnDelete { value: String },
    #[error("server {server:?} with share {share:?} cannot be mounted: give a host and a path without .. and #")]
    Export { server: String, share: String },
    #[error("subDir {value:?} is not allowed: give names without .. and #, of at most 255 bytes each")]
    SubDir { value: String },
    #[error(
        "subDir has {placeholder}, which nobody has told: run the provisioner with --extra-create-metadata, or set podInfoOnMount for what is of pods"
    )]
    Placeholder { placeholder: &'static str },
}

/// The value of a key in any case.
pub fn get<'a>(values: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    let found = values.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
    found.map(|(_, value)| value.as_str()).unwrap_or_default()
}

/// Options that a secret or a class has, each maybe several words.
pub fn mount_options(values: &BTreeMap<String, String>) -> Option<&str> {
    Some(get(values, MOUNT_OPTIONS)).filter(|text| !text.is_empty())
}

pub fn permissions(values: &BTreeMap<String, String>, default: u32) -> Result<u32, Error> {
    match get(values, MOUNT_PERMISSIONS) {
        "" => Ok(default),
        text => {
            let read = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777 && !text.starts_with('+'));
            read.ok_or_else(|| Error::Permissions { value: text.into() })
        }
    }
}

pub fn on_delete(values: &BTreeMap<String, String>) -> Result<Option<super::OnDelete>, Error> {
    match get(values, ON_DELETE) {
        "" => Ok(None),
        text => super::OnDelete::parse(text).map(Some).ok_or_else(|| Error::OnDelete { value: text.into() }),
    }
}

/// Refuses keys that a storage class cannot have.
pub fn check(values: &BTreeMap<String, String>) -> Result<(), Error> {
    let known = |key: &str| {
        let own =
            [SERVER, SHARE, SUB_DIR, ON_DELETE, MOUNT_PERMISSIONS].iter().any(|own| own.eq_ignore_ascii_case(key));
        own || PLACEHOLDERS[..3].iter().any(|(_, source)| source.eq_ignore_ascii_case(key))
    };
    let strange = values.keys().find(|key| !known(key));
    strange.map_or(Ok(()), |key| Err(Error::Unknown { key: key.clone() }))
}

/// The same for a snapshot class.
pub fn check_of_snapshot(values: &BTreeMap<String, String>) -> Result<(), Error> {
    let known = |key: &str| [SERVER, SHARE, MOUNT_OPTIONS].iter().any(|own| own.eq_ignore_ascii_case(key));
    let strange = values.keys().find(|key| !known(key));
    strange.map_or(Ok(()), |key| Err(Error::UnknownOfSnapshot { key: key.clone() }))
}

/// Puts names in place of placeholders, each once: a name is not looked through for more.
pub fn fill(text: &str, values: &BTreeMap<String, String>) -> Result<String, Error> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = PLACEHOLDERS.iter().find(|(placeholder, _)| rest.starts_with(placeholder));
        let Some((placeholder, key)) = found else {
            filled.push_str("${");
            rest = &rest[2..];
            continue;
        };
        match get(values, key) {
            "" => return Err(Error::Placeholder { placeholder }),
            value => filled.push_str(value),
        }
        rest = &rest[placeholder.len()..];
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn placeholders_become_names_and_names_stay_what_they_are() {
        let values = map(&[
            ("csi.storage.k8s.io/pvc/name", "${pv.metadata.name}"),
            ("csi.storage.k8s.io/pvc/namespace", "space"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
            ("csi.storage.k8s.io/pod.uid", "u"),
        ]);
        for (text, filled) in [
            ("plain/way", "plain/way"),
            ("${pvc.metadata.namespace}/${pvc.metadata.name}", "space/${pv.metadata.name}"),
            ("a-${pv.metadata.name}-${pv.metadata.name}", "a-pvc-1-pvc-1"),
            ("${pod.metadata.uid}", "u"),
            ("${unknown}/$x/${", "${unknown}/$x/${"),
        ] {
            assert_eq!(fill(text, &values).unwrap(), filled);
        }
        let refusal = fill("${pvc.metadata.name}", &map(&[])).unwrap_err().to_string();
        assert!(refusal.contains("--extra-create-metadata"), "{refusal}");
    }

    #[test]
    fn keys_are_taken_in_any_case_and_strange_ones_by_name() {
        let values = map(&[("Server", "s"), ("SHARE", "/x"), ("mountPermissions", "0750"), ("onDelete", "Archive")]);
        check(&values).unwrap();
        assert_eq!(get(&values, SERVER), "s");
        assert_eq!(permissions(&values, 0), Ok(0o750));
        assert_eq!(on_delete(&values), Ok(Some(crate::nfs::OnDelete::Archive)));
        assert!(check(&map(&[("unknown-parameter", "foo")])).unwrap_err().to_string().contains("unknown-parameter"));
        assert!(check(&map(&[("mountOptions", "ro")])).is_err(), "a class has a field of its own for these");
        assert!(check_of_snapshot(&map(&[("mountOptions", "ro"), ("server", "s"), ("share", "/")])).is_ok());
        assert!(check_of_snapshot(&map(&[("subDir", "x")])).is_err());
        for bad in ["07ab", "rwx", "17777", "+7"] {
            assert!(permissions(&map(&[("mountPermissions", bad)]), 0).is_err(), "{bad}");
        }
        assert!(on_delete(&map(&[("onDelete", "shred")])).unwrap_err().to_string().contains("shred"));
    }
}
