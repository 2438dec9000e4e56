//! What is published of the driver's room, and that no claim waits for it.

use std::time::Duration;

use http::Method;
use provisioner::{Capacity, NodeDeployment, Options, OwnerLevel};
use serde_json::{Value, json};
use stowage_csi::v1::{GetCapacityRequest, Topology};
use tonic::Code;

use crate::driver::{CODES, DRIVER, Driver, KEY, Next};
use crate::world::{Running, World};

const GI: i64 = 1 << 30;

fn options() -> Options {
    Options { capacity: Some(Capacity { namespace: "storage".into(), ..Capacity::default() }), ..Options::default() }
}

/// A driver with places and so much room in each.
fn roomy(bytes: i64) -> Driver {
    let driver = Driver::on("n1");
    driver.has_room(bytes, None);
    driver
}

async fn world() -> World {
    let world = World::new();
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "storage" } });
    world.send(Method::POST, "/api/v1/namespaces", namespace).await;
    world
}

/// Nodes n1 and n2 in place a, n3 in place b, and a class that waits.
async fn three_nodes() -> World {
    let world = world().await;
    for (node, place) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        world.make_node(node, place).await;
    }
    world.make_waiting_class("fast", json!({ "pool": "ssd", "csi.storage.k8s.io/fstype": "xfs" })).await;
    world
}

/// Place and class of what is published, and how much.
async fn published(world: &World) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> = world
        .capacities()
        .await
        .iter()
        .map(|o| (text(&o["nodeTopology"]["matchLabels"][KEY]), text(&o["storageClassName"]), text(&o["capacity"])))
        .collect();
    found.sort();
    found
}

fn said(of: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    of.iter().map(|(place, class, size)| (place.to_string(), class.to_string(), size.to_string())).collect()
}

async fn until_published(world: &World, wanted: &[(&str, &str, &str)]) {
    let wanted = said(wanted);
    world.until("what is to be published", async || published(world).await == wanted).await;
}

fn missed(running: &Running) -> u64 {
    running.context.metrics.missed_wakeups("provisioner-capacity").get()
}

