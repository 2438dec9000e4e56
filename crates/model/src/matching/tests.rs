use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::object::Key;

use super::*;

fn merge(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}

fn volume(name: &str, size: &str, modes: &[&str], patch: Value) -> Volume {
    let mut json = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"capacity": {"storage": size}, "accessModes": modes},
        "status": {"phase": "Available"},
    });
    merge(&mut json, patch);
    serde_json::from_value(json).unwrap()
}

fn claim(size: &str, modes: &[&str], patch: Value) -> Claim {
    let mut json = json!({
        "metadata": {"namespace": "default", "name": "claim1", "uid": "claim-uid"},
        "spec": {"resources": {"requests": {"storage": size}}, "accessModes": modes},
    });
    merge(&mut json, patch);
    serde_json::from_value(json).unwrap()
}

fn class(name: &str, mode: Value) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": "p", "volumeBindingMode": mode})).unwrap()
}

fn reserved_for(name: &str, uid: &str) -> Value {
    json!({"spec": {"claimRef": {"namespace": "default", "name": name, "uid": uid}}})
}

fn node(zone: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": "node1", "labels": {"zone": zone}}})).unwrap()
}

fn in_zone(zone: &str) -> Value {
    let expression = json!({"key": "zone", "operator": "In", "values": [zone]});
    json!({"spec": {
        "storageClassName": "wait",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }})
}

const RWO: &str = "ReadWriteOnce";
const ROX: &str = "ReadOnlyMany";
const RWX: &str = "ReadWriteMany";

/// What the iterator finds, after checking that the index finds the same.
fn found<'a>(volumes: &'a [Volume], claim: &Claim, place: Place<'_>) -> Option<&'a str> {
    let mut index = Index::default();
    for volume in volumes {
        index.insert(Arc::new(volume.clone()));
    }
    let found = smallest_fit(volumes, claim, place).unwrap().map(|volume| volume.meta.name.as_str());
    let indexed = index.smallest_fit(claim, place).unwrap().map(|volume| volume.meta.name.as_str());
    assert_eq!(found, indexed, "the index and the full search differ");
    found
}

fn anywhere<'a>(volumes: &'a [Volume], claim: &Claim) -> Option<&'a str> {
    found(volumes, claim, Place::Anywhere)
}

#[test]
fn the_smallest_volume_that_is_large_enough_and_free_wins() {
    let volumes = [
        volume("gce-1", "1G", &[RWO, ROX], reserved_for("other", "u")),
        volume("gce-5", "5G", &[RWO, ROX], json!({})),
        volume("gce-10", "10G", &[RWO, ROX], json!({})),
        volume("gce-20", "20G", &[RWO, ROX], reserved_for("other", "u")),
        volume("nfs-5", "5G", &[RWO, ROX, RWX], json!({})),
    ];
    assert_eq!(anywhere(&volumes, &claim("8G", &[RWO, ROX], json!({}))), Some("gce-10"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO, ROX], json!({}))), Some("gce-5"));
    assert_eq!(anywhere(&volumes, &claim("5G", &[ROX, RWO, RWX], json!({}))), Some("nfs-5"));
    assert_eq!(anywhere(&volumes, &claim("999G", &[RWO], json!({}))), None);
}

#[test]
fn a_selector_narrows_the_choice() {
    let labelled = json!({"metadata": {"labels": {"should-exist": "true"}}});
    let volumes =
        [volume("plain", "10G", &[RWO, ROX], json!({})), volume("labelled", "20000G", &[RWO], labelled.clone())];
    let selector = |key: &str| json!({"spec": {"selector": {"matchLabels": {key: "true"}}}});
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], selector("should-not-exist"))), None);
    assert_eq!(anywhere(&volumes, &claim("20000G", &[RWO, ROX], selector("should-exist"))), None);
    assert_eq!(anywhere(&volumes, &claim("20000G", &[RWO], selector("should-exist"))), Some("labelled"));
}

#[test]
fn a_malformed_selector_is_an_error_even_without_volumes() {
    let claim =
        claim("1G", &[RWO], json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}));
    assert!(matches!(smallest_fit([], &claim, Place::Anywhere), Err(Error::ReadSelector { .. })));
    assert!(matches!(Index::default().smallest_fit(&claim, Place::Anywhere), Err(Error::ReadSelector { .. })));
}

