use serde_json::Value;

use crate::explain::report::Leader;
use crate::explain::show;

use super::*;

/// A claim that its provisioner has just been asked for.
fn asked(world: &mut Value) {
    unbound(world);
    world["claims"][0]["metadata"]["creationTimestamp"] = FRESH.into();
}

/// One that waits for the pv-controller alone.
fn unasked(world: &mut Value) {
    asked(world);
    world["claims"][0]["metadata"]["annotations"] = Value::Null;
}

fn edited(world: &mut Value, name: &str, edit: impl Fn(&mut Value)) {
    let leases = world["leases"].as_array_mut().unwrap();
    leases.iter_mut().filter(|one| one["metadata"]["name"] == name).for_each(edit);
}

fn first(spoil: Spoil) -> Cause {
    report(claim(), spoil).stories.remove(0).causes.remove(0)
}

#[test]
fn a_lease_of_the_name_in_another_namespace_is_not_that_of_a_component_of_the_cluster() {
    let cause = first(|w| {
        unasked(w);
        renewed(w, "kube-controller-manager", "2026-01-01T00:05:00Z");
        let mut fake = lease("kube-controller-manager");
        fake["metadata"]["namespace"] = "shop".into();
        w["leases"].as_array_mut().unwrap().push(fake);
    });
    assert!(matches!(&cause.who.leader, Leader::Stale { lease, .. } if lease.namespace == "kube-system"), "{cause:#?}");
}

#[test]
fn a_lease_from_the_future_outdoes_none_and_proves_nothing() {
    let cause = first(|w| {
        asked(w);
        let mut fake = lease("d-example-com");
        fake["metadata"]["namespace"] = "shop".into();
        fake["spec"]["renewTime"] = "2099-01-01T00:00:00Z".into();
        w["leases"].as_array_mut().unwrap().push(fake);
    });
    assert!(matches!(&cause.who.leader, Leader::Alive { lease, .. } if lease.namespace == "kube-system"), "{cause:#?}");
    let cause = first(|w| {
        asked(w);
        renewed(w, "d-example-com", "2099-01-01T00:00:00Z");
    });
    assert!(matches!(cause.who.leader, Leader::Ahead { .. }), "{cause:#?}");
    assert_eq!((cause.id, cause.state), ("provisioner-silent", State::Working));
}

#[test]
fn a_lease_that_was_just_given_back_is_somebody_elses_soon() {
    let given_back = |w: &mut Value| {
        asked(w);
        edited(w, "d-example-com", |one| one["spec"]["holderIdentity"] = "".into());
    };
    let mut world = good();
    given_back(&mut world);
    let state = |world: &Value| diagnose(&gathered(claim(), world), NOW.parse().unwrap()).stories[0].state();
    assert_eq!(state(&world), State::Working);
    renewed(&mut world, "d-example-com", "2026-01-01T00:09:00Z");
    assert_eq!(state(&world), State::Stuck);
}

#[test]
fn whoever_writes_a_lease_or_a_class_moves_no_cursor() {
    let report = report(claim(), |w| {
        unbound(w);
        w["classes"][0]["provisioner"] = "d\u{1b}[2J".into();
        w["claims"][0]["spec"]["volumeName"] = "pv\u{1b}[2J".into();
        edited(w, "kube-controller-manager", |one| one["spec"]["holderIdentity"] = "me\u{1b}[2J".into());
    });
    let text = show::text(&report, false);
    assert!(text.contains("binds it to pv\u{fffd}[2J") && !text.contains('\u{1b}'), "{text}");
    let report = self::report(claim(), |w| {
        unasked(w);
        edited(w, "kube-controller-manager", |one| one["spec"]["holderIdentity"] = "me\u{1b}[2J".into());
    });
    let text = show::text(&report, false);
    assert!(text.contains("me\u{fffd}[2J holds Lease") && !text.contains('\u{1b}'), "{text}");
}
