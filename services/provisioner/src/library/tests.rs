use serde_json::json;

use super::*;
use crate::fixture::{HANDLE, UID, VOLUME, claim, class_with, facts, intent, made};
use crate::request;
use crate::requirement::Cluster;
use crate::volume;

#[test]
fn the_options_are_those_of_the_record() {
    let options = ProvisionOptions::new(intent(), true);
    assert_eq!((options.volume.as_str(), options.claim.uid.as_str(), options.bytes), (VOLUME, UID, 1 << 30));
    assert_eq!(options.access_modes, AccessModes::from([AccessMode::ReadWriteOnce]));
    assert_eq!((options.class.name.as_str(), options.class.parameters["pool"].as_str()), ("fast", "a"));
    assert_eq!(options.class.mount_options, ["noatime"]);
    assert!(!options.block && options.may_exist && options.selected_node.is_none());
}

#[test]
fn every_mode_survives_its_record() {
    let mut facts = facts();
    facts.finer_modes = true;
    for mode in AccessMode::KNOWN {
        let mut claim = claim();
        claim.spec.access_modes = AccessModes::from([mode]);
        let intent = request::build(&claim, &class_with(|_| {}), &facts, &Cluster::default()).unwrap();
        assert_eq!(ProvisionOptions::new(Arc::new(intent), false).access_modes, AccessModes::from([mode]));
    }
}

#[test]
fn the_object_says_where_the_volume_is_and_from_where_it_is_reached() {
    let options = ProvisionOptions::new(intent(), false);
    let made_here = options.made("hostPath", json!({ "path": "/x" })).only_from("kubernetes.io/hostname", "n1");
    let body = volume::body(&claim(), &intent(), &made_here, &facts());
    assert_eq!(body["spec"]["hostPath"], json!({ "path": "/x" }));
    assert!(body["spec"]["csi"].is_null());
    let term = &body["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(term, &json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"] }));
    let of_driver = volume::body(&claim(), &intent(), &made(), &facts());
    assert_eq!(of_driver["spec"]["csi"]["volumeHandle"], HANDLE);
}