#[test]
fn the_attributes_class_must_be_the_same_and_none_equals_empty() {
    let attributes = |name: &str| json!({"spec": {"volumeAttributesClassName": name}});
    let volumes = [volume("none", "10G", &[RWO], json!({})), volume("silver", "1G", &[RWO], attributes("silver"))];
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], attributes(""))), Some("none"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], json!({}))), Some("none"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], attributes("silver"))), Some("silver"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], attributes("gold"))), None);
}

#[test]
fn the_class_must_be_the_same_and_the_legacy_annotation_wins() {
    let silver = json!({"spec": {"storageClassName": "silver"}});
    let mut labelled = silver.clone();
    merge(&mut labelled, json!({"metadata": {"labels": {"should-exist": "true"}}}));
    let volumes = [
        volume("silver1", "10000G", &[RWO], labelled),
        volume("silver2", "100G", &[RWO], silver.clone()),
        volume("plain", "1G", &[RWO], json!({})),
    ];
    let mut selecting = silver.clone();
    merge(&mut selecting, json!({"spec": {"selector": {"matchLabels": {"should-exist": "true"}}}}));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], selecting)), Some("silver1"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], silver.clone())), Some("silver2"));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], json!({"spec": {"storageClassName": ""}}))), Some("plain"));

    let mut overridden = silver;
    merge(&mut overridden, json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": ""}}}));
    assert_eq!(anywhere(&volumes, &claim("1G", &[RWO], overridden)), Some("plain"));
}

#[test]
fn sizes_beyond_64_bits_compare_right() {
    let large = json!({"spec": {"storageClassName": "large"}});
    let volumes = [
        volume("e200", "200E", &[RWO], large.clone()),
        volume("e800", "800E", &[RWO], large.clone()),
        volume("e900", "900E", &[RWO], large.clone()),
    ];
    assert_eq!(anywhere(&volumes, &claim("1E", &[RWO], large.clone())), Some("e200"));
    assert_eq!(anywhere(&volumes, &claim("800E", &[RWO], large.clone())), Some("e800"));
    assert_eq!(anywhere(&volumes, &claim("950E", &[RWO], large)), None);
}

#[test]
fn the_volume_with_the_fewest_modes_wins() {
    let mut volumes = [
        volume("one", "10G", &[RWO], json!({})),
        volume("two", "10G", &[RWO, ROX], json!({})),
        volume("three", "10G", &[RWO, ROX, RWX], json!({})),
    ];
    let ask =
        |volumes: &[Volume], modes: &[&str]| anywhere(volumes, &claim("10G", modes, json!({}))).map(str::to_owned);
    assert_eq!(ask(&volumes, &[RWO]).as_deref(), Some("one"));
    assert_eq!(ask(&volumes, &[RWO, ROX]).as_deref(), Some("two"));
    assert_eq!(ask(&volumes, &[RWX, ROX, RWO]).as_deref(), Some("three"));
    assert_eq!(ask(&volumes, &[RWX]).as_deref(), Some("three"));

    volumes[0] = volume("one", "10G", &[RWO], reserved_for("other", "u"));
    assert_eq!(ask(&volumes, &[RWO]).as_deref(), Some("two"));
    assert_eq!(ask(&volumes, &[ROX]).as_deref(), Some("two"));
    volumes[1] = volume("two", "10G", &[RWO, ROX], reserved_for("other", "u"));
    assert_eq!(ask(&volumes, &[RWO]).as_deref(), Some("three"));
}

fn prebound(small: Value, large: Value) -> [Volume; 3] {
    [volume("pv1", "1Gi", &[RWO], small), volume("pv5", "5Gi", &[RWO], json!({})), volume("pv8", "8Gi", &[RWO], large)]
}

#[test]
fn a_volume_reserved_for_another_claim_is_left_alone() {
    let volumes = prebound(reserved_for("other", ""), json!({}));
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], json!({}))), Some("pv5"));
    let volumes = prebound(reserved_for("claim1", "an-earlier-uid"), json!({}));
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], json!({}))), Some("pv5"));
}

#[test]
fn a_volume_reserved_for_this_claim_wins_whatever_its_size_class_labels_and_phase() {
    let mut reserved = reserved_for("claim1", "");
    merge(&mut reserved, json!({"spec": {"storageClassName": "gold"}, "status": {"phase": "Pending"}}));
    let volumes = prebound(json!({}), reserved);
    let selecting = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], json!({}))), Some("pv8"));
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], selecting)), Some("pv8"));
}

