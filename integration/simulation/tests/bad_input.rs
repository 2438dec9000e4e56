//! What people get wrong ends in a sentence that names the field, the value and the way out; nothing hangs silently.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use serde_json::{Value, json};

use simulation_suite::block_on;
use simulation_suite::manifests::{self, Binding, key};
use simulation_suite::pipeline::{DRIVER_SOCKET, End, Options, Pipeline, ordinary};
use stowage_model::object::kinds;
use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_services::{Place, Service, names};
use stowage_testing::World;

/// Longer than any single step without backoff.
const SOON: Duration = Duration::from_secs(60);

struct Fixture {
    world: World,
    pipeline: Pipeline,
}

async fn start(options: Options, class: Value) -> Fixture {
    let world = World::new(3);
    let admin = world.admin();
    admin.create(kinds::CSI_DRIVER, manifests::csi_driver()).await.unwrap();
    admin.create(kinds::STORAGE_CLASS, class).await.unwrap();
    let pipeline = Pipeline::start(&world, options);
    Fixture { world, pipeline }
}

fn messages(world: &World, object: &str) -> Vec<String> {
    let events = world.admin().list_raw(kinds::EVENT);
    let about = events.iter().filter(|event| event["involvedObject"]["name"] == object);
    about.map(|event| format!("{}: {}", event["reason"], event["message"])).collect()
}

impl Fixture {
    /// Waits for an event about the object that has all these words.
    async fn told(&self, object: &str, words: &[&str]) {
        let found = || messages(&self.world, object).iter().any(|text| words.iter().all(|word| text.contains(word)));
        let waited = self.world.until("an event", SOON, found).await;
        let messages = messages(&self.world, object);
        assert!(waited.is_ok(), "no event of {object} has {words:?}: {messages:#?}");
    }

    /// Deletes the claim and waits until nothing is left.
    async fn ends(&self, claim: &str) {
        self.world.admin().delete(kinds::CLAIM, &key(claim)).await.unwrap();
        let gone = || self.world.observe().leftovers().is_empty();
        self.world.until("the end of everything", SOON, gone).await.unwrap_or_else(|hang| panic!("{hang}"));
    }
}

async fn claim(fixture: &Fixture, size: &str) {
    fixture.world.admin().create(kinds::CLAIM, manifests::claim("data", size)).await.unwrap();
}

#[test]
fn a_class_with_an_unknown_provisioner_is_named_in_an_event_of_the_claim() {
    block_on(async {
        let mut class = manifests::class(Binding::Immediate);
        class["provisioner"] = "nobody.example".into();
        let fixture = start(Options::default(), class).await;
        claim(&fixture, "1Gi").await;
        fixture.told("data", &["nobody.example", "provisioner"]).await;
        fixture.ends("data").await;
    });
}

#[test]
fn a_class_with_a_bad_parameter_is_told_with_the_parameter_its_value_and_what_is_allowed() {
    block_on(async {
        let mut class = manifests::class(Binding::Immediate);
        class["parameters"] = json!({ "speed": "eleven" });
        let fixture = start(Options::default(), class).await;
        claim(&fixture, "1Gi").await;
        fixture.told("data", &["ProvisioningFailed", "speed", "eleven", "may only set"]).await;
        fixture.ends("data").await;
    });
}

#[test]
fn a_claim_of_zero_bytes_is_refused_by_the_api_with_field_and_value() {
    block_on(async {
        let fixture = start(Options::default(), manifests::class(Binding::Immediate)).await;
        let refused = fixture.world.admin().create(kinds::CLAIM, manifests::claim("data", "0")).await.unwrap_err();
        let text = refused.to_string();
        for word in ["spec.resources[storage]", "0", "must be greater than zero"] {
            assert!(text.contains(word), "{text}");
        }
    });
}

#[test]
fn a_claim_of_9ei_bytes_is_told_that_no_size_is_that_large() {
    block_on(async {
        let fixture = start(Options::default(), manifests::class(Binding::Immediate)).await;
        claim(&fixture, "9Ei").await;
        fixture.told("data", &["ProvisioningFailed", "spec.resources.requests.storage", "9Ei"]).await;
        fixture.ends("data").await;
        assert!(fixture.world.driver().snapshot().count("CreateVolume") == 0, "the driver was asked all the same");
    });
}

#[test]
fn a_claim_larger_than_the_driver_can_make_is_told_what_it_can() {
    block_on(async {
        let fixture = start(Options::default(), manifests::class(Binding::Immediate)).await;
        claim(&fixture, "2Pi").await;
        fixture.told("data", &["ProvisioningFailed", "2251799813685248", "ask for less"]).await;
        fixture.ends("data").await;
    });
}

#[test]
fn a_pod_whose_claim_does_not_exist_is_told_so_and_runs_once_it_does() {
    block_on(async {
        let fixture = start(Options::default(), manifests::class(Binding::WaitForFirstConsumer)).await;
        fixture.world.admin().create(kinds::POD, manifests::pod("app", "data")).await.unwrap();
        fixture.told("app", &["FailedScheduling", "data"]).await;
        claim(&fixture, "1Gi").await;
        runs(&fixture).await;
    });
}

async fn runs(fixture: &Fixture) {
    let running = || {
        let pod: Option<Pod> = fixture.world.admin().get(&key("app"));
        pod.is_some_and(|pod| pod.status.phase == PodPhase::Running)
    };
    let waited = fixture.world.until("the pod Running", SOON * 10, running).await;
    waited.unwrap_or_else(|hang| panic!("{hang}"));
}

#[test]
fn a_driver_socket_that_does_not_exist_is_named_and_nothing_is_lost_until_it_does() {
    block_on(async {
        let options = Options { driver: false, ..Options::default() };
        let mut fixture = start(options, manifests::class(Binding::WaitForFirstConsumer)).await;
        claim(&fixture, "1Gi").await;
        fixture.world.admin().create(kinds::POD, manifests::pod("app", "data")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        let beside = |service: &Service| {
            matches!(service.place, Place::Sidecar | Place::NodeSidecar) && ordinary().contains(&service.name)
        };
        for service in names(beside) {
            let ends: Vec<String> = fixture.pipeline.ends().iter().map(End::to_string).collect();
            let named =
                |end: &String| end.starts_with(service) && end.contains(DRIVER_SOCKET) && end.contains("driver");
            assert!(ends.iter().any(named), "{service} did not say what is missing: {ends:#?}");
        }
        fixture.pipeline.start_driver();
        runs(&fixture).await;
    });
}
