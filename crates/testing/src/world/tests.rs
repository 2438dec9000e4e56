use futures::FutureExt;
use serde_json::json;

use stowage_csi::{Deadline, identity};
use stowage_model::claim::Claim;
use stowage_model::object::Key;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::Cache;

use super::*;
use crate::fault::Mode;

fn claim() -> serde_json::Value {
    json!({
        "metadata": { "name": "data", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn key() -> Key {
    Key::namespaced("default", "data")
}

fn fault(number: usize, mode: Mode) -> Fault {
    Fault { service: "a".into(), number, mode }
}

async fn annotate(context: &Context, value: &str) -> Result<(), stowage_runtime::api::Error> {
    let cache: Cache<Claim> = Cache::new();
    let claim = context.api.refresh(&cache, &key()).await?.expect("the claim is there");
    let body = Patch::Merge(json!({ "metadata": { "annotations": { "x": value } } }));
    context.api.patch(&cache, &Target::exact(&claim.meta), Part::Main, body).await.map(|_| ())
}

#[tokio::test(start_paused = true)]
async fn only_writes_of_services_are_points_and_the_same_seed_gives_the_same_trace() {
    let run = async || {
        let world = World::new(7);
        world.admin().create(kinds::CLAIM, claim()).await.unwrap();
        let life = world.life("a");
        annotate(&life.context, "1").await.unwrap();
        let uid = world.admin().get::<Claim>(&key()).unwrap().meta.uid;
        (world.trace().text(), uid)
    };
    let (text, uid) = run().await;
    let expected = "a #1 api PATCH /api/v1/namespaces/default/persistentvolumeclaims/data ";
    assert!(text.starts_with(expected) && text.lines().count() == 1, "{text}");
    assert_eq!(run().await, (text, uid));
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_stored_and_seen_as_unanswered() {
    let world = World::new(1);
    world.admin().create(kinds::CLAIM, claim()).await.unwrap();
    world.arm(fault(1, Mode::AnswerLostAlive), None);
    let life = world.life("a");
    assert!(annotate(&life.context, "1").await.unwrap_err().is_unanswered());
    assert_eq!(world.admin().get::<Claim>(&key()).unwrap().meta.annotation("x"), Some("1"));
    assert_eq!(world.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_service_stopped_before_a_write_writes_and_reads_nothing_more() {
    let world = World::new(1);
    world.admin().create(kinds::CLAIM, claim()).await.unwrap();
    let admin = world.admin().clone();
    let delete = move || {
        let admin = admin.clone();
        async move {
            admin
                .patch(kinds::CLAIM, &key(), "", &json!({ "metadata": { "labels": { "seen": "1" } } }))
                .await
                .map(|_| ())
                .unwrap()
        }
        .boxed()
    };
    world.arm(fault(1, Mode::Before), Some(Arc::new(delete)));
    let life = world.life("a");
    let write = annotate(&life.context, "1");
    let stopped = life.gate.stopped();
    tokio::select! {
        biased;
        _ = write => unreachable!("the service was stopped"),
        () = stopped => {}
    }
    let claim = world.admin().get::<Claim>(&key()).unwrap();
    assert_eq!(claim.meta.annotation("x"), None);
    assert!(life.context.api.get::<Claim>(&key()).now_or_never().is_none(), "a dead service reads");
    let next = world.life("a");
    annotate(&next.context, "2").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_reach_the_driver_that_listens_and_a_missing_one_is_unreachable() {
    let world = World::new(1);
    let life = world.life("a");
    let channel = life.context.csi.connect("unix:///run/stowage-simulation/csi.sock").unwrap();
    let deadline = Deadline(Duration::from_secs(1));
    let error = identity::plugin_name(&channel, deadline).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let routes = world.driver().routes("node", world.node("node"));
    let listening = world.sockets().listen("/run/stowage-simulation/csi.sock", routes);
    assert_eq!(identity::plugin_name(&channel, deadline).await.unwrap(), DRIVER);
    drop(listening);
    let error = identity::plugin_name(&channel, deadline).await.unwrap_err();
    assert!(error.is_unreachable(), "the killed listener's socket is a file nobody answers at");
    assert_eq!(world.sockets().in_dir("/run/stowage-simulation").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_what_never_comes_ends_and_shows_the_world() {
    let world = World::new(1);
    world.admin().create(kinds::CLAIM, claim()).await.unwrap();
    let hang = world.until("the end", Duration::from_secs(60), || false).await.unwrap_err();
    assert_eq!(world.elapsed(), Duration::from_secs(60));
    assert!(hang.to_string().contains("\"name\":\"data\""), "{hang}");
}
