use serde_json::{Value, json};

use snapshot_controller::Options;
use stowage_model::object::{Key, kinds};
use stowage_model::{VolumeGroupSnapshot, VolumeSnapshot, finalizers, labels};
use stowage_testing::{Fault, Mode};

use super::stage::{DRIVER, SERVICE, Snapshotter, Stage, named};

async fn set() -> Stage {
    let stage = Stage::set().await;
    stage.add_claim("logs", &json!({ "app": "db", "tier": "log" })).await;
    stage.add_claim("rows", &json!({ "app": "db", "tier": "data" })).await;
    stage.add_claim("other", &json!({ "app": "db", "tier": "scratch" })).await;
    let class = json!({ "metadata": { "name": "together" }, "driver": DRIVER, "deletionPolicy": "Delete" });
    stage.create(kinds::VOLUME_GROUP_SNAPSHOT_CLASS, class).await;
    stage
}

async fn snapshot_group(stage: &Stage) -> Value {
    let selector = json!({
        "matchLabels": { "app": "db" },
        "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["scratch"] }],
    });
    let body = json!({
        "metadata": { "namespace": "shop", "name": "all" },
        "spec": { "source": { "selector": selector }, "volumeGroupSnapshotClassName": "together" },
    });
    stage.create(kinds::VOLUME_GROUP_SNAPSHOT, body).await
}

fn group(stage: &Stage) -> Option<VolumeGroupSnapshot> {
    stage.world.admin().get(&named("all"))
}

fn members(stage: &Stage) -> Vec<VolumeSnapshot> {
    stage.world.admin().list()
}

async fn until_ready(stage: &Stage) {
    let ready = || {
        let members = members(stage);
        group(stage).is_some_and(|group| group.is_ready()) && members.len() == 2 && members.iter().all(|m| m.is_ready())
    };
    stage.until("the group and its members are ready", ready).await;
}

