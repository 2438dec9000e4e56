//! A provisioner that is no CSI driver, by the library: each of the four results, and what follows from it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use serde_json::json;

use provisioner::Options;
use provisioner::library::{
    self, AccessMode, DeleteOptions, Failure, ProvisionOptions, Provisioned, Provisioner, async_trait, not_deleted,
};

use crate::driver::DRIVER;
use crate::world::{FINALIZER, Running, World};

const HOSTNAME: &str = "kubernetes.io/hostname";

/// How the next try goes; without one it goes well.
enum Next {
    Says(Provisioned),
    /// Made, and this is said.
    MadeAndSays(Provisioned),
    /// Made, and nothing is ever said.
    MadeAndSilent,
    /// Made, after this time.
    Slow(Duration),
}

#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: VecDeque<Next>,
    volumes: BTreeSet<String>,
    asked: Vec<ProvisionOptions>,
    deleted: Vec<DeleteOptions>,
    refuses_to_delete: bool,
    /// Where it is: what is on another node it leaves to another.
    node: Option<&'static str>,
}

impl Shelf {
    fn next(&self, next: Next) {
        self.0.lock().unwrap().next.push_back(next);
    }

    fn volumes(&self) -> usize {
        self.0.lock().unwrap().volumes.len()
    }

    fn asked(&self) -> Vec<ProvisionOptions> {
        self.0.lock().unwrap().asked.clone()
    }
}

#[async_trait]
impl Provisioner for Shelf {
    async fn provision(&self, options: ProvisionOptions) -> Provisioned {
        let made = options.made("hostPath", json!({ "path": "/shelf" }));
        let (silence, says) = {
            let mut state = self.0.lock().unwrap();
            let made = Provisioned::Finished(Ok(match state.node {
                Some(node) => made.only_from(HOSTNAME, node),
                None => made,
            }));
            state.asked.push(options.clone());
            let (is_made, silence, says) = match state.next.pop_front() {
                None => (true, Duration::ZERO, made),
                Some(Next::Says(says)) => (false, Duration::ZERO, says),
                Some(Next::MadeAndSays(says)) => (true, Duration::ZERO, says),
                Some(Next::MadeAndSilent) => (true, Duration::MAX, made),
                Some(Next::Slow(silence)) => (true, silence, made),
            };
            if is_made {
                state.volumes.insert(options.volume);
            }
            (silence, says)
        };
        tokio::time::sleep(silence).await;
        says
    }

    async fn delete(&self, options: DeleteOptions) -> Result<(), Failure> {
        let mut state = self.0.lock().unwrap();
        state.deleted.push(options.clone());
        if let Some(node) = state.node {
            options.must_be_reached_from(HOSTNAME, node)?;
        }
        if std::mem::take(&mut state.refuses_to_delete) {
            return Err(not_deleted("the shelf is stuck"));
        }
        state.volumes.remove(&options.volume);
        Ok(())
    }

    fn supports_access_mode(&self, mode: AccessMode) -> bool {
        mode == AccessMode::ReadWriteOnce
    }
}

fn start(world: &World, shelf: &Shelf) -> Running {
    start_with(world, shelf, Options::of_library())
}

fn start_with(world: &World, shelf: &Shelf, options: Options) -> Running {
    let shelf = shelf.clone();
    world.start_with(|context| library::run(context, DRIVER, Arc::new(shelf), options))
}

async fn world_and_shelf() -> (World, Shelf) {
    let world = World::new();
    world.make_class(json!({ "pool": "a" }), "Delete").await;
    (world, Shelf::default())
}

/// Lets backoffs pass.
async fn wait() {
    tokio::time::sleep(Duration::from_secs(30)).await;
}

#[tokio::test(start_paused = true)]
async fn finished_is_a_volume_that_is_bound_by_its_object_and_deleted_with_it() {
    let (world, shelf) = world_and_shelf().await;
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["hostPath"]["path"], "/shelf");
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
    let asked = shelf.asked().remove(0);
    assert_eq!((asked.claim.name.as_str(), asked.class.parameters["pool"].as_str()), ("db", "a"));

    world.delete_claim("db").await;
    shelf.0.lock().unwrap().refuses_to_delete = true;
    world.release(&name).await;
    world.until("the event", async || !world.events_everywhere("VolumeFailedDelete").await.is_empty()).await;
    assert!(world.events_everywhere("VolumeFailedDelete").await[0].contains("the shelf is stuck"));
    wait().await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(shelf.volumes(), 0);
    let deleted = shelf.0.lock().unwrap().deleted.clone();
    assert_eq!(deleted[0].location.as_ref().unwrap().value["path"], "/shelf");
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

