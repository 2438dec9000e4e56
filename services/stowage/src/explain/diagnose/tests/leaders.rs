use serde_json::{Value, json};

use crate::explain::report::Leader;
use crate::explain::show;

use super::super::work::Work;
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
    let mut world = good();
    unbound(&mut world);
    edited(&mut world, "d-example-com", |one| one["spec"]["holderIdentity"] = "".into());
    let id = |world: &Value| diagnose(&gathered(claim(), world), NOW.parse().unwrap()).stories[0].causes[0].id;
    assert_eq!(id(&world), "provisioner-silent");
    renewed(&mut world, "d-example-com", "2026-01-01T00:09:00Z");
    assert_eq!(id(&world), "provisioner-dead");
}

#[test]
fn what_was_just_asked_of_a_dead_component_is_not_stuck_yet() {
    for spoil in [asked as Spoil, unasked] {
        let mut world = good();
        spoil(&mut world);
        world["leases"].as_array_mut().unwrap().iter_mut().for_each(|one| one["spec"]["renewTime"] = THEN.into());
        let mut states = ["2026-01-01T00:10:00Z", "2026-01-01T00:10:30Z"].map(|now| {
            let story = diagnose(&gathered(claim(), &world), now.parse().unwrap()).stories.remove(0);
            (story.causes[0].who.leader.clone(), story.state())
        });
        assert!(states.iter().all(|(leader, _)| matches!(leader, Leader::Stale { .. })), "{states:#?}");
        assert_eq!(states.each_mut().map(|(_, state)| *state), [State::Working, State::Stuck]);
    }
}

/// The sidecars ran with an election once, and run without.
fn abandoned(world: &mut Value) {
    unbound(world);
    world["leases"].as_array_mut().unwrap().iter_mut().for_each(|one| one["spec"]["renewTime"] = THEN.into());
}

#[test]
fn a_lease_of_old_proves_nothing_of_who_has_worked_since() {
    let told = |component: &str, at: &str| {
        let mut told = event("PersistentVolumeClaim", "other", "ProvisioningFailed", "no");
        told["source"]["component"] = component.into();
        told["lastTimestamp"] = at.into();
        told
    };
    let leader = |work: &dyn Fn(&mut Value)| {
        let mut world = good();
        abandoned(&mut world);
        work(&mut world);
        diagnose(&gathered(claim(), &world), NOW.parse().unwrap()).stories.remove(0).causes.remove(0).who.leader
    };
    let made = |w: &mut Value, at: &str| {
        w["volumes"] = good()["volumes"].clone();
        w["volumes"][0]["metadata"]["creationTimestamp"] = at.into();
        w["volumes"][0]["metadata"]["annotations"] = json!({ "pv.kubernetes.io/provisioned-by": DRIVER });
        w["volumes"][0]["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "other", "uid": "u" });
    };
    let is_left = |leader: Leader| matches!(leader, Leader::Abandoned { .. });
    assert!(is_left(leader(&|w| w["events"] = json!([told("d.example.com_host_1", "2026-01-01T00:05:00Z")]))));
    assert!(is_left(leader(&|w| made(w, "2026-01-01T00:05:00Z"))));
    for dead in [
        leader(&|_| {}),
        // It worked until it died.
        leader(&|w| w["events"] = json!([told("d.example.com_host_1", "2026-01-01T00:00:10Z")])),
        leader(&|w| made(w, "2026-01-01T00:00:10Z")),
        leader(&|w| w["events"] = json!([told("d.example.com_host_1", "2099-01-01T00:00:00Z")])),
        // Others have worked.
        leader(&|w| w["events"] = json!([told("other.example.com_host_1", "2026-01-01T00:05:00Z")])),
        leader(&|w| w["events"] = json!([told("external-resizer d.example.com", "2026-01-01T00:05:00Z")])),
    ] {
        assert!(matches!(dead, Leader::Stale { .. }), "{dead:#?}");
    }
}

#[test]
fn every_component_is_known_by_its_work() {
    let mut world = good();
    let work = |world: &Value| {
        let gathered = gathered(all(), world);
        let known = Work::new(&gathered, NOW.parse().unwrap());
        let drivers = ["provisioner", "attacher", "resizer", "snapshotter"].map(|service| known.last(service, DRIVER));
        let cluster = ["pv-controller", "attach-detach-controller", "scheduler", "snapshot-controller"];
        drivers.into_iter().chain(cluster.map(|service| known.last(service, ""))).collect::<Vec<_>>()
    };
    let (then, fresh) = (THEN.parse().unwrap(), FRESH.parse().unwrap());
    let (then, fresh): (Option<Timestamp>, Option<Timestamp>) = (Some(then), Some(fresh));
    assert_eq!(work(&world), [None, then, None, then, then, then, None, then]);
    let tellers = ["d.example.com_host_1", "external-resizer d.example.com", "csi-snapshotter d.example.com"];
    let others = [
        "persistentvolume-controller",
        "attachdetach-controller",
        "default-scheduler",
        "snapshot-controller",
        "kubelet",
    ];
    let told = tellers.iter().chain(&others).map(|component| {
        let mut told = event("Pod", "web", "Anything", "");
        told["source"]["component"] = (*component).into();
        told["lastTimestamp"] = FRESH.into();
        told
    });
    world["events"] = told.collect::<Vec<_>>().into();
    world["attachments"][0]["status"]["detachError"] = json!({ "time": FRESH, "message": "busy" });
    assert_eq!(work(&world), [fresh; 8]);
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
