//! Rule 1: what each service asks the API for is in docs/rights.md, and a sidecar asks for no more than its original.

use std::collections::{BTreeMap, BTreeSet};

use simulation_suite::block_on;
use simulation_suite::claim_life::Kind;
use simulation_suite::life::{Script, play};
use stowage_services::{Place, find};
use stowage_testing::World;

type Rights = BTreeMap<(String, String), BTreeSet<String>>;

/// The roles that the originals ship, with the rules they ship commented out (secrets) as far as they name them.
const SHIPPED: [(&str, &str, &str); 37] = [
    ("provisioner", "persistentvolumes", "get list watch create patch delete"),
    ("provisioner", "persistentvolumeclaims", "get list watch update"),
    ("provisioner", "storageclasses", "get list watch"),
    ("provisioner", "csinodes", "get list watch"),
    ("provisioner", "nodes", "get list watch"),
    ("provisioner", "volumeattachments", "get list watch"),
    ("provisioner", "events", "list watch create update patch"),
    ("provisioner", "volumesnapshots", "get list watch update"),
    ("provisioner", "volumesnapshotcontents", "get list"),
    ("provisioner", "leases", "get watch list delete update create"),
    ("provisioner", "csistoragecapacities", "get list watch create update patch delete"),
    ("provisioner", "pods", "get"),
    ("provisioner", "replicasets", "get"),
    ("provisioner", "secrets", "get list"),
    ("attacher", "persistentvolumes", "get list watch patch"),
    ("attacher", "csinodes", "get list watch"),
    ("attacher", "volumeattachments", "get list watch patch"),
    ("attacher", "volumeattachments/status", "patch"),
    ("attacher", "leases", "get watch list delete update create"),
    ("attacher", "secrets", "get list"),
    ("resizer", "persistentvolumes", "get list watch patch"),
    ("resizer", "persistentvolumeclaims", "get list watch"),
    ("resizer", "persistentvolumeclaims/status", "patch"),
    ("resizer", "pods", "get list watch"),
    ("resizer", "events", "list watch create update patch"),
    ("resizer", "volumeattributesclasses", "get list watch"),
    ("resizer", "leases", "get watch list delete update create"),
    ("resizer", "secrets", "get list watch"),
    ("snapshotter", "events", "list watch create update patch"),
    ("snapshotter", "volumesnapshotclasses", "get list watch"),
    ("snapshotter", "volumesnapshotcontents", "get list watch update patch"),
    ("snapshotter", "volumesnapshotcontents/status", "update patch"),
    ("snapshotter", "volumegroupsnapshotclasses", "get list watch"),
    ("snapshotter", "volumegroupsnapshotcontents", "get list watch update patch"),
    ("snapshotter", "volumegroupsnapshotcontents/status", "update patch"),
    ("snapshotter", "leases", "get watch list delete update create"),
    ("snapshotter", "secrets", "get list"),
];

/// What the originals ask for as well where it is needed, and forgot to ship: without the right, an event says so.
const FORGOTTEN: [(&str, &str, &str); 1] = [("provisioner", "volumeattributesclasses", "get")];

fn verbs(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn documented() -> Rights {
    let page = include_str!("../../../docs/rights.md");
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| service"));
    let cells = |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let rights: Rights =
        rows.map(cells).map(|cells| ((cells[1].clone(), cells[2].clone()), verbs(&cells[3]))).collect();
    assert!(rights.len() > 40, "the table of docs/rights.md was not found");
    rights
}

#[test]
fn no_service_asks_for_more_than_its_row_in_the_docs() {
    let documented = documented();
    let mut missing = BTreeSet::new();
    for binding in [Kind::Immediate, Kind::WaitForFirstConsumer] {
        let used = block_on(async {
            let world = World::new(1);
            let report = play(&world, &Script::plain(1, binding)).await;
            assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
            world.trace().rights()
        });
        assert!(used.len() > 40, "the life makes use of many rights, only {} were noted", used.len());
        for (service, right) in used {
            let row = documented.get(&(service.clone(), right.resource.clone()));
            if !row.is_some_and(|verbs| verbs.contains(right.verb)) {
                missing.insert(format!("{service}: {} {}", right.verb, right.resource));
            }
        }
    }
    assert!(missing.is_empty(), "asked for, but not in docs/rights.md:\n{}", Vec::from_iter(missing).join("\n"));
}

#[test]
fn no_sidecar_needs_more_than_the_role_its_original_ships() {
    let shipped: Rights = SHIPPED
        .iter()
        .chain(&FORGOTTEN)
        .map(|(service, resource, text)| (((*service).to_owned(), (*resource).to_owned()), verbs(text)))
        .collect();
    for ((service, resource), verbs) in documented() {
        if find(&service).is_none_or(|service| service.place != Place::Sidecar) {
            continue;
        }
        let granted = shipped.get(&(service.clone(), resource.clone())).cloned().unwrap_or_default();
        let more: Vec<&String> = verbs.difference(&granted).collect();
        assert!(more.is_empty(), "{service} needs {more:?} on {resource}, which the original's role does not give");
    }
}
