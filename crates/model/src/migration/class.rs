//! Classes of in-tree plugins as the CSI drivers that took over understand them.

use std::collections::BTreeMap;

use thiserror::Error;

use super::driver_of;
use crate::class::{StorageClass, TopologyRequirement, TopologySelectorTerm};
use crate::labels::{BETA_ZONE, ZONE};

/// What every CSI driver's class says the file system with.
const FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Why a class cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// Zones are given in two ways.
    #[error(
        "parameter {key:?} and allowedTopologies both say where volumes are to be; create the class anew with one of them"
    )]
    ChooseZones {
        /// The parameter.
        key: String,
    },
}

/// The class with the provisioner, parameters and topology of the driver that took over; none if no driver did.
pub fn class_to_csi(class: &StorageClass) -> Result<Option<StorageClass>, Error> {
    let Some(driver) = driver_of(&class.provisioner) else { return Ok(None) };
    let mut translated = StorageClass { provisioner: driver.to_owned(), ..class.clone() };
    match driver {
        "ebs.csi.aws.com" => with_zones(&mut translated, "topology.ebs.csi.aws.com/zone", amazon)?,
        "pd.csi.storage.gke.io" => with_zones(&mut translated, "topology.gke.io/zone", with_fs_type)?,
        "disk.csi.azure.com" => {
            with_zones(&mut translated, "topology.disk.csi.azure.com/zone", as_is)?;
            forget_failure_domains(&mut translated.allowed_topologies);
        }
        "cinder.csi.openstack.org" => {
            change_parameters(&mut translated, with_fs_type);
            rename_zones(&mut translated, "topology.cinder.csi.openstack.org/zone");
        }
        "csi.vsphere.vmware.com" => {
            change_parameters(&mut translated, vsphere);
            // So the driver tells the path of the disk, which is what the in-tree source names.
            translated.parameters.insert("csimigration".into(), "true".into());
            rename_zones(&mut translated, "topology.csi.vmware.com/zone");
        }
        "pxd.portworx.com" => change_parameters(&mut translated, portworx),
        // The driver reads the in-tree parameters itself.
        _ => {}
    }
    Ok(Some(translated))
}

type Parameters = BTreeMap<String, String>;

/// Adds what a parameter has become.
type Translate = fn(&mut Parameters, String, String);

fn change_parameters(class: &mut StorageClass, translate: Translate) {
    let mut parameters = Parameters::new();
    for (key, value) in std::mem::take(&mut class.parameters) {
        translate(&mut parameters, key, value);
    }
    class.parameters = parameters;
}

/// Zones among the parameters become allowed topologies; those that are there already get the driver's key.
fn with_zones(class: &mut StorageClass, topology_key: &str, translate: Translate) -> Result<(), Error> {
    let is_zone = |key: &str| key.eq_ignore_ascii_case("zone") || key.eq_ignore_ascii_case("zones");
    let zones: Vec<(String, String)> = class.parameters.extract_if(.., |key, _| is_zone(key)).collect();
    change_parameters(class, translate);
    let Some((key, value)) = zones.into_iter().next_back() else {
        rename_zones(class, topology_key);
        return Ok(());
    };
    if !class.allowed_topologies.is_empty() {
        return Err(Error::ChooseZones { key });
    }
    let values = match key.eq_ignore_ascii_case("zone") {
        true => vec![value],
        false => value.split(',').map(str::to_owned).collect(),
    };
    let requirement = TopologyRequirement { key: topology_key.to_owned(), values };
    class.allowed_topologies = vec![TopologySelectorTerm { match_label_expressions: vec![requirement] }];
    Ok(())
}

fn rename_zones(class: &mut StorageClass, topology_key: &str) {
    let requirements = class.allowed_topologies.iter_mut().flat_map(|term| &mut term.match_label_expressions);
    for requirement in requirements.filter(|requirement| [ZONE, BETA_ZONE].contains(&requirement.key.as_str())) {
        requirement.key = topology_key.to_owned();
    }
}

/// In regions without zones nodes have the number of a failure domain for one, and the driver has nothing.
fn forget_failure_domains(terms: &mut [TopologySelectorTerm]) {
    let requirements = terms.iter_mut().flat_map(|term| &mut term.match_label_expressions);
    let of_zones = requirements.filter(|requirement| requirement.key == "topology.disk.csi.azure.com/zone");
    for value in of_zones.flat_map(|requirement| &mut requirement.values) {
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            value.clear();
        }
    }
}

fn as_is(parameters: &mut Parameters, key: String, value: String) {
    parameters.insert(key, value);
}

fn with_fs_type(parameters: &mut Parameters, key: String, value: String) {
    let key = if key.eq_ignore_ascii_case("fstype") { FS_TYPE.to_owned() } else { key };
    parameters.insert(key, value);
}

fn amazon(parameters: &mut Parameters, key: String, value: String) {
    // The in-tree plugin raised what was too little for a small disk; the driver does so only if it is told.
    if key.eq_ignore_ascii_case("iopspergb") {
        parameters.insert("allowautoiopspergbincrease".into(), "true".into());
    }
    with_fs_type(parameters, key, value);
}

fn vsphere(parameters: &mut Parameters, key: String, value: String) {
    let key = key.to_lowercase();
    let translated = match key.as_str() {
        "fstype" => FS_TYPE.to_owned(),
        "storagepolicyname" => key,
        "datastore"
        | "diskformat"
        | "hostfailurestotolerate"
        | "forceprovisioning"
        | "cachereservation"
        | "diskstripes"
        | "objectspacereservation"
        | "iopslimit" => format!("{key}-migrationparam"),
        // The driver takes no others.
        _ => return,
    };
    parameters.insert(translated, value);
}

