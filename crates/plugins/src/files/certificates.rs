//! Certificates of authorities as one file.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::ClusterTrustBundle;
use stowage_model::selector::LabelSelector;
use stowage_model::volume_source::ClusterTrustBundleProjection;

use crate::objects::Bundles;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Which bundles are asked for.
pub fn wanted(source: &ClusterTrustBundleProjection) -> Result<Bundles, String> {
    match (&source.name, &source.signer_name) {
        (Some(name), None) => Ok(Bundles::Named(name.clone())),
        (None, Some(signer)) => Ok(Bundles::Of(signer.clone())),
        _ => Err("clusterTrustBundle needs exactly one of name and signerName".to_owned()),
    }
}

/// The certificates of these bundles, each once. Their order says nothing, and is always the same.
pub fn joined(source: &ClusterTrustBundleProjection, bundles: &[Arc<ClusterTrustBundle>]) -> Result<Vec<u8>, String> {
    let mut certificates = BTreeSet::new();
    for bundle in bundles {
        if source.name.is_none() && !is_selected(source.label_selector.as_ref(), bundle)? {
            continue;
        }
        certificates.extend(blocks(&bundle.spec.trust_bundle));
    }
    if certificates.is_empty() && !source.optional {
        let what = match (&source.name, &source.signer_name) {
            (Some(name), _) => format!("ClusterTrustBundle {name} does not exist or holds no certificate"),
            (None, signer) => {
                format!("no ClusterTrustBundle of signer {} is selected", signer.as_deref().unwrap_or_default())
            }
        };
        return Err(format!("{what}; create it, or set optional: true"));
    }
    let text = certificates.into_iter().map(|body| format!("{BEGIN}\n{body}{END}\n"));
    Ok(text.collect::<String>().into_bytes())
}

/// Without a selector nothing is selected, with an empty one everything, as the API says.
fn is_selected(selector: Option<&LabelSelector>, bundle: &ClusterTrustBundle) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(false) };
    selector.matches(&bundle.meta.labels).map_err(|error| format!("clusterTrustBundle.labelSelector: {error}"))
}

/// What is between the lines that begin and end a certificate; remarks outside of them are left out.
fn blocks(pem: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in pem.lines().map(str::trim) {
        match (line, &mut open) {
            (BEGIN, _) => open = Some(String::new()),
            (END, Some(_)) => found.extend(open.take()),
            (line, Some(body)) if !line.is_empty() => {
                body.push_str(line);
                body.push('\n');
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundle(labels: serde_json::Value, bodies: &[&str]) -> Arc<ClusterTrustBundle> {
        let pem: String = bodies.iter().map(|body| format!("# remark\n{BEGIN}\n{body}\n{END}\n\n")).collect();
        let object = json!({ "metadata": { "name": "b", "labels": labels }, "spec": { "trustBundle": pem } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn source(value: serde_json::Value) -> ClusterTrustBundleProjection {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn certificates_of_several_bundles_are_told_once_each_in_one_order() {
        let source = source(json!({ "signerName": "s", "labelSelector": {} }));
        let (one, two) = (bundle(json!({}), &["BBBB", "AAAA"]), bundle(json!({}), &["AAAA", "CCCC"]));
        let text = |list: &[Arc<ClusterTrustBundle>]| String::from_utf8(joined(&source, list).unwrap()).unwrap();
        let expected: String = ["AAAA", "BBBB", "CCCC"].map(|body| format!("{BEGIN}\n{body}\n{END}\n")).concat();
        assert_eq!(text(&[one.clone(), two.clone()]), expected);
        assert_eq!(text(&[two, one]), expected);
    }

    #[test]
    fn a_selector_chooses_among_a_signers_bundles_and_none_chooses_nothing() {
        let bundles = [bundle(json!({ "live": "yes" }), &["AAAA"]), bundle(json!({}), &["BBBB"])];
        let with = |selector| source(json!({ "signerName": "s", "labelSelector": selector, "optional": true }));
        let chosen = joined(&with(json!({ "matchLabels": { "live": "yes" } })), &bundles).unwrap();
        assert!(chosen.windows(4).any(|part| part == b"AAAA") && !chosen.windows(4).any(|part| part == b"BBBB"));
        assert_eq!(joined(&with(serde_json::Value::Null), &bundles).unwrap(), b"");
    }

    #[test]
    fn a_missing_bundle_is_an_error_unless_it_is_optional() {
        let error = joined(&source(json!({ "name": "b" })), &[]).unwrap_err();
        assert!(error.contains("ClusterTrustBundle b") && error.contains("optional"), "{error}");
        assert_eq!(joined(&source(json!({ "name": "b", "optional": true })), &[]).unwrap(), b"");
        assert!(wanted(&source(json!({}))).is_err());
    }
}
