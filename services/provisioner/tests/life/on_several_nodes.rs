//! A provisioner on each node, for drivers whose storage is the node's own.

use std::sync::Arc;
use std::time::Duration;

use provisioner::NodeDeployment;
use stowage_csi::server::{Socket, SocketMode};
use tokio::sync::Barrier;

use super::*;
use crate::driver::{Driver, KEY};
use crate::world::Running;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn options(node: &str) -> Options {
    let node_deployment = Some(NodeDeployment { node: node.into(), ..NodeDeployment::default() });
    Options { node_deployment, ..Options::default() }
}

async fn start(world: &World) -> Vec<(Driver, Running)> {
    start_with(world, Driver::on).await
}

async fn start_with(world: &World, driver_on: fn(&str) -> Driver) -> Vec<(Driver, Running)> {
    let mut nodes = Vec::new();
    for node in NODES {
        let driver = driver_on(node);
        let running = world.start_beside(driver.clone(), options(node));
        world.ready(&running).await;
        nodes.push((driver, running));
    }
    nodes
}

fn holders(nodes: &[(Driver, Running)]) -> Vec<&'static str> {
    let holds =
        |(index, (driver, _)): (usize, &(Driver, Running))| (!driver.volumes().is_empty()).then_some(NODES[index]);
    nodes.iter().enumerate().filter_map(holds).collect()
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_served_and_deleted_by_the_selected_node_alone() {
    let world = plain_world().await;
    let nodes = start(&world).await;
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n2".into()).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(holders(&nodes), ["n2"]);
    assert_eq!(nodes[1].0.asked_for(), ["n2"]);
    let affinity = &world.volume(&name).await["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(affinity[0]["matchExpressions"][0], json!({ "key": KEY, "operator": "In", "values": ["n2"] }));
    world.delete_claim("db").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    for (index, (driver, _)) in nodes.iter().enumerate() {
        let expected: &[&str] = if index == 1 { &["CreateVolume", "DeleteVolume"] } else { &[] };
        assert_eq!(driver.calls(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_binds_at_once_is_taken_by_exactly_one_node() {
    let world = plain_world().await;
    let nodes = start(&world).await;
    let name = world.make_claim("db", "1Gi").await;
    world.settle().await;
    assert_eq!(holders(&nodes), Vec::<&str>::new(), "nobody waited");
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.settle().await;
    let holders = holders(&nodes);
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(world.selected_node("db").await, holders[0]);
}

#[tokio::test(start_paused = true)]
async fn of_nodes_that_take_a_claim_at_the_same_moment_one_makes_the_volume() {
    let world = plain_world().await;
    let mut nodes = start(&world).await;
    nodes.pop().unwrap().1.crash();
    let together = Arc::new(Barrier::new(nodes.len()));
    for (driver, _) in &nodes {
        driver.has_room(i64::MAX, Some(Arc::clone(&together)));
    }
    world.race_for_a_claim();
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.settle().await;
    let holders = holders(&nodes);
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(world.selected_node("db").await, holders[0]);
    assert_eq!(world.claim_updates(), 1, "who was second wrote over the first");
}

/// Each of a thousand nodes told it, and asked for the class again and again.
#[tokio::test(start_paused = true)]
async fn of_a_claim_that_binds_at_once_and_cannot_be_served_people_hear_from_one_node() {
    let world = plain_world().await;
    let nodes = start(&world).await;
    let selector = json!({ "matchLabels": { "disk": "fast" } });
    world.make_claim_with("db", |claim| claim["spec"]["selector"] = selector).await;
    world.make_claim_with("web", |claim| claim["spec"]["storageClassName"] = "none".into()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.until("the word", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.settle().await;
    let told = world.events("ProvisioningFailed").await;
    assert!(told.len() == 1 && told[0].contains("spec.selector cannot be met"), "{told:?}");
    let failures =
        nodes.iter().filter(|(_, running)| running.context.metrics.encode().contains("provision_failed_total{"));
    assert_eq!(failures.count(), 1);
    assert!(world.selected_node("db").await.is_string());
}

#[tokio::test(start_paused = true)]
async fn a_node_without_room_leaves_the_claim_to_one_that_has_it() {
    let world = plain_world().await;
    let nodes = start(&world).await;
    nodes[0].0.has_room(1 << 20, None);
    nodes[1].0.has_room(1 << 40, None);
    nodes[2].0.has_room(1 << 20, None);
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(holders(&nodes), ["n2"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_node_gives_the_claim_back_and_another_takes_it() {
    let world = plain_world().await;
    let nodes = start(&world).await;
    nodes[0].0.next(Next::Fails(Code::ResourceExhausted, "the pool is full"));
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n1".into()).await;
    world.until("the refusal", async || world.selected_node("db").await != "n1").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(holders(&nodes).len(), 1);
    for (_, running) in nodes {
        running.drain().await.unwrap();
    }
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_journal_of_a_node_goes_with_it_unless_it_has_a_record() {
    let world = plain_world().await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    let node = world.send(Method::POST, "/api/v1/nodes", node).await;
    let driver = Driver::on("n1");
    let running = world.start_beside(driver.clone(), options("n1"));
    world.ready(&running).await;
    let owners = async || {
        let leases = world.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await;
        leases["items"][0]["metadata"]["ownerReferences"].clone()
    };
    let uid = &node["metadata"]["uid"];
    let owned = json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid }]);
    assert_eq!(owners().await, owned);
    driver.next(Next::DoneAndSilent);
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n1".into()).await;
    world.until("the call", async || driver.volumes().len() == 1).await;
    let nobody = owners().await;
    assert!(nobody.as_array().is_none_or(Vec::is_empty), "a record must not go with the node: {nobody}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.until("the record's end", async || world.journal().await.is_empty()).await;
    assert_eq!(owners().await, owned);
    running.drain().await.unwrap();
}

/// Where the id is the name, the other node's object was taken for that of the first one's volume, which stayed for ever.
#[tokio::test(start_paused = true)]
async fn a_full_node_that_may_have_made_the_volume_gives_the_claim_back_and_deletes_what_it_made() {
    for (driver_on, handle) in [(Driver::on as fn(&str) -> Driver, "n2/"), (Driver::plain_on, "")] {
        gives_back_and_deletes(driver_on, handle).await;
    }
}

async fn gives_back_and_deletes(driver_on: fn(&str) -> Driver, handle: &str) {
    let world = plain_world().await;
    // Else a third node may take the claim between the refusal and the scheduler's next choice.
    world.wait_for_consumers().await;
    let nodes = start_with(&world, driver_on).await;
    nodes[0].0.next(Next::DoneAndSilent);
    nodes[0].0.next(Next::Fails(Code::ResourceExhausted, "the pool is full"));
    let name = world.make_claim("db", "1Gi").await;
    world.select_node("db", "n1".into()).await;
    world.until("the call", async || nodes[0].0.volumes().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    world.until("the refusal", async || world.selected_node("db").await != "n1").await;
    world.select_node("db", "n2".into()).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.volume(&name).await["spec"]["csi"]["volumeHandle"], format!("{handle}{name}"));
    assert_eq!(holders(&nodes), ["n1", "n2"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.until("the cleanup", async || holders(&nodes) == ["n2"]).await;
    for (_, running) in nodes {
        running.drain().await.unwrap();
    }
    assert!(world.journal().await.is_empty());
}

/// Real sockets and real time: it is their connections that end. The second driver may get the call that finds it, as it would
/// have before anybody could know.
#[tokio::test]
async fn a_driver_that_comes_back_on_another_node_ends_the_service() {
    let world = plain_world().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let serve = |driver: &Driver| {
        let (socket, routes) = (Socket::bind(&path, SocketMode::default()).unwrap(), driver.routes());
        tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() })
    };
    let first = Driver::on("n1");
    let served = serve(&first);
    let mut options = options("n1");
    options.driver.csi_address = format!("unix://{}", path.display());
    let running = world.start_beside(stowage_csi::UnixConnector, options);
    world.make_claim("db", "1Gi").await;
    world.select_node("db", "n1".into()).await;
    let made = async {
        while first.volumes().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), made).await.expect("the first volume");

    served.abort();
    drop(served.await);
    let served = serve(&Driver::on("n2"));
    world.make_claim("web", "1Gi").await;
    world.select_node("web", "n1".into()).await;
    let stop = running.ended().await.unwrap_err();
    assert!(stop.to_string().contains("was restarted and has another place of this node"), "{stop}");
    served.abort();
}