#[tokio::test(start_paused = true)]
async fn one_object_is_published_for_each_class_in_each_place_as_the_original_writes_it() {
    let world = three_nodes().await;
    let driver = roomy(5 * GI);
    driver.has_largest(Some(2 * GI));
    let running = world.start_beside(driver.clone(), options());
    until_published(&world, &[("a", "fast", "5Gi"), ("b", "fast", "5Gi")]).await;
    // Field by field: the class whole, its reserved keys too, no capability, and the place.
    let question = |place: &str| GetCapacityRequest {
        volume_capabilities: vec![],
        parameters: [("pool", "ssd"), ("csi.storage.k8s.io/fstype", "xfs")].map(|(k, v)| (k.into(), v.into())).into(),
        accessible_topology: Some(Topology { segments: [(KEY.to_owned(), place.to_owned())].into() }),
    };
    assert_eq!(driver.questions(), [question("a"), question("b")]);
    let all = world.capacities().await;
    let object = all.iter().find(|object| object["nodeTopology"]["matchLabels"][KEY] == "a").unwrap();
    assert_eq!(object["metadata"]["namespace"], "storage");
    assert!(object["metadata"]["name"].as_str().unwrap().starts_with("csisc-"), "{object}");
    let labels = json!({
        "csi.storage.k8s.io/drivername": DRIVER, "csi.storage.k8s.io/managed-by": "external-provisioner",
    });
    assert_eq!(object["metadata"]["labels"], labels);
    assert_eq!(object["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(object["nodeTopology"], json!({ "matchLabels": { KEY: "a" } }));
    assert_eq!((&object["storageClassName"], &object["maximumVolumeSize"]), (&json!("fast"), &json!("2Gi")));
    let metrics = running.context.metrics.encode();
    for line in [
        "csistoragecapacities_desired_goal 2",
        "csistoragecapacities_desired_current 2",
        "csistoragecapacities_obsolete 0",
        "workqueue_adds_total{name=\"csistoragecapacity\"}",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_object_is_written_when_what_it_says_has_changed_and_not_otherwise() {
    let world = three_nodes().await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    until_published(&world, &[("a", "fast", "5Gi"), ("b", "fast", "5Gi")]).await;
    world.settle().await;
    world.take_writes();
    driver.take_questions();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.settle().await;
    }
    // The original's poll interval, each item once.
    assert_eq!(driver.take_questions(), 20);
    assert_eq!(world.take_writes().keys().filter(|write| write.contains("capacities")).count(), 0);
    driver.has_room(3 * GI, None);
    driver.has_largest(Some(GI));
    tokio::time::sleep(Duration::from_secs(61)).await;
    until_published(&world, &[("a", "fast", "3Gi"), ("b", "fast", "3Gi")]).await;
    world.until("the largest", async || world.capacities().await[0]["maximumVolumeSize"] == "1Gi").await;
    driver.has_largest(None);
    tokio::time::sleep(Duration::from_secs(61)).await;
    world.until("the end of it", async || world.capacities().await[1]["maximumVolumeSize"].is_null()).await;
    assert_eq!(missed(&running), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_makes_or_deletes_volumes_is_followed_at_once_and_only_in_its_place() {
    let world = three_nodes().await;
    world.make_waiting_class("slow", json!({})).await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    world.until("all", async || world.capacities().await.len() == 4).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.settle().await;
    driver.take_questions();

    let begin = tokio::time::Instant::now();
    driver.has_room(4 * GI, None);
    // The driver answers that its volumes are on its own node, so room was taken in place n1: of no item; the class's
    // items are asked about instead.
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n3".into()).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let all = [("a", "fast", "4Gi"), ("a", "slow", "5Gi"), ("b", "fast", "4Gi"), ("b", "slow", "5Gi")];
    until_published(&world, &all).await;
    assert_eq!(driver.take_questions(), 2);

    // One more place, where the driver says its volumes are.
    world.make_node("n4", "n1").await;
    world.until("two more", async || world.capacities().await.len() == 6).await;
    assert_eq!(begin.elapsed().as_secs(), 0, "nothing waited for a timer");
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.settle().await;
    driver.take_questions();
    driver.has_room(GI, None);
    world.delete_claim("db").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    world.settle().await;
    let places: Vec<_> = driver.questions().iter().map(|q| q.accessible_topology.clone().unwrap().segments).collect();
    assert_eq!(places.len(), 2, "both classes in the one place: {places:?}");
    assert!(places.iter().all(|place| place[KEY] == "n1"), "{places:?}");
    assert_eq!(missed(&running), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_which_there_was_no_room_has_its_place_asked_about() {
    let world = three_nodes().await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    world.until("both", async || world.capacities().await.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.settle().await;
    driver.take_questions();
    driver.has_room(0, None);
    driver.next(Next::Fails(Code::ResourceExhausted, "full"));
    world.make_claim("db", "9Gi").await;
    world.select_node("db", "n3".into()).await;
    world.until("the way back", async || world.selected_node("db").await.is_null()).await;
    until_published(&world, &[("a", "fast", "5Gi"), ("b", "fast", "0")]).await;
    assert_eq!(driver.take_questions(), 1);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_claims_costs_one_question_and_one_write_per_second_and_item() {
    let world = three_nodes().await;
    let driver = roomy(500 * GI);
    let running = world.start_beside(driver.clone(), options());
    world.until("both", async || world.capacities().await.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.settle().await;
    driver.take_questions();
    world.take_writes();
    for n in 0..100 {
        let name = format!("claim-{n}");
        world.make_claim(&name, "1Gi").await;
        world.select_node(&name, "n1".into()).await;
    }
    world.until("all volumes", async || driver.volumes().len() == 100).await;
    world.settle().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    world.settle().await;
    let questions = driver.take_questions();
    println!("GetCapacity calls for 100 claims at once: {questions}");
    // For both items one at the first claim, and one for all the others.
    assert!(questions <= 4, "{questions}");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_comes_and_goes_with_classes_and_nodes_is_published_and_deleted() {
    let world = three_nodes().await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    until_published(&world, &[("a", "fast", "5Gi"), ("b", "fast", "5Gi")]).await;
    // A node that shares its place changes nothing; the last of a place takes it along.
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/csinodes/n2", Value::Null).await;
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/csinodes/n3", Value::Null).await;
    until_published(&world, &[("a", "fast", "5Gi")]).await;
    // A label that is missing, then there.
    world.send(Method::PATCH, "/api/v1/nodes/n1", json!({ "metadata": { "labels": { KEY: null } } })).await;
    until_published(&world, &[]).await;
    world.send(Method::PATCH, "/api/v1/nodes/n1", json!({ "metadata": { "labels": { KEY: "c" } } })).await;
    until_published(&world, &[("c", "fast", "5Gi")]).await;
    // Classes of others and those that bind at once do not count.
    for (name, provisioner, mode) in
        [("now", DRIVER, "Immediate"), ("other", "other.csi.example", "WaitForFirstConsumer")]
    {
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
            "provisioner": provisioner, "volumeBindingMode": mode,
        });
        world.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", body).await;
    }
    world.make_waiting_class("slow", json!({})).await;
    until_published(&world, &[("c", "fast", "5Gi"), ("c", "slow", "5Gi")]).await;
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/slow", Value::Null).await;
    until_published(&world, &[("c", "fast", "5Gi")]).await;
    assert_eq!(missed(&running), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn classes_that_bind_at_once_are_published_where_the_flag_asks_for_it() {
    for (immediate_binding, count) in [(false, 0), (true, 1)] {
        let world = world().await;
        world.make_node("n1", "a").await;
        world.make_class(json!({}), "Delete").await;
        let capacity = Capacity { namespace: "storage".into(), immediate_binding, ..Capacity::default() };
        let running = world.start_beside(roomy(GI), Options { capacity: Some(capacity), ..Options::default() });
        world.ready(&running).await;
        world.settle().await;
        assert_eq!(world.capacities().await.len(), count);
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_provisioner_published_is_taken_over_and_what_is_left_over_goes() {
    let world = three_nodes().await;
    let object = |name: &str, class: &str, topology: Value, managed_by: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {
                "namespace": "storage", "name": name,
                "labels": {
                    "csi.storage.k8s.io/drivername": DRIVER, "csi.storage.k8s.io/managed-by": managed_by,
                },
            },
            "storageClassName": class, "nodeTopology": topology, "capacity": "1Gi",
        })
    };
    let at = |place: &str| json!({ "matchLabels": { KEY: place } });
    let by_expression = json!({ "matchExpressions": [{ "key": KEY, "operator": "In", "values": ["a"] }] });
    for body in [
        object("csisc-kept", "fast", at("a"), "external-provisioner"),
        object("csisc-twice", "fast", at("a"), "external-provisioner"),
        object("csisc-elsewhere", "fast", at("z"), "external-provisioner"),
        object("csisc-classless", "gone", at("a"), "external-provisioner"),
        object("csisc-strange", "fast", by_expression, "external-provisioner"),
        object("csisc-others", "fast", at("a"), "external-provisioner-n7"),
    ] {
        world.send(Method::POST, "/apis/storage.k8s.io/v1/namespaces/storage/csistoragecapacities", body).await;
    }
    let running = world.start_beside(roomy(5 * GI), options());
    let names = async || {
        let all = world.capacities().await;
        all.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    world.until("three left", async || names().await.len() == 3).await;
    let left = names().await;
    assert!(left.contains(&"csisc-kept".to_owned()) && left.contains(&"csisc-others".to_owned()), "{left:?}");
    until_published(&world, &[("a", "fast", "1Gi"), ("a", "fast", "5Gi"), ("b", "fast", "5Gi")]).await;
    // Somebody deletes one, another one loses its label: both are published again.
    world
        .send(Method::DELETE, "/apis/storage.k8s.io/v1/namespaces/storage/csistoragecapacities/csisc-kept", Value::Null)
        .await;
    world.until("it again", async || names().await.len() == 3).await;
    assert!(!names().await.contains(&"csisc-kept".to_owned()));
    assert_eq!(missed(&running), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_the_driver_answers_what_was_published_stays_and_it_is_asked_again() {
    let world = world().await;
    world.make_node("n1", "a").await;
    world.make_waiting_class("fast", json!({})).await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    until_published(&world, &[("a", "fast", "5Gi")]).await;
    for (turn, code) in CODES.into_iter().enumerate() {
        driver.take_questions();
        let room = 5 - i64::from(turn % 2 == 0);
        driver.has_room(room * GI, None);
        driver.will_not_say(code);
        while driver.questions().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        world.settle().await;
        assert_eq!(driver.take_questions(), 1, "{code:?}");
        let before = format!("{}Gi", 5 - i64::from(turn % 2 != 0));
        assert_eq!(published(&world).await, said(&[("a", "fast", &before)]), "{code:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        until_published(&world, &[("a", "fast", &format!("{room}Gi"))]).await;
        assert_eq!(driver.take_questions(), 1, "{code:?}");
    }
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_claim_waits_for_a_driver_that_does_not_say_how_much_room_it_has() {
    let world = three_nodes().await;
    let driver = roomy(5 * GI);
    driver.falls_mute();
    let running = world.start_beside(driver.clone(), options());
    let begin = tokio::time::Instant::now();
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n1".into()).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(begin.elapsed().as_millis(), 0);
    assert_eq!(driver.questions().len(), 1, "one worker, one question");
    // Nor does a stop.
    running.drain().await.unwrap();
    assert_eq!(begin.elapsed().as_millis(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_node_publishes_its_own_room_under_its_own_label() {
    let world = world().await;
    world.make_waiting_class("fast", json!({})).await;
    let mut running = Vec::new();
    for (node, bytes) in [("n1", GI), ("n2", 2 * GI)] {
        let driver = Driver::on(node);
        driver.has_room(bytes, None);
        let node_deployment = Some(NodeDeployment { node: node.into(), ..NodeDeployment::default() });
        running.push(world.start_beside(driver, Options { node_deployment, ..options() }));
    }
    until_published(&world, &[("n1", "fast", "1Gi"), ("n2", "fast", "2Gi")]).await;
    let labels: Vec<_> = world
        .capacities()
        .await
        .iter()
        .map(|o| {
            let place = o["nodeTopology"]["matchLabels"][KEY].clone();
            (place, o["metadata"]["labels"]["csi.storage.k8s.io/managed-by"].clone())
        })
        .collect();
    for node in ["n1", "n2"] {
        assert!(labels.contains(&(json!(node), json!(format!("external-provisioner-{node}")))), "{labels:?}");
    }
    for one in running {
        one.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_found_so_many_levels_above_the_pod() {
    let world = world().await;
    world.make_node("n1", "a").await;
    world.make_waiting_class("fast", json!({})).await;
    let container = json!([{ "name": "c", "image": "i" }]);
    let template = json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "containers": container } });
    let workload = json!({ "selector": { "matchLabels": { "app": "x" } }, "template": template });
    // Whose owner does not exist is collected as garbage, so each is made before what it owns.
    let make = async |api_version: &str, kind: &str, path: &str, name: &str, owners: Value, spec: &Value| {
        let metadata = json!({ "name": name, "namespace": "storage", "ownerReferences": owners });
        let body = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
        let made = world.send(Method::POST, &format!("{path}/namespaces/storage/{}s", kind.to_lowercase()), body).await;
        let uid = made["metadata"]["uid"].as_str().unwrap();
        json!([{ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true }])
    };
    let deployment = make("apps/v1", "Deployment", "/apis/apps/v1", "all", json!([]), &workload).await;
    let set = make("apps/v1", "ReplicaSet", "/apis/apps/v1", "set", deployment.clone(), &workload).await;
    let pod = make("v1", "Pod", "/api/v1", "p", set.clone(), &template["spec"]).await;
    let of_level = |level| {
        let owner = Some(OwnerLevel { pod: "p".into(), level });
        let capacity = Capacity { namespace: "storage".into(), owner, ..Capacity::default() };
        Options { capacity: Some(capacity), ..Options::default() }
    };
    for (level, wanted) in [pod, set, deployment].into_iter().enumerate() {
        let running = world.start_beside(roomy(5 * GI), of_level(u32::try_from(level).unwrap()));
        // One object throughout: the managing owner of an earlier deployment is replaced.
        world
            .until("the owner", async || {
                let all = world.capacities().await;
                all.len() == 1 && all[0]["metadata"]["ownerReferences"] == wanted
            })
            .await;
        running.drain().await.unwrap();
    }
    let stopped = world.start_beside(roomy(5 * GI), of_level(3)).ended().await.unwrap_err().to_string();
    assert!(stopped.contains("--capacity-ownerref-level 3") && stopped.contains("-1 for none"), "{stopped}");
}

#[tokio::test(start_paused = true)]
async fn work_grows_with_places_and_not_with_nodes() {
    let world = world().await;
    for node in 0..3_000 {
        world.make_node(&format!("n{node}"), &format!("zone-{}", node % 3)).await;
    }
    for class in ["one", "two"] {
        world.make_waiting_class(class, json!({})).await;
    }
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    world.until("all", async || world.capacities().await.len() == 6).await;
    world.settle().await;
    let (questions, writes) = (driver.take_questions(), world.take_writes());
    println!("3,000 nodes in 3 places, 2 classes: {questions} GetCapacity calls, writes {writes:?}");
    assert_eq!((questions, writes["POST csistoragecapacities"]), (6, 6));
    // A thousand nodes that change without leaving their place.
    for node in 0..1_000 {
        let body = json!({ "metadata": { "labels": { "beat": "1" } } });
        world.send(Method::PATCH, &format!("/api/v1/nodes/n{node}"), body).await;
    }
    world.settle().await;
    assert_eq!(driver.take_questions(), 0);
    // And a place that comes with its first node costs one question and one write for each class.
    world.make_node("new", "zone-new").await;
    world.until("two more", async || world.capacities().await.len() == 8).await;
    assert_eq!(driver.take_questions(), 2);
    assert_eq!(world.take_writes()["POST csistoragecapacities"], 2);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn thousands_of_places_are_asked_about_by_no_more_workers_than_the_flag_allows() {
    let world = world().await;
    for node in 0..2_000 {
        world.make_node(&format!("n{node}"), &format!("n{node}")).await;
    }
    world.make_waiting_class("fast", json!({})).await;
    let driver = roomy(5 * GI);
    let running = world.start_beside(driver.clone(), options());
    world.until("the first", async || world.capacities().await.len() >= 2_000).await;
    world.settle().await;
    let writes = world.take_writes();
    assert_eq!((driver.take_questions(), writes["POST csistoragecapacities"]), (2_000, 2_000));
    tokio::time::sleep(Duration::from_secs(61)).await;
    for _ in 0..20 {
        world.settle().await;
    }
    // One poll interval: each place once, and nothing is written, for nothing has changed.
    assert_eq!(driver.take_questions(), 2_000);
    assert_eq!(world.take_writes().keys().filter(|write| write.contains("capacities")).count(), 0);
    // A claim that is made in one of two thousand places costs one question.
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n7".into()).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.settle().await;
    assert_eq!(driver.take_questions(), 1);
    running.drain().await.unwrap();
}