#[test]
fn a_reserved_volume_that_is_too_small_or_has_other_modes_is_ignored() {
    let mut volumes = prebound(json!({}), json!({})).to_vec();
    volumes.push(volume("small", "1Mi", &[RWO], reserved_for("claim1", "")));
    volumes.push(volume("read-only", "8Gi", &[ROX], reserved_for("claim1", "")));
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], json!({}))), Some("pv1"));
}

#[test]
fn a_reserved_volume_of_a_richer_group_loses_to_an_ordinary_match() {
    let mut volumes = prebound(json!({}), json!({})).to_vec();
    volumes.push(volume("rich", "1Gi", &[RWO, RWX], reserved_for("claim1", "claim-uid")));
    assert_eq!(anywhere(&volumes, &claim("1Gi", &[RWO], json!({}))), Some("pv1"));
}

#[test]
fn a_claim_that_waits_for_its_consumer_gets_only_a_reserved_volume() {
    let claim = claim("1Gi", &[RWO], json!({}));
    assert_eq!(found(&prebound(json!({}), json!({})), &claim, Place::Undecided), None);
    let volumes = prebound(json!({}), reserved_for("claim1", ""));
    assert_eq!(found(&volumes, &claim, Place::Undecided), Some("pv8"));
}

#[test]
fn a_volume_being_deleted_neither_matches_nor_satisfies() {
    let mut deleting = reserved_for("claim1", "");
    merge(&mut deleting, json!({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}}));
    let volume = volume("pv", "1Gi", &[RWO], deleting);
    let claim = claim("1Gi", &[RWO], json!({}));
    assert_eq!(fits(&volume, &claim, Place::Anywhere), Err(Misfit::Deleting));
    assert_eq!(satisfies(&volume, &claim), Err(Misfit::Deleting));
}

#[test]
fn volume_modes_differ_only_when_their_effective_values_do() {
    let mode = |mode: Value| json!({"spec": {"volumeMode": mode}});
    let (none, fs, block) = (Value::Null, json!("Filesystem"), json!("Block"));
    for (of_volume, of_claim, same) in [
        (&none, &none, true),
        (&none, &fs, true),
        (&fs, &none, true),
        (&fs, &fs, true),
        (&block, &block, true),
        (&block, &none, false),
        (&none, &block, false),
        (&fs, &block, false),
        (&block, &fs, false),
    ] {
        let volume = volume("pv", "1Gi", &[RWO], mode(of_volume.clone()));
        let claim = claim("1Gi", &[RWO], mode(of_claim.clone()));
        let expected = if same { Ok(()) } else { Err(Misfit::VolumeMode) };
        assert_eq!(satisfies(&volume, &claim), expected);
        assert_eq!(fits(&volume, &claim, Place::Anywhere).map(drop), expected);
    }
}

fn wait_claim(size: &str, modes: &[&str]) -> Claim {
    claim(size, modes, json!({"spec": {"storageClassName": "wait"}}))
}

#[test]
fn on_a_node_the_smallest_volume_it_reaches_wins() {
    let volumes = [
        volume("far", "50G", &[RWO], in_zone("b")),
        volume("g100", "100G", &[RWO], in_zone("a")),
        volume("g150", "150G", &[RWO, ROX], in_zone("a")),
    ];
    let node = node("a");
    let claim = wait_claim("50G", &[RWO]);
    assert_eq!(found(&volumes, &claim, Place::On(&node)), Some("g100"));
    assert_eq!(found(&volumes[2..], &claim, Place::On(&node)), Some("g150"), "the caller left g100 out");
    assert_eq!(found(&volumes[..1], &claim, Place::On(&node)), None);
    assert_eq!(found(&volumes, &wait_claim("50G", &[RWX]), Place::On(&node)), None);
}

#[test]
fn on_a_node_a_volume_without_a_phase_is_not_taken() {
    let mut patch = in_zone("a");
    merge(&mut patch, json!({"status": {"phase": ""}}));
    let volume = volume("new", "100G", &[RWO], patch);
    let node = node("a");
    assert_eq!(fits(&volume, &wait_claim("50G", &[RWO]), Place::On(&node)), Err(Misfit::NotAvailable));
}

#[test]
fn on_a_node_a_reserved_volume_wins_or_ends_the_search() {
    let mut reserved = in_zone("a");
    merge(&mut reserved, reserved_for("claim1", ""));
    let volumes = [
        volume("free", "50G", &[RWO], json!({"spec": {"storageClassName": "wait"}})),
        volume("reserved", "500G", &[ROX], reserved),
    ];
    let claim = wait_claim("50G", &[RWO]);
    assert_eq!(found(&volumes, &claim, Place::On(&node("a"))), Some("reserved"), "its modes are not asked");
    assert_eq!(found(&volumes, &claim, Place::On(&node("b"))), None, "no other volume may be taken instead");
}

