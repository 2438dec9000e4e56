//! "Swap the image" must not need new rights.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use snapshot_controller::Options;
use stowage_model::object::kinds;

use super::stage::{DRIVER, Snapshotter, Stage, named};

/// The role that external-snapshotter 8.6 ships with its snapshot-controller, and its leases.
const SHIPPED: &str = "
persistentvolumes get list watch
persistentvolumeclaims get list watch update
events list watch create update patch
volumesnapshotclasses get list watch
volumesnapshotcontents create get list watch update delete patch
volumesnapshotcontents/status patch
volumesnapshots create get list watch update patch delete
volumesnapshots/status update patch
volumegroupsnapshotclasses get list watch
volumegroupsnapshotcontents create get list watch update delete patch
volumegroupsnapshotcontents/status patch
volumegroupsnapshots get list watch update patch
volumegroupsnapshots/status update patch
nodes get list watch
leases get watch list delete update create
";

fn shipped() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let rules = SHIPPED.lines().filter_map(|line| line.split_once(' '));
    rules.map(|(resource, verbs)| (resource, verbs.split(' ').collect())).collect()
}

fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = include_str!("../../../../docs/rights.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| snapshot-controller | ")?.strip_suffix(" |"));
    let rights = rows.filter_map(|row| row.split_once(" | "));
    rights.map(|(resource, verbs)| (resource.into(), verbs.split(' ').map(str::to_owned).collect())).collect()
}

#[test]
fn the_row_in_the_docs_is_no_more_than_the_shipped_role() {
    let (shipped, documented) = (shipped(), documented());
    assert!(documented.len() > 10, "the table of docs/rights.md was not found");
    for (resource, verbs) in documented {
        let allowed = &shipped[resource.as_str()];
        assert!(verbs.iter().all(|verb| allowed.contains(verb.as_str())), "{resource}: {verbs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_that_is_not_in_the_docs() {
    let stage = Stage::set().await;
    stage.add_claim("rows", &json!({ "app": "db" })).await;
    let class = json!({ "metadata": { "name": "together" }, "driver": DRIVER, "deletionPolicy": "Delete" });
    stage.create(kinds::VOLUME_GROUP_SNAPSHOT_CLASS, class).await;
    let options = Options { distributed_snapshotting: true, ..Options::default() };
    stage
        .play(options, Snapshotter::Ready, async {
            let group = json!({
                "metadata": { "namespace": "shop", "name": "all" },
                "spec": {
                    "source": { "selector": { "matchLabels": { "app": "db" } } },
                    "volumeGroupSnapshotClassName": "together",
                },
            });
            stage.create(kinds::VOLUME_GROUP_SNAPSHOT, group).await;
            stage.snapshot("nightly", Some("gold")).await;
            stage.snapshot("broken", Some("gone")).await;
            stage.until_ready("nightly").await;
            let snapshots = || stage.world.admin().list::<stowage_model::VolumeSnapshot>();
            stage.until("the member is ready", || snapshots().iter().filter(|s| s.is_ready()).count() == 2).await;
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("nightly")).await.unwrap();
            stage.world.admin().delete(kinds::VOLUME_GROUP_SNAPSHOT, &named("all")).await.unwrap();
            stage.until("all are gone", || snapshots().len() == 1).await;
        })
        .await;
    let documented = documented();
    let asked = stage.world.trace().rights();
    let allowed = |resource: &str, verb: &str| documented.get(resource).is_some_and(|verbs| verbs.contains(verb));
    let missing: Vec<_> = asked.iter().filter(|(_, right)| !allowed(&right.resource, right.verb)).collect();
    assert!(missing.is_empty() && asked.len() > 20, "{missing:#?}");
}