fn portworx(parameters: &mut Parameters, key: String, value: String) {
    const CALLS: [&str; 6] =
        ["provisioner", "controller-publish", "node-publish", "node-stage", "controller-expand", "node-expand"];
    let part = match key.to_lowercase().as_str() {
        "openstorage.io/auth-secret-name" => "name",
        "openstorage.io/auth-secret-namespace" => "namespace",
        _ => return as_is(parameters, key, value),
    };
    let keys = CALLS.map(|call| format!("csi.storage.k8s.io/{call}-secret-{part}"));
    parameters.extend(keys.map(|key| (key, value.clone())));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn translated(plugin: &str, parameters: Value, topologies: Value) -> Result<StorageClass, Error> {
        let class = json!({
            "metadata": { "name": "c" }, "provisioner": plugin, "parameters": parameters,
            "allowedTopologies": topologies,
        });
        let class: StorageClass = serde_json::from_value(class).unwrap();
        class_to_csi(&class).map(Option::unwrap)
    }

    fn parameters(plugin: &str, given: Value) -> Value {
        json!(translated(plugin, given, json!([])).unwrap().parameters)
    }

    fn zones(plugin: &str, given: Value, topologies: Value) -> Vec<(String, Vec<String>)> {
        let class = translated(plugin, given, topologies).unwrap();
        let requirements = class.allowed_topologies.into_iter().flat_map(|term| term.match_label_expressions);
        requirements.map(|requirement| (requirement.key, requirement.values)).collect()
    }

    fn term(key: &str, values: Value) -> Value {
        json!([{ "matchLabelExpressions": [{ "key": key, "values": values }] }])
    }

    #[test]
    fn each_plugins_parameters_become_those_of_its_driver() {
        let table = [
            ("aws-ebs", json!({ "fsType": "xfs", "type": "gp3" }), json!({ FS_TYPE: "xfs", "type": "gp3" })),
            (
                "aws-ebs",
                json!({ "iopsPerGB": "10" }),
                json!({ "iopsPerGB": "10", "allowautoiopspergbincrease": "true" }),
            ),
            ("gce-pd", json!({ "fstype": "ext4", "zone": "z" }), json!({ FS_TYPE: "ext4" })),
            ("azure-disk", json!({ "fsType": "ext4", "zones": "1,2" }), json!({ "fsType": "ext4" })),
            ("azure-file", json!({ "skuName": "x", "zone": "1" }), json!({ "skuName": "x", "zone": "1" })),
            (
                "cinder",
                json!({ "fsType": "ext4", "availability": "nova" }),
                json!({ FS_TYPE: "ext4", "availability": "nova" }),
            ),
            (
                "vsphere-volume",
                json!({ "fstype": "ext4", "Datastore": "d", "storagePolicyName": "gold", "odd": "x" }),
                json!({
                    FS_TYPE: "ext4", "datastore-migrationparam": "d", "storagepolicyname": "gold",
                    "csimigration": "true",
                }),
            ),
        ];
        for (plugin, given, wanted) in table {
            assert_eq!(parameters(&format!("kubernetes.io/{plugin}"), given), wanted, "{plugin}");
        }
        let secrets = parameters(
            "kubernetes.io/portworx-volume",
            json!({ "repl": "2", "openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n" }),
        );
        assert_eq!(secrets.as_object().unwrap().len(), 13);
        assert_eq!(secrets["csi.storage.k8s.io/node-expand-secret-name"], "s");
        assert_eq!(secrets["csi.storage.k8s.io/provisioner-secret-namespace"], "n");
        assert_eq!(secrets["repl"], "2");
    }

    #[test]
    fn zones_become_the_drivers_topology_from_either_place() {
        let none = json!([]);
        let one = |key: &str, values: &[&str]| {
            vec![(key.to_owned(), values.iter().map(|v| v.to_string()).collect::<Vec<_>>())]
        };
        let ebs = "kubernetes.io/aws-ebs";
        let key = "topology.ebs.csi.aws.com/zone";
        assert_eq!(zones(ebs, json!({ "zone": "a" }), none.clone()), one(key, &["a"]));
        assert_eq!(zones(ebs, json!({ "Zones": "a,b" }), none.clone()), one(key, &["a", "b"]));
        assert_eq!(zones(ebs, json!({}), term(BETA_ZONE, json!(["a"]))), one(key, &["a"]));
        assert_eq!(zones(ebs, json!({}), term("rack", json!(["a"]))), one("rack", &["a"]));
        assert_eq!(zones(ebs, json!({}), none.clone()), vec![]);
        assert_eq!(
            zones("kubernetes.io/azure-disk", json!({ "zones": "0,westus-1" }), none),
            one("topology.disk.csi.azure.com/zone", &["", "westus-1"])
        );
        assert_eq!(
            zones("kubernetes.io/vsphere-volume", json!({}), term(ZONE, json!(["a"]))),
            one("topology.csi.vmware.com/zone", &["a"])
        );
        let both = translated(ebs, json!({ "zone": "a" }), term(ZONE, json!(["a"]))).unwrap_err();
        assert_eq!(both, Error::ChooseZones { key: "zone".into() });
    }

    #[test]
    fn a_class_of_a_driver_is_not_translated() {
        let class: StorageClass = serde_json::from_value(json!({ "provisioner": "ebs.csi.aws.com" })).unwrap();
        assert_eq!(class_to_csi(&class), Ok(None));
    }
}
