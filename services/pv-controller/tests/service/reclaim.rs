//! From a volume object to the files on this machine's disk: when they go, and when a last look keeps them.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use pv_controller::{Eraser, Options, Recycling};
use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Volume};
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::world::{World, until, until_gone};

const PATH: &str = "/persistentvolumes/v";
const STATUS: &str = "/persistentvolumes/v/status";
const VOLUMES: &str = "/persistentvolumes";
const CLAIMS: &str = "/persistentvolumeclaims";

fn options() -> Options {
    Options { recycling: Recycling { eraser: Eraser::Plugin, ..Recycling::default() }, ..Options::default() }
}

/// A volume's directory, with files in it and beside it.
struct Files {
    root: TempDir,
}

impl Files {
    fn new() -> Self {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        fs::create_dir_all(root.path().join("volume/a/b")).unwrap();
        for name in ["volume/file", "volume/.hidden", "volume/a/b/deep", "beside"] {
            fs::write(root.path().join(name), "secret").unwrap();
        }
        Self { root }
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("volume")
    }

    #[track_caller]
    fn are_kept(&self) {
        let read = |name: &str| fs::read_to_string(self.directory().join(name)).unwrap();
        assert_eq!(["file", ".hidden", "a/b/deep"].map(read), ["secret"; 3]);
    }

    fn volume(&self, policy: &str, claim: Value) -> Value {
        json!({
            "metadata": {
                "name": "v", "finalizers": ["kubernetes.io/pv-protection"],
                "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" },
            },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "claimRef": claim,
                "persistentVolumeReclaimPolicy": policy, "hostPath": { "path": self.directory() },
            },
        })
    }
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name, "finalizers": ["kubernetes.io/pvc-protection"] },
        "spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn gone() -> Value {
    json!({ "namespace": "default", "name": "gone", "uid": "gone" })
}

impl World {
    async fn change(&self, body: Value) {
        let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
        self.api.patch_raw(&id, body).await.unwrap();
    }

    async fn set_phase(&self, phase: &str) {
        let volume: Volume = self.api.get(&Key::cluster("v")).await.unwrap().unwrap();
        let (target, body) = (Target::any_version(&volume.meta), json!({ "status": { "phase": phase } }));
        self.api.patch(&Cache::<Volume>::new(), &target, Part::Status, Patch::Merge(body)).await.unwrap();
    }

    async fn remove<T: Projection>(&self, object: &T) {
        let target = Target::any_version(object.meta());
        self.api.delete(&Cache::<T>::new(), &target, Deletion::default()).await.unwrap();
    }

    /// A volume whose claim is gone: the service has called it released, has not heard the answer yet, and will see
    /// nothing of what becomes of it but by looking.
    async fn about_to_reclaim(files: &Files, policy: &str) -> Self {
        let world = Self::start_with(options()).await;
        world.wire.hold("PATCH", STATUS);
        world.create::<Volume>(files.volume(policy, gone())).await;
        world.wire.asked("PATCH", STATUS, 1).await;
        world.wire.hold("WATCH", VOLUMES);
        assert_eq!(world.wire.count("GET", PATH), 0);
        world
    }

    async fn looks_at_the_volume(&self) {
        self.wire.release("PATCH", STATUS);
        self.wire.asked("GET", PATH, 1).await;
    }

