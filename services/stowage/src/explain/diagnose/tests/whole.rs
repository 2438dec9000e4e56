use serde_json::{Value, json};

use crate::explain::report::Mark;
use crate::explain::show;

use super::*;

fn runs(world: &mut Value) {
    world["pods"][0]["status"]["phase"] = "Running".into();
}

#[test]
fn where_all_is_well_nothing_is_told_and_nothing_is_stuck() {
    for wanted in [claim, pod, volume, snapshot] {
        let report = report(wanted(), runs);
        let story = &report.stories[0];
        assert_eq!((story.state(), report.is_stuck()), (State::Fine, false), "{report:#?}");
        assert!(story.steps.iter().all(|step| step.mark == Mark::Done), "{story:#?}");
    }
    let report = report(all(), runs);
    assert_eq!(report.stories, []);
    let text = show::text(&report, false);
    assert!(text.contains("every claim, pod, volume and snapshot that was seen is where it should be"), "{text}");
}

#[test]
fn of_all_there_is_one_line_each_with_the_worst_first() {
    let report = report(all(), |w| {
        unbound(w);
        with_policy(w, "WaitForFirstConsumer");
        let mut lost = good()["claims"][0].clone();
        lost["metadata"]["name"] = "lost".into();
        lost["status"]["phase"] = "Lost".into();
        w["claims"].as_array_mut().unwrap().push(lost);
    });
    let states: Vec<State> = report.stories.iter().map(|story| story.state()).collect();
    assert_eq!(states, [State::Stuck, State::Waiting]);
    let text = show::text(&report, false);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("STUCK  pvc default/lost  Lost"), "{text}");
    assert!(lines[1].starts_with("waits  pvc default/data  Pending 10m"), "{text}");
    assert!(lines[2].starts_with("1 stuck, 1 waiting"), "{text}");
    assert!(report.is_stuck());
}

#[test]
fn the_steps_say_what_is_done_where_it_is_and_what_is_not_yet() {
    let report = report(claim(), unbound);
    let marks: Vec<(&str, Mark)> = report.stories[0].steps.iter().map(|step| (step.name.as_str(), step.mark)).collect();
    assert_eq!(
        marks,
        [
            ("claim created", Mark::Done),
            ("class \"fast\" has provisioner d.example.com", Mark::Done),
            ("pv-controller asks the provisioner", Mark::Done),
            ("d.example.com makes the volume", Mark::Here),
            ("pv-controller binds it", Mark::NotYet),
        ]
    );
}

#[test]
fn colour_is_only_where_it_was_asked_for_and_machines_get_stable_words() {
    let report = report(claim(), |w| {
        unbound(w);
        w["claims"][0]["spec"]["storageClassName"] = "gold".into();
    });
    let (plain, coloured) = (show::text(&report, false), show::text(&report, true));
    assert!(!plain.contains('\x1b') && coloured.contains("\x1b[1;31mSTUCK"), "{plain}{coloured}");
    assert!(plain.contains("way out: create StorageClass \"gold\""), "{plain}");
    let json = show::json(&report);
    assert_eq!(json["stuck"], true);
    let cause = &json["objects"][0]["causes"][0];
    assert_eq!((&cause["id"], &cause["state"]), (&json!("class-missing"), &json!("stuck")));
    assert_eq!(cause["next"]["component"], "you");
}

#[test]
fn what_may_not_be_read_is_named_and_the_rest_is_told() {
    let mut world = good();
    unbound(&mut world);
    world["leases"] = Value::Null;
    let mut gathered = gathered(claim(), &world);
    let why = "forbidden: list leases is not among your rights".to_owned();
    gathered.unread.push(crate::explain::Unread { kind: kinds::LEASE, why });
    let text = show::text(&diagnose(&gathered, NOW.parse().unwrap()), false);
    assert!(text.contains("not read: leases: forbidden") && text.contains("Leases may not be read"), "{text}");
}

/// As many claims, volumes, pods and events, of which every other claim is not bound and nothing is where it should be.
fn many(count: usize) -> Gathered {
    let world = good();
    let copies = |kind: &str, edit: fn(&mut Value, usize)| {
        let one = &world[kind][0];
        let named = |number: usize| {
            let mut copy = one.clone();
            copy["metadata"]["name"] = format!("{kind}-{number}").into();
            copy["metadata"]["uid"] = copy["metadata"]["name"].clone();
            edit(&mut copy, number);
            copy
        };
        Value::from((0..count).map(named).collect::<Vec<_>>())
    };
    let mut world = world.clone();
    world["claims"] = copies("claims", |claim, number| {
        claim["spec"]["volumeName"] = format!("volumes-{number}").into();
        if number % 2 == 0 {
            claim["spec"] = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "manual" });
            claim["status"] = json!({ "phase": "Pending" });
        }
    });
    world["volumes"] = copies("volumes", |_, _| {});
    world["attachments"] = copies("attachments", |attachment, number| {
        attachment["spec"]["source"]["persistentVolumeName"] = format!("volumes-{number}").into();
    });
    world["pods"] = copies("pods", |pod, number| {
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = format!("claims-{number}").into();
    });
    let event = |number| event("Pod", &format!("pods-{number}"), "FailedMount", "no");
    world["events"] = (0..count).map(event).collect::<Vec<_>>().into();
    gathered(all(), &world)
}

#[test]
fn a_survey_of_thousands_has_a_story_for_each_of_them() {
    let report = diagnose(&many(2_000), NOW.parse().unwrap());
    assert!(report.stories.len() >= 2 * 2_000, "{}", report.stories.len());
}

#[test]
fn the_leases_of_all_whose_turn_it_may_be_are_looked_for() {
    let mut world = good();
    world["claims"][0]["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] =
        "asked.example.com".into();
    world["volumes"][0]["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/migrated-to": "heir.example.com", "pv.kubernetes.io/provisioned-by": "kubernetes.io/old",
    });
    let drivers: Vec<String> = gathered(all(), &world).drivers_in_play().into_iter().collect();
    assert_eq!(drivers, ["asked.example.com", DRIVER, "heir.example.com"]);
}
