//! A field of the pod as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use stowage_model::node_view::NodePod;

/// The field's value; labels and annotations as lines of `key="value"`.
pub fn value(path: &str, pod: &NodePod) -> Result<String, String> {
    if let Some((map, key)) = subscript(path) {
        return match map {
            "metadata.labels" => Ok(pod.meta.labels.get(key).cloned().unwrap_or_default()),
            "metadata.annotations" => Ok(annotations(pod).remove(key).unwrap_or_default()),
            other => {
                Err(format!("fieldPath {path:?}: {other} has no keys; only metadata.labels and .annotations have"))
            }
        };
    }
    match path {
        "metadata.name" => Ok(pod.meta.name.clone()),
        "metadata.namespace" => Ok(pod.meta.namespace.clone()),
        "metadata.uid" => Ok(pod.meta.uid.clone()),
        "metadata.labels" => Ok(lines(&pod.meta.labels)),
        "metadata.annotations" => Ok(lines(&annotations(pod))),
        "spec.nodeName" => Ok(pod.spec.node_name.clone()),
        "spec.serviceAccountName" => Ok(crate::tokens::account_of(pod).to_owned()),
        "status.hostIP" => Ok(pod.addresses.host_ip.clone()),
        "status.podIP" => Ok(pod.addresses.pod_ip.clone()),
        "status.hostIPs" => Ok(addresses(&pod.addresses.host_ips)),
        "status.podIPs" => Ok(addresses(&pod.addresses.pod_ips)),
        _ => Err(format!(
            "fieldPath {path:?} is not known; use metadata.name, .namespace, .uid, .labels, .annotations, \
             metadata.labels['key'] or metadata.annotations['key']"
        )),
    }
}

/// All annotations, with the two that a kubelet adds to its own view of a pod. The moment it was first seen is that of its
/// creation here, so that it is the same after a restart.
fn annotations(pod: &NodePod) -> BTreeMap<String, String> {
    let mut all = pod.annotations.clone();
    let seen = pod.meta.creation_timestamp.map(|at| ("kubernetes.io/config.seen", at.to_string()));
    for (key, value) in seen.into_iter().chain([("kubernetes.io/config.source", "api".to_owned())]) {
        all.entry(key.to_owned()).or_insert(value);
    }
    all
}

/// The two parts of `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

fn addresses(list: &[stowage_model::node_view::Address]) -> String {
    list.iter().map(|address| address.ip.as_str()).collect::<Vec<_>>().join(",")
}

fn lines(map: &BTreeMap<String, String>) -> String {
    let quoted = map.iter().map(|(key, value)| format!("{key}={}", quote(value)));
    quoted.collect::<Vec<_>>().join("\n")
}

/// A text in double quotes, as Go writes it: what can be printed stays.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            letter if is_printable(letter) => quoted.push(letter),
            letter => {
                let code = u32::from(letter);
                let written = match code {
                    0..0x80 => write!(quoted, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
                written.expect("a string takes every write");
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Rust's own escaping knows what can be printed; it also escapes quotes, which are not asked about here.
fn is_printable(letter: char) -> bool {
    letter == '\'' || (letter == ' ' || !letter.is_whitespace()) && letter.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::object::Projection as _;

    use super::*;

    fn pod() -> NodePod {
        let annotations = json!({ "note": "say \"hi\"\n\\tab\there ü\u{0}", "kubectl.kubernetes.io/last-applied-configuration": "{}" });
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "labels": { "b": "2", "a": "1" }, "annotations": annotations,
                "creationTimestamp": "2026-01-02T03:04:05Z",
            },
            "spec": { "nodeName": "node" },
            "status": { "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] },
        });
        NodePod::read(pod.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn each_field_is_told_as_the_kubelet_writes_it() {
        let pod = pod();
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            ("metadata.uid", "u"),
            ("metadata.labels", "a=\"1\"\nb=\"2\""),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['gone']", ""),
            ("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", "{}"),
            ("metadata.annotations['kubernetes.io/config.source']", "api"),
            ("spec.nodeName", "node"),
            ("spec.serviceAccountName", "default"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
        ] {
            assert_eq!(value(path, &pod).unwrap(), expected, "{path}");
        }
        let all = value("metadata.annotations", &pod).unwrap();
        let expected = "kubectl.kubernetes.io/last-applied-configuration=\"{}\"\nkubernetes.io/config.seen=\"2026-01-02T03:04:05Z\"\nkubernetes.io/config.source=\"api\"\nnote=\"say \\\"hi\\\"\\n\\\\tab\\there ü\\x00\"";
        assert_eq!(all, expected);
    }

    #[test]
    fn what_no_pod_has_is_refused_with_what_there_is() {
        for wrong in ["", "metadata", "metadata.name['a']", "spec.volumes", "metadata.labels['a'", "status.podIP['x']"]
        {
            assert!(value(wrong, &pod()).is_err(), "{wrong}");
        }
    }
}