    /// The claim gets the volume, which the service knows of from its look alone.
    async fn binds_the_volume(&self) {
        self.create::<Claim>(claim("next")).await;
        until(&self.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
        let events = self.raw_events().await;
        assert!(events.iter().all(|event| event["type"] == "Normal"), "{events:?}");
    }
}

/// A pair is bound, and then the claim is deleted.
async fn without_its_claim(files: &Files, policy: &str) -> World {
    let world = World::start_with(options()).await;
    world.create::<Volume>(files.volume(policy, Value::Null)).await;
    let bound: Claim = world.create(claim("c")).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
    files.are_kept();
    world.remove(&bound).await;
    world
}

#[tokio::test]
async fn a_volume_that_this_process_recycles_is_empty_before_it_is_free() {
    let files = Files::new();
    let world = without_its_claim(&files, "Recycle").await;
    until(&world.volumes, |volume| volume.spec.claim_ref.is_none()).await;
    assert_eq!(fs::read_dir(files.directory()).unwrap().count(), 0);
    assert!(files.root.path().join("beside").is_file());
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    until(&world.events, |event| event.message == "volume v is erased and free again").await;
    assert!(world.pods.list().is_empty());
}

#[tokio::test]
async fn a_volume_that_is_deleted_loses_its_directory_before_its_object() {
    let files = Files::new();
    let world = without_its_claim(&files, "Delete").await;
    until(&world.volumes, |volume| volume.meta.is_deleting()).await;
    assert!(!files.directory().try_exists().unwrap());
    assert!(files.root.path().join("beside").is_file());
    until_gone(&world.volumes, "v").await;
}

#[tokio::test]
async fn a_retained_volume_keeps_its_files() {
    let files = Files::new();
    let world = without_its_claim(&files, "Retain").await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Released).await;
    files.are_kept();
}

#[tokio::test]
async fn s6_06_and_8_06_the_files_of_a_volume_whose_object_is_gone_are_left() {
    for policy in ["Recycle", "Delete"] {
        let files = Files::new();
        let world = World::about_to_reclaim(&files, policy).await;
        world.change(json!({ "metadata": { "finalizers": null } })).await;
        world.remove(&world.api.get::<Volume>(&Key::cluster("v")).await.unwrap().unwrap()).await;
        world.looks_at_the_volume().await;
        // Another of the name, whose work is none.
        world.create::<Volume>(files.volume("Retain", Value::Null)).await;
        world.wire.release("WATCH", VOLUMES);
        world.binds_the_volume().await;
        files.are_kept();
    }
}

#[tokio::test]
async fn s6_07_and_08_a_volume_that_is_free_already_when_its_work_begins_is_not_erased() {
    for policy in ["Recycle", "Delete"] {
        let files = Files::new();
        let world = World::about_to_reclaim(&files, policy).await;
        world.change(json!({ "spec": { "claimRef": null } })).await;
        world.set_phase("Available").await;
        world.looks_at_the_volume().await;
        world.binds_the_volume().await;
        files.are_kept();
    }
}

#[tokio::test]
async fn a_volume_that_is_to_be_retained_when_its_work_begins_is_not_erased() {
    for policy in ["Recycle", "Delete"] {
        let files = Files::new();
        let world = World::about_to_reclaim(&files, policy).await;
        world.change(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } })).await;
        world.looks_at_the_volume().await;
        // What the administrator did it for: another claim gets the volume with its files.
        world.wire.release("WATCH", VOLUMES);
        world.change(json!({ "spec": { "claimRef": null } })).await;
        world.binds_the_volume().await;
        files.are_kept();
    }
}

#[tokio::test]
async fn s8_07_a_claim_that_only_the_api_has_when_the_work_begins_keeps_its_volume() {
    for policy in ["Recycle", "Delete"] {
        let files = Files::new();
        let world = World::start_with(options()).await;
        world.create::<Volume>(files.volume(policy, Value::Null)).await;
        until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
        world.wire.hold("WATCH", CLAIMS);
        let mut body = claim("c");
        body["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
        body["spec"]["volumeName"] = "v".into();
        let unseen: Claim = world.create(body).await;
        // Released before it refers to the claim: whoever sees the one without the other cannot write.
        world.wire.hold("WATCH", VOLUMES);
        world.set_phase("Released").await;
        world
            .change(json!({ "spec": { "claimRef": { "namespace": "default", "name": "c", "uid": unseen.meta.uid } } }))
            .await;
        world.wire.release("WATCH", VOLUMES);
        world.wire.asked("GET", "/persistentvolumeclaims/c", 1).await;
        until(&world.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
        until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
        files.are_kept();
    }
}