#[test]
fn on_a_node_a_reserved_volume_with_another_attributes_class_is_not_taken() {
    let mut reserved = in_zone("a");
    merge(&mut reserved, reserved_for("claim1", ""));
    merge(&mut reserved, json!({"spec": {"volumeAttributesClassName": "silver"}}));
    let volumes = [volume("reserved", "500G", &[RWO], reserved)];
    assert_eq!(found(&volumes, &wait_claim("50G", &[RWO]), Place::On(&node("a"))), None);
}

#[test]
fn only_an_existing_class_that_waits_delays_binding() {
    let claim = wait_claim("1G", &[RWO]);
    let classless = self::claim("1G", &[RWO], json!({}));
    let waiting = class("wait", json!("WaitForFirstConsumer"));
    assert_eq!(delays_binding(&claim, Some(&waiting)), Ok(true));
    assert_eq!(delays_binding(&classless, Some(&waiting)), Ok(false));
    assert_eq!(delays_binding(&claim, None), Ok(false));
    assert_eq!(delays_binding(&claim, Some(&class("now", json!("Immediate")))), Ok(false));
    let unsaid = delays_binding(&claim, Some(&class("unsaid", Value::Null)));
    assert_eq!(unsaid, Err(Error::FindBindingMode { class: "unsaid".to_owned() }));
}

#[test]
fn the_satisfy_check_asks_neither_selector_nor_phase_nor_affinity() {
    let mut patch = in_zone("nowhere");
    merge(&mut patch, json!({"status": {"phase": "Pending"}}));
    let volume = volume("pv", "1Gi", &[RWO], patch);
    let mut asking = json!({"spec": {"storageClassName": "wait"}});
    merge(&mut asking, json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}));
    assert_eq!(satisfies(&volume, &claim("1Gi", &[RWO], asking)), Ok(()));
}

#[test]
fn the_satisfy_check_tells_the_first_reason_in_order() {
    let claim = claim(
        "2Gi",
        &[RWX],
        json!({"spec": {"storageClassName": "gold", "volumeAttributesClassName": "fast", "volumeMode": "Block"}}),
    );
    let mut patch = json!({});
    let steps = [
        (json!({"spec": {"capacity": {"storage": "2Gi"}}}), Misfit::TooSmall),
        (json!({"spec": {"storageClassName": "gold"}}), Misfit::OtherClass),
        (json!({"spec": {"volumeAttributesClassName": "fast"}}), Misfit::AttributesClass),
        (json!({"spec": {"volumeMode": "Block"}}), Misfit::VolumeMode),
        (json!({"spec": {"accessModes": [RWX]}}), Misfit::AccessModes),
    ];
    for (repair, misfit) in steps {
        assert_eq!(satisfies(&volume("pv", "1Gi", &[RWO], patch.clone()), &claim), Err(misfit));
        merge(&mut patch, repair);
    }
    assert_eq!(satisfies(&volume("pv", "1Gi", &[RWO], patch), &claim), Ok(()));
}

#[test]
fn a_claim_that_is_to_be_filled_gets_a_reserved_volume_or_none() {
    for field in ["dataSource", "dataSourceRef"] {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "old"});
        let claim = claim("1Gi", &[RWO], json!({"spec": {field: source}}));
        let free = volume("free", "1Gi", &[RWO], json!({}));
        let node = node("a");
        for place in [Place::Anywhere, Place::Undecided, Place::On(&node)] {
            assert_eq!(fits(&free, &claim, place), Err(Misfit::OtherData), "{field} {place:?}");
            for uid in ["", "claim-uid"] {
                let volumes = [free.clone(), volume("made", "5Gi", &[RWO], reserved_for("claim1", uid))];
                assert_eq!(found(&volumes, &claim, place), Some("made"), "{field} {place:?} {uid:?}");
            }
        }
        assert_eq!(satisfies(&free, &claim), Ok(()), "its user names the volume in spec.volumeName");
    }
}

#[test]
fn a_misfit_is_described_with_the_values_that_differ() {
    let volume = volume("pv", "1Gi", &[RWO], json!({}));
    let claim = claim("2Gi", &[RWX], json!({"spec": {"storageClassName": "gold"}}));
    assert_eq!(Misfit::TooSmall.describe(&volume, &claim), "volume \"pv\" has 1Gi, the claim asks for 2Gi");
    assert_eq!(
        Misfit::OtherClass.describe(&volume, &claim),
        "storageClassName of volume \"pv\" is none, the claim asks for \"gold\""
    );
    assert_eq!(
        Misfit::AccessModes.describe(&volume, &claim),
        "volume \"pv\" offers access modes [ReadWriteOnce], the claim asks for [ReadWriteMany]"
    );
}

