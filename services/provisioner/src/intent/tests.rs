use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 ./'\"\\\\\u{e9}\u{1F4BE}=-]{0,12}"
}

fn secret() -> impl Strategy<Value = Option<SecretRef>> {
    proptest::option::of((text(), text()).prop_map(|(namespace, name)| SecretRef { namespace, name }))
}

fn secrets() -> impl Strategy<Value = SecretRefs> {
    let pair = || (secret(), secret());
    (pair(), pair(), pair(), secret()).prop_map(|(a, b, c, controller_modify)| SecretRefs {
        provisioner: a.0,
        controller_publish: a.1,
        node_stage: b.0,
        node_publish: b.1,
        controller_expand: c.0,
        node_expand: c.1,
        controller_modify,
    })
}

/// Each once, as in any list that is made here: where equal ones stand, nobody can tell which was meant.
fn places() -> impl Strategy<Value = Vec<Segments>> {
    let places = proptest::collection::btree_set(proptest::collection::btree_map(text(), text(), 0..3), 0..3);
    places.prop_map(|places| places.into_iter().collect())
}

prop_compose! {
    fn source()(is_claim in any::<bool>(), released in any::<bool>(), texts in (text(), text(), text(), text())) -> Source {
        let (namespace, name, uid, handle) = texts;
        let kind = if is_claim { SourceKind::Claim } else { SourceKind::Snapshot };
        Source { kind, namespace, name, uid, handle, released }
    }
}

prop_compose! {
    fn request()(
        bytes in 0..i64::MAX,
        modes in proptest::collection::vec(1..8_i32, 0..4),
        mount in proptest::option::of((text(), proptest::collection::vec(text(), 0..3))),
        parameters in proptest::collection::btree_map(text(), text(), 0..4),
        places in proptest::option::of((places(), 0..3_usize)),
        source in proptest::option::of(source()),
        attributes in proptest::option::of((text(), proptest::collection::btree_map(text(), text(), 0..3))),
    ) -> Request {
        let mount = mount.map(|(fs_type, flags)| Mount { fs_type, flags });
        let places = places.map(|(all, first)| {
            let first = first % all.len().max(1);
            Requirement { requisite: Places::of(all), first }
        });
        let attributes = attributes.map(|(class, parameters)| Attributes { class, parameters });
        let node = places.as_ref().map(|_| "n1".to_owned());
        Request { bytes, modes, mount, parameters, places, node, source, attributes }
    }
}

prop_compose! {
    /// Any intent at all.
    pub fn any_intent()(
        claim in (text(), text(), "[a-f0-9-]{1,36}"),
        volume in text(),
        request in request(),
        secrets in secrets(),
        class in (text(), text(), proptest::collection::vec(text(), 0..3), proptest::option::of(text())),
    ) -> Intent {
        let claim = ClaimId { namespace: claim.0, name: claim.1, uid: claim.2 };
        let class = ClassPart { name: class.0, reclaim_policy: class.1, mount_options: class.2, plugin: class.3 };
        Intent::new(claim, volume, request, secrets, class)
    }
}

proptest! {
    #[test]
    fn a_record_reads_back_as_it_was_written(intent in any_intent()) {
        prop_assert_eq!(Intent::decode(&intent.encode(), |_| None).unwrap(), intent);
    }

    #[test]
    fn replaying_a_record_sends_the_very_same_request(intent in any_intent()) {
        let replayed = Intent::decode(&intent.encode(), |_| None).unwrap();
        prop_assert_eq!(replayed.create_volume(BTreeMap::new()), intent.create_volume(BTreeMap::new()));
    }

    #[test]
    fn no_text_makes_reading_a_record_fail_in_any_other_way(text in ".{0,64}") {
        let _ = Intent::decode(&text, |_| None);
    }
}

#[test]
fn a_record_of_before_sources_were_let_go_holds_its_own() {
    let text = r#"{"kind":"snapshot","namespace":"shop","name":"nightly","uid":"s-1","handle":"pool-a/s1"}"#;
    let source: Source = serde_json::from_str(text).unwrap();
    assert!(!source.released);
    assert_eq!(serde_json::to_string(&source).unwrap(), text, "what holds nothing is written as before");
}

#[test]
fn a_record_of_a_newer_version_is_refused_with_the_way_out() {
    let error = Intent::decode(r#"{"v":6,"whatever":true}"#, |_| None).unwrap_err();
    assert_eq!(error.to_string(), "the record has version 6, this provisioner knows 5; run the newer one to settle it");
}

#[test]
fn the_values_of_secrets_are_in_the_call_and_not_in_the_record() {
    let claim = ClaimId { namespace: "shop".into(), name: "db".into(), uid: "u1".into() };
    let reference = SecretRef { namespace: "kube-system".into(), name: "keys".into() };
    let secrets = SecretRefs { provisioner: Some(reference), ..SecretRefs::default() };
    let intent = Intent::new(claim, "pvc-u1".into(), Request::default(), secrets, ClassPart::default());
    let call = intent.create_volume(BTreeMap::from([("password".into(), "hunter2".into())]));
    assert_eq!(call.secrets["password"], "hunter2");
    assert!(!intent.encode().contains("hunter2"));
    assert!(!format!("{call:?}").contains("hunter2"));
    assert!(intent.encode().contains(r#""provisioner":{"namespace":"kube-system","name":"keys"}"#));
}

#[test]
fn a_record_without_places_is_one_that_older_provisioners_read() {
    let claim = ClaimId { namespace: "shop".into(), name: "db".into(), uid: "u1".into() };
    let intent = Intent::new(claim, "pvc-u1".into(), Request::default(), SecretRefs::default(), ClassPart::default());
    assert!(intent.encode().starts_with(r#"{"v":1,"#) && !intent.encode().contains("places"));
}