/// On another node the data look as if they were gone; the volume went as deleted, and they stayed.
#[tokio::test(start_paused = true)]
async fn a_volume_of_another_node_is_left_to_its_instance_without_a_word() {
    let (world, shelf) = world_and_shelf().await;
    shelf.0.lock().unwrap().node = Some("n1");
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let path = format!("/api/v1/persistentvolumes/{name}");
    world.send(Method::PATCH, &path, json!({ "metadata": { "annotations": { "shelf": "upper" } } })).await;
    shelf.0.lock().unwrap().node = Some("n2");
    world.delete_claim("db").await;
    world.release(&name).await;
    world.until("the try", async || shelf.0.lock().unwrap().deleted.len() == 1).await;
    tokio::time::sleep(Duration::from_secs(240)).await;
    world.settle().await;
    let asked = shelf.0.lock().unwrap().deleted.clone();
    assert_eq!(asked.len(), 1, "it is asked again rarely");
    assert_eq!(asked[0].places.as_deref(), Some([[(HOSTNAME.to_owned(), "n1".to_owned())].into()].as_slice()));
    assert_eq!(asked[0].annotations["shelf"], "upper");
    let volume = world.volume(&name).await;
    assert_eq!(volume["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(volume["metadata"]["deletionTimestamp"].is_null());
    assert!(world.events_everywhere("VolumeFailedDelete").await.is_empty());
    assert!(!running.context.metrics.encode().contains("delete_failed_total{"), "it is no failure");
    // It comes back to where the volume is.
    shelf.0.lock().unwrap().node = Some("n1");
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(shelf.volumes(), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn finished_with_a_failure_is_told_and_tried_again_or_forgotten_with_its_claim() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::Says(Provisioned::failed("the shelf is full")));
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("the shelf is full"));
    wait().await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert!(!shelf.asked()[1].may_exist, "the failure was the last word");

    shelf.next(Next::Says(Provisioned::failed("the shelf is full")));
    world.make_claim("gone", "1Gi").await;
    world.until("the failure", async || shelf.asked().len() == 3).await;
    world.settle().await;
    world.delete_claim("gone").await;
    wait().await;
    world.settle().await;
    assert_eq!(shelf.asked().len(), 3, "nothing was made, so nobody has to be asked");
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn in_background_is_asked_again_until_known_also_for_a_claim_that_is_gone() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::MadeAndSays(Provisioned::in_background("the shelf is being built")));
    shelf.next(Next::Says(Provisioned::in_background("still")));
    let running = start(&world, &shelf);
    world.make_claim("db", "1Gi").await;
    world.until("the try", async || shelf.asked().len() == 1).await;
    world.settle().await;
    world.delete_claim("db").await;
    wait().await;
    world.until("the cleanup", async || shelf.volumes() == 0).await;
    let asked = shelf.asked();
    assert!(asked.len() == 3 && asked[1].may_exist && asked[2].may_exist);
    assert_eq!((&asked[0].volume, asked[0].bytes), (&asked[2].volume, asked[2].bytes));
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_change_leaves_what_is_known_as_it_was() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::Says(Provisioned::no_change("the shelf is asleep")));
    shelf.next(Next::MadeAndSays(Provisioned::in_background("it wakes up")));
    shelf.next(Next::Says(Provisioned::no_change("it is asleep again")));
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    for _ in 0..3 {
        wait().await;
    }
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let known: Vec<bool> = shelf.asked().iter().map(|options| options.may_exist).collect();
    assert_eq!(known, [false, false, true, true]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reschedule_gives_the_claim_back_and_another_node_is_tried() {
    let (world, shelf) = world_and_shelf().await;
    world.wait_for_consumers().await;
    shelf.next(Next::Says(Provisioned::reschedule("there is no shelf on n1")));
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    world.settle().await;
    assert!(shelf.asked().is_empty(), "no node was chosen yet");
    world.select_node("db", json!("n1")).await;
    world.until("the node is given back", async || world.selected_node("db").await.is_null()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("there is no shelf on n1"));
    world.select_node("db", json!("n2")).await;
    wait().await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let nodes: Vec<Option<String>> = shelf.asked().into_iter().map(|options| options.selected_node).collect();
    assert_eq!(nodes, [Some("n1".to_owned()), Some("n2".to_owned())]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_try_is_waited_for_unless_a_limit_is_asked_for() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::Slow(Duration::from_secs(3600)));
    let running = start(&world, &shelf);
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(Duration::from_secs(3590)).await;
    world.settle().await;
    assert!(world.volume(&name).await.is_null() && world.events("ProvisioningFailed").await.is_empty());
    wait().await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(shelf.asked().len(), 1);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_try_that_never_answers_is_cancelled_and_followed_up_where_a_limit_is_asked_for() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::MadeAndSilent);
    let running = start_with(&world, &shelf, Options::default());
    let name = world.make_claim("db", "1Gi").await;
    wait().await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("DeadlineExceeded: cancelled after 10 s"));
    assert_eq!(world.events("Provisioning").await.len(), 1, "who waits for longer than a second is told");
    assert_eq!(shelf.asked().len(), 2);
    assert_eq!(shelf.volumes(), 1);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_made_before_a_crash_whose_claim_is_gone_is_found_and_deleted() {
    let (world, shelf) = world_and_shelf().await;
    shelf.next(Next::MadeAndSilent);
    let running = start(&world, &shelf);
    world.make_claim("db", "1Gi").await;
    world.until("the try", async || shelf.volumes() == 1).await;
    running.crash();
    world.delete_claim("db").await;
    let running = start(&world, &shelf);
    world.ready(&running).await;
    world.until("the cleanup", async || shelf.volumes() == 0).await;
    // Its end is decided on, too.
    world.settle().await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn modes_and_devices_that_are_not_supported_are_told_with_the_way_out() {
    let (world, shelf) = world_and_shelf().await;
    let running = start(&world, &shelf);
    world.make_claim_with("many", |claim| claim["spec"]["accessModes"] = json!(["ReadWriteMany"])).await;
    world.make_claim_with("device", |claim| claim["spec"]["volumeMode"] = json!("Block")).await;
    world.until("both events", async || world.events("ProvisioningFailed").await.len() == 2).await;
    let told = world.events("ProvisioningFailed").await.join("\n");
    assert!(told.contains("ReadWriteMany") && told.contains("claim with ReadWriteOnce"), "{told}");
    assert!(told.contains("spec.volumeMode is Block"), "{told}");
    assert!(shelf.asked().is_empty());
    running.drain().await.unwrap();
}