#[test]
fn an_explanation_counts_the_reasons_most_frequent_first() {
    let mut volumes: Vec<Volume> = (0..5).map(|i| volume(&format!("s{i}"), "1Gi", &[RWO], json!({}))).collect();
    let other = json!({"spec": {"storageClassName": "gold"}});
    volumes.extend((0..7).map(|i| volume(&format!("c{i}"), "9Gi", &[RWO], other.clone())));
    let claim = claim("2Gi", &[RWO], json!({}));
    let why = explain(&volumes, &claim, Place::Anywhere);
    assert_eq!(why.to_string(), "12 volumes: 7 other class, 5 too small");
    assert_eq!((why.total(), why.count(Misfit::TooSmall)), (12, 5));
    assert_eq!(explain([], &claim, Place::Anywhere).to_string(), "no volumes");
    assert_eq!(explain(&volumes[..1], &claim, Place::Anywhere).to_string(), "1 volume: 1 too small");
}

#[test]
fn a_volume_taken_out_of_the_index_is_not_found_any_more() {
    let mut index = Index::default();
    index.insert(Arc::new(volume("pv", "1Gi", &[RWO], json!({}))));
    let claim = claim("1Gi", &[RWO], json!({}));
    assert!(index.smallest_fit(&claim, Place::Anywhere).unwrap().is_some());
    index.insert(Arc::new(volume("pv", "1Gi", &[RWO], reserved_for("other", "u"))));
    assert!(index.smallest_fit(&claim, Place::Anywhere).unwrap().is_none());
    assert_eq!(index.claimed_by_name(&Key::namespaced("default", "other")).count(), 1);
    assert!(index.remove("pv").is_some());
    assert_eq!((index.iter().count(), index.claimed_by_name(&Key::namespaced("default", "other")).count()), (0, 0));
    assert_eq!(index, Index::default(), "no empty shelf is left behind");
}

#[test]
fn telling_why_nothing_fits_looks_at_the_claims_own_class_and_modes_only() {
    let mut index = Index::default();
    for number in 0..500 {
        let other = json!({"spec": {"storageClassName": format!("class{number}")}});
        index.insert(Arc::new(volume(&format!("other{number}"), "9Gi", &[RWO], other)));
        let mut taken = reserved_for(&format!("claim-of-{number}"), "u");
        merge(&mut taken, json!({"spec": {"storageClassName": format!("class{number}")}}));
        index.insert(Arc::new(volume(&format!("taken{number}"), "9Gi", &[RWO], taken)));
    }
    index.insert(Arc::new(volume("small", "1Gi", &[RWO], json!({}))));
    index.insert(Arc::new(volume("pending", "9Gi", &[RWO], json!({"status": {"phase": "Pending"}}))));
    index.insert(Arc::new(volume("read-only", "9Gi", &[ROX], json!({}))));
    index.insert(Arc::new(volume("taken", "9Gi", &[RWO], reserved_for("other", "u"))));
    let claim = claim("2Gi", &[RWO], json!({}));
    assert_eq!(index.census.profiles_asked(&claim).count(), 2);
    assert_eq!(
        index.explain(&claim, Place::Anywhere).to_string(),
        "1004 volumes: 501 taken, 500 other class, 1 other access modes, 1 too small, 1 not available"
    );
}

/// Every part of a volume that a reason can come from.
fn any_odd_volume() -> impl Strategy<Value = Volume> {
    let volume_mode = prop::sample::select(vec!["Filesystem", "Filesystem", "Block"]);
    let attributes = prop::sample::select(vec!["", "", "silver"]);
    let beta_class = prop::sample::select(vec![None, None, None, Some("wait"), Some("gold")]);
    let odd = (volume_mode, attributes, beta_class, prop::bool::weighted(0.1), any::<bool>(), any::<bool>());
    (any_volume(), odd).prop_map(|(mut volume, (volume_mode, attributes, beta_class, deleting, labelled, with_uid))| {
        let patch = json!({
            "metadata": {
                "annotations": beta_class.map(|class| json!({"volume.beta.kubernetes.io/storage-class": class})),
                "deletionTimestamp": deleting.then_some("2025-01-01T00:00:00Z"),
                "labels": labelled.then_some(json!({"tier": "fast"})),
            },
            "spec": {"volumeMode": volume_mode, "volumeAttributesClassName": attributes},
        });
        let odd = self::volume("odd", "1Gi", &[], patch);
        volume.meta.annotations = odd.meta.annotations;
        volume.meta.deletion_timestamp = odd.meta.deletion_timestamp;
        volume.meta.labels = odd.meta.labels;
        volume.spec.volume_mode = odd.spec.volume_mode;
        volume.spec.volume_attributes_class_name = odd.spec.volume_attributes_class_name;
        if let Some(held) = volume.spec.claim_ref.as_mut().filter(|_| with_uid) {
            "claim-uid".clone_into(&mut held.uid);
        }
        volume
    })
}