async fn delete(stage: &Stage) {
    stage.world.admin().delete(kinds::VOLUME_GROUP_SNAPSHOT, &named("all")).await.unwrap();
    stage.until("the group is gone", || group(stage).is_none()).await;
    stage.until("so are its members", || members(stage).is_empty()).await;
    stage.until("and their contents", || stage.contents().is_empty()).await;
    assert!(stage.world.admin().list_raw(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_is_made_of_the_claims_that_the_whole_selector_chooses_and_goes_as_a_whole() {
    let stage = set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            snapshot_group(&stage).await;
            until_ready(&stage).await;
            let members = members(&stage);
            let mut claims: Vec<_> =
                members.iter().map(|m| m.spec.source.persistent_volume_claim_name.clone().unwrap()).collect();
            claims.sort();
            assert_eq!(claims, ["logs", "rows"], "matchExpressions count too");
            for member in &members {
                assert!(member.meta.has_finalizer(finalizers::SNAPSHOT_IN_GROUP));
                let status = member.status.as_ref().unwrap();
                assert_eq!(status.volume_group_snapshot_name.as_deref(), Some("all"));
                assert_eq!(status.restore_size.as_deref(), Some("4Ki"));
            }
            stage.world.settle().await;
            // Two for the group, its status, and four for each member.
            assert_eq!(stage.writes().len(), 3 + 4 * 2, "{:#?}", stage.writes());
            // One member alone does not go.
            let one = named(&members[0].meta.name);
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &one).await.unwrap();
            let told = || stage.reasons(&one.name).contains(&"SnapshotDeletePending".to_owned());
            stage.until("why it stays is told", told).await;
            assert_eq!(stage.contents().len(), 2);
            delete(&stage).await;
        })
        .await;
    let reasons = stage.reasons("all");
    for reason in ["CreatingGroupSnapshot", "GroupSnapshotCreated", "GroupSnapshotReady"] {
        assert!(reasons.contains(&reason.to_owned()), "{reasons:?}");
    }
    assert_eq!(stage.missed_wakeups(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_deleted_before_it_is_bound_leaves_nothing_behind() {
    let stage = set().await;
    stage
        .play(Options::default(), Snapshotter::Silent, async {
            snapshot_group(&stage).await;
            let made = || !stage.world.admin().list_raw(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT).is_empty();
            stage.until("its content is made", made).await;
            assert_eq!(group(&stage).unwrap().bound_content(), None);
            delete(&stage).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_a_group_is_made_and_goes_as_a_whole() {
    let story = async |stage: &Stage| {
        snapshot_group(stage).await;
        until_ready(stage).await;
        delete(stage).await;
    };
    let recording = set().await;
    recording.play(Options::default(), Snapshotter::Ready, story(&recording)).await;
    let points = recording.world.trace().text().lines().filter(|line| line.starts_with(SERVICE)).count();
    let mut swept = 0;
    for number in 1..=points {
        for mode in [Mode::Before, Mode::AnswerLost, Mode::AnswerLostAlive] {
            let stage = set().await;
            stage.world.arm(Fault { service: SERVICE.into(), number, mode }, None);
            stage.play(Options::default(), Snapshotter::Ready, story(&stage)).await;
            swept += usize::from(!stage.world.is_armed());
        }
    }
    stowage_testing::tell(&format!("{swept} of {points} points swept"));
    assert!(swept > 40, "{swept}");
}

#[tokio::test(start_paused = true)]
async fn without_the_gate_groups_are_left_alone() {
    let stage = set().await;
    let options = Options { group_snapshots: false, ..Options::default() };
    stage
        .play(options, Snapshotter::Ready, async {
            snapshot_group(&stage).await;
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
        })
        .await;
    assert_eq!(group(&stage).unwrap().status, None);
}

#[tokio::test(start_paused = true)]
async fn while_contents_of_groups_are_not_served_nothing_is_said_and_their_first_empty_list_goes_on() {
    let stage = set().await;
    let admin = stage.world.admin();
    let name = Key::cluster("volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io");
    let definition = admin.get_raw(kinds::DEFINITION, &name).unwrap();
    admin.delete(kinds::DEFINITION, &name).await.unwrap();
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            snapshot_group(&stage).await;
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
            stage.world.settle().await;
            let resting = group(&stage).unwrap();
            assert_eq!((resting.status, resting.meta.finalizers.len()), (None, 0));
            let notes = &definition["metadata"]["annotations"];
            let again = json!({ "metadata": { "name": name.name, "annotations": notes }, "spec": definition["spec"] });
            stage.create(kinds::DEFINITION, again).await;
            let ready = || group(&stage).is_some_and(|group| group.is_ready());
            stage.until("the group is ready", ready).await;
        })
        .await;
    assert_eq!(stage.reasons("all").first().map(String::as_str), Some("CreatingGroupSnapshot"));
    assert_eq!(stage.missed_wakeups(), 0);
}

/// Two nodes, and the volumes of the group each where one of them is.
async fn set_in_zones(zones: [&str; 2]) -> Stage {
    let stage = set().await;
    for (name, zone) in [("a", "north"), ("b", "south")] {
        let node = json!({ "metadata": { "name": name, "labels": { "zone": zone } } });
        stage.create(kinds::NODE, node).await;
    }
    for (volume, zone) in ["pv-logs", "pv-rows"].into_iter().zip(zones) {
        let local = json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] },
        ] } } } });
        stage.world.admin().patch(kinds::VOLUME, &Key::cluster(volume), "", &local).await.unwrap();
    }
    stage
}

#[tokio::test(start_paused = true)]
async fn where_nodes_make_their_own_snapshots_a_group_on_one_node_is_made_by_that() {
    let stage = set_in_zones(["south", "south"]).await;
    let options = Options { distributed_snapshotting: true, ..Options::default() };
    stage
        .play(options, Snapshotter::Ready, async {
            snapshot_group(&stage).await;
            until_ready(&stage).await;
        })
        .await;
    let of_group = stage.world.admin().list_raw(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT);
    let of_members = stage.world.admin().list_raw(kinds::VOLUME_SNAPSHOT_CONTENT);
    let all = of_group.iter().chain(&of_members);
    let managers: Vec<_> = all.map(|content| &content["metadata"]["labels"][labels::SNAPSHOT_MANAGED_BY]).collect();
    assert_eq!(managers, ["b"; 3]);
}

#[tokio::test(start_paused = true)]
async fn where_nodes_make_their_own_snapshots_a_group_on_several_nodes_is_refused() {
    let stage = set_in_zones(["north", "south"]).await;
    let options = Options { distributed_snapshotting: true, ..Options::default() };
    stage
        .play(options, Snapshotter::Ready, async {
            snapshot_group(&stage).await;
            let error = || group(&stage).and_then(|group| group.status?.error?.message).unwrap_or_default();
            stage.until("why is told", || error().contains("spec.nodeAffinity")).await;
        })
        .await;
    assert!(stage.world.admin().list_raw(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT).is_empty());
}
