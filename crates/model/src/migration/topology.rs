//! Where a translated volume can be reached from: labels of zones become the driver's own topology keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::selector::{NodeSelector, NodeSelectorTerm, Requirement};
use crate::volume::{VolumeNodeAffinity, VolumeSpec};

/// Between the zones of a volume that is in several.
pub const ZONE_DELIMITER: &str = "__";

/// The labels that say where nodes and volumes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    /// Of the zone.
    pub zone: &'static str,
    /// Of the region.
    pub region: &'static str,
}

/// Today's labels.
pub const STABLE: Labels = Labels { zone: "topology.kubernetes.io/zone", region: "topology.kubernetes.io/region" };

/// Those of clusters that were set up long ago.
pub const BETA: Labels =
    Labels { zone: "failure-domain.beta.kubernetes.io/zone", region: "failure-domain.beta.kubernetes.io/region" };

type LabelMap = BTreeMap<String, String>;

/// Turns the zones of affinity or labels into the driver's key, and a region's old label into the new one.
pub fn translate(spec: &mut VolumeSpec, labels: &LabelMap, key: &str) {
    let used = labels_of(spec, labels);
    if has_values(spec, used.zone) {
        rename(spec, used.zone, key);
    } else if let Some(zones) = labels.get(used.zone) {
        add(spec, key, zones.split(ZONE_DELIMITER));
    }
    if used == BETA {
        rename(spec, BETA.region, STABLE.region);
    }
}

/// As [`translate`], for the driver that has a key for regions too and no volume in several zones.
pub fn translate_vsphere(spec: &mut VolumeSpec, labels: &LabelMap) {
    let used = labels_of(spec, labels);
    let keys = [(used.zone, "topology.csi.vmware.com/zone"), (used.region, "topology.csi.vmware.com/region")];
    for (label, key) in keys {
        if has_values(spec, label) {
            rename(spec, label, key);
        } else if let Some(place) = labels.get(label) {
            add(spec, key, [place.as_str()]);
        }
    }
}

/// The labels a volume uses: its affinity counts more than its labels, and today's more than the old ones.
fn labels_of(spec: &VolumeSpec, labels: &LabelMap) -> Labels {
    let in_affinity = |key: &str| terms(spec).iter().flat_map(|t| &t.match_expressions).any(|r| r.key == key);
    let uses_beta = match (in_affinity(STABLE.zone), in_affinity(BETA.zone)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => !labels.contains_key(STABLE.zone) && labels.contains_key(BETA.zone),
    };
    if uses_beta { BETA } else { STABLE }
}

fn terms(spec: &VolumeSpec) -> &[NodeSelectorTerm] {
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    required.map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default()
}

fn terms_mut(spec: &mut VolumeSpec) -> &mut Vec<NodeSelectorTerm> {
    let affinity = spec.node_affinity.get_or_insert_with(VolumeNodeAffinity::default);
    &mut affinity.required.get_or_insert_with(NodeSelector::default).node_selector_terms
}

fn has_values(spec: &VolumeSpec, key: &str) -> bool {
    let mut requirements = terms(spec).iter().flat_map(|term| &term.match_expressions);
    requirements.any(|requirement| requirement.key == key && !requirement.values.is_empty())
}

fn rename(spec: &mut VolumeSpec, from: &str, to: &str) {
    if terms(spec).is_empty() {
        return;
    }
    let requirements = terms_mut(spec).iter_mut().flat_map(|term| &mut term.match_expressions);
    requirements.filter(|requirement| requirement.key == from).for_each(|requirement| requirement.key = to.to_owned());
}

fn add<'a>(spec: &mut VolumeSpec, key: &str, zones: impl IntoIterator<Item = &'a str>) {
    let zones: BTreeSet<String> =
        zones.into_iter().map(str::trim).filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
    if zones.is_empty() {
        return;
    }
    let terms = terms_mut(spec);
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    terms.iter_mut().for_each(|term| term.match_expressions.push(Requirement::one_of(key, zones.clone())));
}
