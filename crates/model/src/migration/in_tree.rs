//! New volumes of migrated classes as their in-tree plugin would have written them: whoever switches migration off again
//! finds volumes that the plugin knows.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::topology::{BETA, Labels, STABLE, ZONE_DELIMITER};

/// Why a volume of a driver has no in-tree form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The driver's name for it is of another form.
    #[error("volume handle {handle:?} is not {wanted}, as the in-tree plugin needs it")]
    ReadHandle {
        /// The handle.
        handle: String,
        /// The form.
        wanted: &'static str,
    },
    /// A partition is a number.
    #[error("volume attribute partition is {value:?}, not a number")]
    ReadPartition {
        /// The value.
        value: String,
    },
    /// No single region can be told from the zones.
    #[error("zones {zones:?} do not tell one region")]
    FindRegion {
        /// The zones.
        zones: Vec<String>,
    },
    /// No driver of this name took over from a plugin.
    #[error("driver {driver:?} has not taken over from an in-tree plugin")]
    KnowDriver {
        /// The driver.
        driver: String,
    },
}

/// Turns the body of a PersistentVolume with a `csi` source into one with the source of the in-tree plugin that the driver
/// took over from; topology and labels follow.
pub fn to_in_tree(body: &mut Value) -> Result<(), Error> {
    let csi = body["spec"]["csi"].clone();
    let driver = text(&csi, "driver");
    let handle = text(&csi, "volumeHandle");
    let (member, source) = match driver.as_str() {
        "ebs.csi.aws.com" => {
            translate_topology(body, "topology.ebs.csi.aws.com/zone", Some(amazon_region))?;
            ("awsElasticBlockStore", with_partition(json!({ "volumeID": handle }), &csi)?)
        }
        "pd.csi.storage.gke.io" => {
            let name = handle.split('/').nth(5).filter(|_| handle.split('/').count() >= 6);
            let wanted = "projects/PROJECT/zones/ZONE/disks/NAME";
            let name = name.ok_or_else(|| Error::ReadHandle { handle: handle.clone(), wanted })?.to_owned();
            translate_topology(body, "topology.gke.io/zone", Some(google_region))?;
            ("gcePersistentDisk", with_partition(json!({ "pdName": name }), &csi)?)
        }
        "cinder.csi.openstack.org" => {
            // No region can be told from a zone here.
            translate_topology(body, "topology.cinder.csi.openstack.org/zone", None)?;
            ("cinder", json!({ "volumeID": handle }))
        }
        "csi.vsphere.vmware.com" => {
            translate_vsphere(body);
            let path = text(&csi["volumeAttributes"], "initialvolumefilepath");
            ("vsphereVolume", json!({ "volumePath": path }))
        }
        "pxd.portworx.com" => ("portworxVolume", json!({ "volumeID": handle })),
        "disk.csi.azure.com" => ("azureDisk", azure_disk(&handle, &csi)?),
        "file.csi.azure.com" => {
            let (source, group) = azure_file(&handle, &csi)?;
            if let Some(group) = group {
                body["metadata"]["annotations"]["kubernetes.io/azure-file-resource-group"] = group.into();
            }
            ("azureFile", source)
        }
        _ => return Err(Error::KnowDriver { driver }),
    };
    if let Some(spec) = body["spec"].as_object_mut() {
        spec.remove("csi");
        spec.insert(member.to_owned(), with_common(member, source, &csi));
    }
    Ok(())
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

/// File system and mode are said alike by most.
fn with_common(member: &str, mut source: Value, csi: &Value) -> Value {
    let has_fs_type = source.get("fsType").is_some();
    if member != "azureFile" && !has_fs_type && csi["fsType"].is_string() {
        source["fsType"] = csi["fsType"].clone();
    }
    if member != "vsphereVolume" && csi["readOnly"] == true {
        source["readOnly"] = true.into();
    }
    source
}

fn with_partition(mut source: Value, csi: &Value) -> Result<Value, Error> {
    let value = text(&csi["volumeAttributes"], "partition");
    if !value.is_empty() {
        let partition: i32 = value.parse().map_err(|_| Error::ReadPartition { value })?;
        source["partition"] = partition.into();
    }
    Ok(source)
}

/// An attribute whatever the case of its key.
fn attribute(csi: &Value, wanted: &str) -> Option<String> {
    let attributes = csi["volumeAttributes"].as_object().into_iter().flatten();
    let mut found = attributes.filter(|(key, _)| key.eq_ignore_ascii_case(wanted));
    found.next_back().and_then(|(_, value)| value.as_str()).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn azure_disk(handle: &str, csi: &Value) -> Result<Value, Error> {
    let wanted = "/subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Compute/disks/NAME";
    let unreadable = || Error::ReadHandle { handle: handle.to_owned(), wanted };
    let name = match handle.starts_with("http") {
        true => handle.rsplit_once("/vhds/").map(|(_, name)| name),
        false => handle.rsplit_once("/providers/Microsoft.Compute/disks/").map(|(_, name)| name),
    };
    let name = name.filter(|name| !name.is_empty()).ok_or_else(unreadable)?;
    let mut source = json!({ "diskName": name, "diskURI": handle, "kind": "Managed" });
    if let Some(mode) = attribute(csi, "cachingmode") {
        source["cachingMode"] = mode.into();
    }
    if let Some(fs_type) = attribute(csi, "fstype") {
        source["fsType"] = fs_type.into();
    }
    Ok(source)
}

/// The source, and the resource group where only the handle knows the account.
fn azure_file(handle: &str, csi: &Value) -> Result<(Value, Option<String>), Error> {
    let staged = &csi["nodeStageSecretRef"];
    let staged = Some(staged).filter(|secret| !text(secret, "name").is_empty());
    let mut share = attribute(csi, "sharename");
    let mut secret = staged.map(|secret| text(secret, "name")).or_else(|| attribute(csi, "secretname"));
    let namespace = staged.map(|secret| text(secret, "namespace")).or_else(|| attribute(csi, "secretnamespace"));
    let mut group = None;
    if share.is_none() || secret.is_none() {
        let mut parts = handle.split('#');
        let (Some(of), Some(account), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Error::ReadHandle { handle: handle.to_owned(), wanted: "GROUP#ACCOUNT#SHARE" });
        };
        share = share.or_else(|| Some(name.to_owned()));
        secret = secret.or_else(|| Some(format!("azure-storage-account-{account}-secret")));
        group = Some(of.to_owned()).filter(|group| !group.is_empty());
    }
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    Ok((json!({ "shareName": share, "secretName": secret, "secretNamespace": namespace }), group))
}

fn requirements(body: &mut Value) -> impl Iterator<Item = &mut Value> {
    let terms = body["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array_mut();
    terms.into_iter().flatten().filter_map(|term| term["matchExpressions"].as_array_mut()).flatten()
}

fn has_affinity(body: &Value) -> bool {
    body["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array().is_some_and(|terms| !terms.is_empty())
}

fn rename(body: &mut Value, from: &str, to: &str) {
    requirements(body).filter(|requirement| requirement["key"] == from).for_each(|requirement| {
        requirement["key"] = to.into();
    });
}

fn values(body: &mut Value, key: &str) -> BTreeSet<String> {
    let found = requirements(body).filter(|requirement| requirement["key"] == key);
    let texts = found.filter_map(|requirement| requirement["values"].as_array()).flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

fn label(body: &mut Value, key: &str, value: String) {
    let metadata = &mut body["metadata"];
    if metadata["labels"].is_null() {
        metadata["labels"] = Value::Object(Map::new());
    }
    if metadata["labels"][key].is_null() {
        metadata["labels"][key] = value.into();
    }
}

/// A volume that was just made has today's labels, unless its driver knows the old ones as keys.
fn labels_of(body: &mut Value) -> Labels {
    let is_old = values(body, STABLE.zone).is_empty() && !values(body, BETA.zone).is_empty();
    if is_old { BETA } else { STABLE }
}

type Region = fn(&[String]) -> Option<String>;

/// The driver's key becomes the label of zones, the region is told from them where it can be, and labels say both.
fn translate_topology(body: &mut Value, key: &str, region: Option<Region>) -> Result<(), Error> {
    if !has_affinity(body) {
        return Ok(());
    }
    let labels = labels_of(body);
    rename(body, key, labels.zone);
    if let Some(region) = region {
        let terms = body["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array_mut();
        for expressions in terms.into_iter().flatten().filter_map(|term| term["matchExpressions"].as_array_mut()) {
            if expressions.iter().any(|requirement| requirement["key"] == labels.region) {
                continue;
            }
            let zoned = expressions.iter().filter(|requirement| requirement["key"] == labels.zone);
            let zones = zoned.filter_map(|requirement| requirement["values"].as_array()).flatten();
            let zones: Vec<String> = zones.filter_map(Value::as_str).map(str::to_owned).collect();
            let found = region(&zones).ok_or(Error::FindRegion { zones })?;
            expressions.push(json!({ "key": labels.region, "operator": "In", "values": [found] }));
        }
        let regions = values(body, labels.region);
        if regions.len() == 1 {
            regions.into_iter().for_each(|region| label(body, labels.region, region));
        }
    }
    let zones = values(body, labels.zone);
    if !zones.is_empty() {
        label(body, labels.zone, Vec::from_iter(zones).join(ZONE_DELIMITER));
    }
    Ok(())
}

/// This driver has a key for regions too, and no volume in several zones.
fn translate_vsphere(body: &mut Value) {
    if !has_affinity(body) {
        return;
    }
    let labels = labels_of(body);
    for (key, name) in
        [("topology.csi.vmware.com/zone", labels.zone), ("topology.csi.vmware.com/region", labels.region)]
    {
        rename(body, key, name);
        let first = values(body, name).into_iter().next();
        first.into_iter().for_each(|first| label(body, name, first));
    }
}

/// `us-west-2a`, `us-gov-east-1a`, `us-west-2-lax-1a` (local zone) and `us-east-1-wl1-bos-wlz-1` (wavelength).
fn amazon_region(zones: &[String]) -> Option<String> {
    let region = |zone: &String| {
        let parts: Vec<&str> = zone.split('-').collect();
        let last = parts.last().copied().unwrap_or_default();
        match parts.len() {
            3 | 4 if last.len() == 2 && last.is_ascii() => {
                Some([&parts[..parts.len() - 1], &[&last[..1]]].concat().join("-"))
            }
            5 | 7 => Some(parts[..3].join("-")),
            _ => None,
        }
    };
    only(zones.iter().map(region))
}

/// `LOCALE-REGION-ZONE`.
fn google_region(zones: &[String]) -> Option<String> {
    let region = |zone: &String| {
        let parts: Vec<&str> = zone.split('-').collect();
        (parts.len() == 3).then(|| parts[..2].join("-"))
    };
    only(zones.iter().map(region))
}

/// The one that all are.
fn only(mut all: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(driver: &str, handle: &str, spoil: impl FnOnce(&mut Value)) -> Value {
        let mut body = json!({
            "metadata": { "name": "pv", "annotations": {} },
            "spec": { "csi": { "driver": driver, "volumeHandle": handle, "fsType": "ext4", "volumeAttributes": {} } },
        });
        spoil(&mut body);
        body
    }

    fn translated(driver: &str, handle: &str, spoil: impl FnOnce(&mut Value)) -> Value {
        let mut body = volume(driver, handle, spoil);
        to_in_tree(&mut body).unwrap();
        assert_eq!(body["spec"]["csi"], Value::Null, "one source is left");
        body
    }

    fn affinity(key: &str, values: &[&str]) -> Value {
        let expression = json!({ "key": key, "operator": "In", "values": values });
        json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [expression] }] } })
    }

    #[test]
    fn each_drivers_volume_gets_the_source_of_its_plugin() {
        let source = |driver, handle, member: &str| translated(driver, handle, |_| {})["spec"][member].clone();
        assert_eq!(
            source("ebs.csi.aws.com", "vol-1", "awsElasticBlockStore"),
            json!({ "volumeID": "vol-1", "fsType": "ext4" })
        );
        assert_eq!(
            source("pd.csi.storage.gke.io", "projects/p/zones/z/disks/d", "gcePersistentDisk"),
            json!({ "pdName": "d", "fsType": "ext4" })
        );
        assert_eq!(source("cinder.csi.openstack.org", "v", "cinder"), json!({ "volumeID": "v", "fsType": "ext4" }));
        assert_eq!(source("pxd.portworx.com", "v", "portworxVolume"), json!({ "volumeID": "v", "fsType": "ext4" }));
        let uri = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
        assert_eq!(
            source("disk.csi.azure.com", uri, "azureDisk"),
            json!({ "diskName": "d", "diskURI": uri, "kind": "Managed", "fsType": "ext4" })
        );
        let path = translated("csi.vsphere.vmware.com", "id", |body| {
            body["spec"]["csi"]["volumeAttributes"]["initialvolumefilepath"] = "[ds] a.vmdk".into();
        });
        assert_eq!(path["spec"]["vsphereVolume"], json!({ "volumePath": "[ds] a.vmdk", "fsType": "ext4" }));
        let share = translated("file.csi.azure.com", "g#account#share#", |_| {});
        let secret = "azure-storage-account-account-secret";
        assert_eq!(
            share["spec"]["azureFile"],
            json!({ "shareName": "share", "secretName": secret, "secretNamespace": "default" })
        );
        assert_eq!(share["metadata"]["annotations"]["kubernetes.io/azure-file-resource-group"], "g");
    }

    #[test]
    fn partitions_modes_and_caching_are_kept() {
        let disk = translated("ebs.csi.aws.com", "vol-1", |body| {
            body["spec"]["csi"]["volumeAttributes"]["partition"] = "3".into();
            body["spec"]["csi"]["readOnly"] = true.into();
        });
        assert_eq!(disk["spec"]["awsElasticBlockStore"]["partition"], 3);
        assert_eq!(disk["spec"]["awsElasticBlockStore"]["readOnly"], true);
        let uri = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
        let cached = translated("disk.csi.azure.com", uri, |body| {
            body["spec"]["csi"]["volumeAttributes"]["cachingMode"] = "ReadOnly".into();
        });
        assert_eq!(cached["spec"]["azureDisk"]["cachingMode"], "ReadOnly");
        let staged = translated("file.csi.azure.com", "g#account#share#", |body| {
            body["spec"]["csi"]["nodeStageSecretRef"] = json!({ "name": "s", "namespace": "n" });
        });
        assert_eq!(staged["spec"]["azureFile"]["secretName"], "s");
        assert_eq!(staged["spec"]["azureFile"]["secretNamespace"], "n");
    }

    #[test]
    fn topology_becomes_zone_and_region_in_affinity_and_labels() {
        let ebs = translated("ebs.csi.aws.com", "vol-1", |body| {
            body["spec"]["nodeAffinity"] = affinity("topology.ebs.csi.aws.com/zone", &["us-east-1a"]);
        });
        assert_eq!(
            ebs["metadata"]["labels"],
            json!({ "topology.kubernetes.io/zone": "us-east-1a", "topology.kubernetes.io/region": "us-east-1" })
        );
        let expressions = &ebs["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
        assert_eq!(expressions[0]["key"], "topology.kubernetes.io/zone");
        assert_eq!(
            expressions[1],
            json!({ "key": "topology.kubernetes.io/region", "operator": "In", "values": ["us-east-1"] })
        );
        let regional = translated("pd.csi.storage.gke.io", "projects/p/regions/r/disks/d", |body| {
            body["spec"]["nodeAffinity"] = affinity("topology.gke.io/zone", &["us-central1-a", "us-central1-b"]);
        });
        assert_eq!(regional["metadata"]["labels"]["topology.kubernetes.io/zone"], "us-central1-a__us-central1-b");
        let vsphere = translated("csi.vsphere.vmware.com", "id", |body| {
            body["spec"]["nodeAffinity"] = affinity("topology.csi.vmware.com/region", &["r"]);
        });
        assert_eq!(vsphere["metadata"]["labels"], json!({ "topology.kubernetes.io/region": "r" }));
        assert_eq!(translated("cinder.csi.openstack.org", "v", |_| {})["metadata"]["labels"], Value::Null);
    }

    #[test]
    fn regions_are_told_from_zones_of_every_form() {
        let region = |zones: &[&str]| amazon_region(&zones.iter().map(|zone| zone.to_string()).collect::<Vec<_>>());
        for (zone, wanted) in [
            ("us-west-2a", "us-west-2"),
            ("us-gov-east-1a", "us-gov-east-1"),
            ("us-west-2-lax-1a", "us-west-2"),
            ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
        ] {
            assert_eq!(region(&[zone]).as_deref(), Some(wanted));
        }
        assert_eq!(region(&["us-west-2a", "us-east-1a"]), None);
        assert_eq!((region(&[]), region(&["here"])), (None, None));
    }

    #[test]
    fn what_has_no_in_tree_form_is_named() {
        let error = |driver, handle, spoil: fn(&mut Value)| to_in_tree(&mut volume(driver, handle, spoil)).unwrap_err();
        assert!(error("pd.csi.storage.gke.io", "d", |_| {}).to_string().contains("projects/PROJECT"));
        assert!(error("disk.csi.azure.com", "d", |_| {}).to_string().contains("\"d\""));
        let partition = error("ebs.csi.aws.com", "vol-1", |body| {
            body["spec"]["csi"]["volumeAttributes"]["partition"] = "x".into();
        });
        assert_eq!(partition, Error::ReadPartition { value: "x".into() });
        assert!(matches!(error("other.csi.example", "d", |_| {}), Error::KnowDriver { .. }));
    }
}
