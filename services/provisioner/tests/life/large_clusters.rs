//! Clusters where every node is a place of its own, so that each request names all of them.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tonic::Code;

use provisioner::Options;
use stowage_csi::v1::{CreateVolumeRequest, Topology};

use crate::driver::{Driver, KEY, Next};
use crate::world::World;

/// As long as names of machines are in clouds.
fn node(number: usize) -> String {
    format!("ip-{number:05}.eu-central-1.compute.internal.example.x")
}

async fn nodes(count: usize) -> World {
    let world = World::new();
    world.make_class(json!({}), "Delete").await;
    for number in 0..count {
        world.make_node(&node(number), &node(number)).await;
    }
    world
}

/// Annotations of the journal that start so, with the Lease they are on.
async fn annotations(world: &World, prefix: &str) -> Vec<(String, String)> {
    let leases = world.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await;
    let mut found = Vec::new();
    for lease in leases["items"].as_array().unwrap() {
        let annotations = lease["metadata"]["annotations"].as_object().unwrap();
        let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
        assert!(bytes < 256 * 1024, "{bytes} bytes are more than Kubernetes takes");
        let matching = annotations.iter().filter(|(key, _)| key.starts_with(prefix));
        let name = lease["metadata"]["name"].as_str().unwrap();
        found.extend(matching.map(|(_, value)| (name.to_owned(), value.as_str().unwrap().to_owned())));
    }
    found
}

fn places(of: &[Topology]) -> Vec<&str> {
    of.iter().map(|place| place.segments[KEY].as_str()).collect()
}

/// The request names all nodes twice, in order, and from some node on.
fn assert_names_all(request: &CreateVolumeRequest, count: usize) {
    let asked = request.accessibility_requirements.as_ref().unwrap();
    let (requisite, preferred) = (places(&asked.requisite), places(&asked.preferred));
    assert!(requisite.len() == count && requisite.is_sorted());
    let first = requisite.iter().position(|place| *place == preferred[0]).unwrap();
    assert_eq!([&requisite[first..], &requisite[..first]].concat(), preferred);
}

/// Above 1,650 nodes every claim failed, with the advice to shorten the parameters of its class.
#[tokio::test(start_paused = true)]
async fn claims_of_five_thousand_nodes_with_long_names_are_provisioned_and_share_the_writes_of_their_records() {
    const CLAIMS: usize = 30;
    let world = nodes(5_000).await;
    for n in 0..CLAIMS {
        world.make_claim(&format!("claim-{n}"), "1Gi").await;
    }
    let driver = Driver::on("n1");
    world.take_writes();
    let running = world.start_beside(driver.clone(), Options::default());
    world.until("all volumes", async || world.events("ProvisioningSucceeded").await.len() == CLAIMS).await;
    world.settle().await;
    let writes = world.take_writes();
    println!("writes for {CLAIMS} claims of 5,000 nodes: {writes:?}");
    assert_eq!(writes["POST persistentvolumes"], CLAIMS);
    // Five pages or so of places, each made between two writes of the first page, and those of the records.
    assert!(writes["POST leases"] <= 10 && writes["PUT leases"] <= 40, "{writes:?}");
    driver.requests().iter().for_each(|request| assert_names_all(request, 5_000));
    assert!(annotations(&world, "places.").await.is_empty(), "nobody names them any more");
    let name = world.make_claim("later", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty() && annotations(&world, "places.").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_replayed_after_a_crash_names_the_nodes_of_then_byte_by_byte() {
    let world = nodes(700).await;
    let driver = Driver::on("n1");
    driver.next(Next::DoneAndSilent);
    let running = world.start_beside(driver.clone(), Options::default());
    world.make_claim("db", "1Gi").await;
    world.until("the call", async || driver.requests().len() == 1).await;
    let records = annotations(&world, "intent.").await;
    assert!(records.len() == 1 && records[0].1.len() < 2048, "{records:?}");
    let parts = annotations(&world, "places.").await;
    assert!(!parts.is_empty() && parts.iter().all(|(lease, _)| *lease != records[0].0));
    running.crash();
    world.delete_claim("db").await;
    for number in [0, 350, 699] {
        world.send(Method::DELETE, &format!("/api/v1/nodes/{}", node(number)), Value::Null).await;
        world.send(Method::DELETE, &format!("/apis/storage.k8s.io/v1/csinodes/{}", node(number)), Value::Null).await;
    }
    let running = world.start_beside(driver.clone(), Options::default());
    world.until("the cleanup", async || driver.calls().last() == Some(&"DeleteVolume")).await;
    let requests = driver.requests();
    assert_names_all(&requests[0], 700);
    // Messages have their maps in order: equal ones have equal bytes.
    assert!(requests[0] == requests[1], "another request was replayed");
    // A claim of now names those that are left, beside the record that is still there.
    let name = world.make_claim("new", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_names_all(driver.requests().last().unwrap(), 697);
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty() && annotations(&world, "places.").await.is_empty());
}

/// Each node that came had the claim tried at once, and its backoff begin anew: with an autoscaler, for ever.
#[tokio::test(start_paused = true)]
async fn nodes_that_come_do_not_hurry_a_claim_that_backs_off() {
    let world = nodes(20).await;
    let driver = Driver::on("n1");
    for _ in 0..400 {
        driver.next(Next::Fails(Code::FailedPrecondition, "there is no pool"));
    }
    let running = world.start_beside(driver.clone(), Options::default());
    world.make_claim("db", "1Gi").await;
    for number in 20..220 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.make_node(&node(number), &node(number)).await;
    }
    world.settle().await;
    // The eighth try is at 127 s, the next is at 255 s.
    let requests = driver.requests();
    assert_eq!(requests.len(), 8);
    let named = requests.last().unwrap().accessibility_requirements.as_ref().unwrap().requisite.len();
    assert!((120..=150).contains(&named), "the nodes of then, and not {named}");
    running.drain().await.unwrap();
}

/// Its record is off its page, and the places that it names stay for the next try; who comes next finds neither for long.
#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_for_long_writes_its_places_once_and_leaves_none_of_them() {
    for ends_by_itself in [true, false] {
        let world = nodes(300).await;
        let driver = Driver::on("n1");
        for _ in 0..64 {
            driver.next(Next::Fails(Code::FailedPrecondition, "there is no pool"));
        }
        let running = world.start_beside(driver.clone(), Options::default());
        let name = world.make_claim("db", "1Gi").await;
        // The eighth try is at 127 s, the next is at 255 s.
        tokio::time::sleep(Duration::from_secs(200)).await;
        world.settle().await;
        let parts = annotations(&world, "places.").await;
        assert!(world.journal().await.is_empty() && !parts.is_empty());
        world.take_writes();
        let calls = driver.calls().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let writes = world.take_writes();
        assert_eq!((driver.calls().len(), writes["PUT leases"]), (calls + 1, 1), "{writes:?}");
        tokio::time::sleep(Duration::from_secs(100)).await;
        world.settle().await;
        assert!(world.journal().await.is_empty());
        assert_eq!(annotations(&world, "places.").await, parts);
        if ends_by_itself {
            running.drain().await.unwrap();
            assert!(annotations(&world, "places.").await.is_empty(), "nobody will try again");
        } else {
            running.crash();
        }
        while driver.takes_next().is_some() {}
        let running = world.start_beside(driver.clone(), Options::default());
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        running.drain().await.unwrap();
        assert!(world.journal().await.is_empty() && annotations(&world, "places.").await.is_empty());
    }
}