fn any_volume() -> impl Strategy<Value = Volume> {
    let modes = prop::sample::subsequence(vec![RWO, ROX, RWX], 0..=3);
    let owner = prop::sample::select(vec!["", "", "", "claim1", "other"]);
    let class = prop::sample::select(vec!["", "", "wait"]);
    let phase = prop::sample::select(vec!["Available", "Available", "Available", "Pending"]);
    let zone = prop::sample::select(vec!["", "a", "b"]);
    (0..20_u32, 1..6_u32, modes, owner, class, phase, zone).prop_map(|(n, size, modes, owner, class, phase, zone)| {
        let mut patch = if zone.is_empty() { json!({}) } else { in_zone(zone) };
        if !owner.is_empty() {
            merge(&mut patch, reserved_for(owner, ""));
        }
        merge(&mut patch, json!({"spec": {"storageClassName": class}, "status": {"phase": phase}}));
        volume(&format!("pv{n}"), &format!("{size}Gi"), &modes, patch)
    })
}

proptest! {
    #[test]
    fn the_index_finds_what_the_full_search_finds(
        volumes in prop::collection::vec(any_volume(), 0..30),
        size in 1..6_u32,
        modes in prop::sample::subsequence(vec![RWO, ROX, RWX], 0..=2),
        class in prop::sample::select(vec!["", "wait"]),
        filled in prop::bool::weighted(0.2),
        place in 0..3_u8,
    ) {
        let mut index = Index::default();
        for volume in volumes {
            index.insert(Arc::new(volume));
        }
        let source = filled.then(|| json!({"kind": "PersistentVolumeClaim", "name": "old"}));
        let spec = json!({"storageClassName": class, "dataSource": source});
        let claim = claim(&format!("{size}Gi"), &modes, json!({ "spec": spec }));
        let node = node("a");
        let place = [Place::Anywhere, Place::Undecided, Place::On(&node)][usize::from(place)];
        let name = |volume: Option<&Volume>| volume.map(|volume| volume.meta.name.clone());
        prop_assert_eq!(
            name(index.smallest_fit(&claim, place).unwrap()),
            name(smallest_fit(index.iter(), &claim, place).unwrap())
        );
    }

    #[test]
    fn the_index_counts_what_the_full_search_counts(
        volumes in prop::collection::vec(any_odd_volume(), 0..40),
        taken_out in prop::collection::vec(0..20_u32, 0..5),
        size in 1..6_u32,
        modes in prop::sample::subsequence(vec![RWO, ROX, RWX], 0..=2),
        class in prop::sample::select(vec!["", "", "wait", "gold"]),
        attributes in prop::sample::select(vec!["", "silver"]),
        selects in any::<bool>(),
        filled in prop::bool::weighted(0.2),
        place in 0..3_u8,
    ) {
        let mut index = Index::default();
        for volume in volumes {
            index.insert(Arc::new(volume));
        }
        for number in taken_out {
            index.remove(&format!("pv{number}"));
        }
        let mut asked = json!({"spec": {"storageClassName": class, "volumeAttributesClassName": attributes}});
        if selects {
            merge(&mut asked, json!({"spec": {"selector": {"matchLabels": {"tier": "fast"}}}}));
        }
        if filled {
            merge(&mut asked, json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"}}}));
        }
        let claim = claim(&format!("{size}Gi"), &modes, asked);
        let node = node("a");
        let place = [Place::Anywhere, Place::Undecided, Place::On(&node)][usize::from(place)];
        let plain = explain(index.iter(), &claim, place);
        prop_assert_eq!(index.explain(&claim, place).to_string(), plain.to_string());
        prop_assert_eq!(index.explain(&claim, place), plain);
    }
}
