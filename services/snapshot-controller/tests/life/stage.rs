use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};

use snapshot_controller::Options;
use stowage_model::object::{Key, Kind, kinds};
use stowage_model::{VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent, annotations, finalizers};
use stowage_testing::{World, crds};

pub const DRIVER: &str = "driver.test";
pub const LIMIT: Duration = Duration::from_secs(3600);
pub const SERVICE: &str = "snapshot-controller";

/// A claim bound to a volume, and a class.
pub struct Stage {
    pub world: World,
}

/// What the snapshotter says of each content that it is asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snapshotter {
    Silent,
    Ready,
    Refusing,
}

pub fn named(name: &str) -> Key {
    Key::namespaced("shop", name)
}

impl Stage {
    pub async fn set() -> Self {
        let world = World::new(5);
        crds::install(world.admin()).await.unwrap();
        let stage = Self { world };
        stage.create(kinds::NAMESPACE, json!({ "metadata": { "name": "shop" } })).await;
        stage.add_claim("data", &json!({})).await;
        stage.add_class("gold", json!({ "deletionPolicy": "Delete" })).await;
        stage
    }

    pub async fn create(&self, kind: Kind, body: Value) -> Value {
        self.world.admin().create(kind, body).await.unwrap()
    }

    pub async fn add_class(&self, name: &str, rest: Value) {
        let mut body = rest;
        body["driver"] = json!(DRIVER);
        if body["metadata"].is_null() {
            body["metadata"] = json!({});
        }
        body["metadata"]["name"] = json!(name);
        self.create(kinds::VOLUME_SNAPSHOT_CLASS, body).await;
    }

    /// A claim with these labels, bound to a volume of its own.
    pub async fn add_claim(&self, name: &str, labels: &Value) {
        let volume = format!("pv-{name}");
        let claim = json!({
            "metadata": { "namespace": "shop", "name": name, "labels": labels },
            "spec": {
                "volumeName": volume,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let claim = self.create(kinds::CLAIM, claim).await;
        let bound = json!({ "status": { "phase": "Bound" } });
        self.world.admin().patch(kinds::CLAIM, &named(name), "/status", &bound).await.unwrap();
        let body = json!({
            "metadata": { "name": volume },
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "claimRef": { "namespace": "shop", "name": name, "uid": claim["metadata"]["uid"] },
                "csi": { "driver": DRIVER, "volumeHandle": format!("vol-{name}") },
            },
        });
        self.create(kinds::VOLUME, body).await;
    }

    pub async fn snapshot(&self, name: &str, class: Option<&str>) -> Value {
        let mut body = json!({
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "source": { "persistentVolumeClaimName": "data" } },
        });
        if let Some(class) = class {
            body["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        self.create(kinds::VOLUME_SNAPSHOT, body).await
    }

    pub fn get(&self, name: &str) -> Option<VolumeSnapshot> {
        self.world.admin().get(&named(name))
    }

    pub fn contents(&self) -> Vec<VolumeSnapshotContent> {
        self.world.admin().list()
    }

    pub fn claim_finalizers(&self, name: &str) -> Vec<String> {
        let claim = self.world.admin().get_raw(kinds::CLAIM, &named(name)).unwrap();
        serde_json::from_value(claim["metadata"]["finalizers"].clone()).unwrap_or_default()
    }

    pub fn is_kept(&self, claim: &str) -> bool {
        self.claim_finalizers(claim).iter().any(|finalizer| finalizer == finalizers::CLAIM_AS_SNAPSHOT_SOURCE)
    }

    pub async fn until(&self, what: &str, look: impl FnMut() -> bool) {
        self.world.until(what, LIMIT, look).await.unwrap_or_else(|hang| {
            panic!("{hang}\n{:#?}\n{}", self.world.admin().list_raw(kinds::VOLUME_SNAPSHOT), self.world.trace().text())
        });
    }

    pub async fn until_ready(&self, name: &str) {
        self.until(&format!("{name} is ready"), || self.get(name).is_some_and(|snapshot| snapshot.is_ready())).await;
    }

    pub fn reasons(&self, object: &str) -> Vec<String> {
        let events = self.world.admin().list_raw(kinds::EVENT);
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == object);
        about.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The writes of the controller, events apart.
    pub fn writes(&self) -> Vec<String> {
        let text = self.world.trace().text();
        let own = text.lines().filter(|line| line.starts_with(&format!("{SERVICE} #")));
        own.filter(|line| !line.contains("/events")).map(str::to_owned).collect()
    }

    pub fn missed_wakeups(&self) -> u64 {
        self.world.numbers().get(SERVICE).map(|numbers| numbers.missed_wakeups).unwrap_or_default()
    }

    /// Answers for the snapshotter, as the original's would, for ever.
    pub async fn answer(&self, mood: Snapshotter) {
        let admin = self.world.admin();
        loop {
            let seen = self.world.changes().count();
            for content in self.contents() {
                let key = Key::cluster(content.meta.name.as_str());
                let marked = content.meta.annotation(annotations::SNAPSHOT_BEING_DELETED).is_some();
                if content.meta.is_deleting() {
                    if marked && mood != Snapshotter::Silent {
                        let rest = json!({ "metadata": { "finalizers": null } });
                        admin.patch(kinds::VOLUME_SNAPSHOT_CONTENT, &key, "", &rest).await.unwrap();
                    }
                    continue;
                }
                let is_bound = !content.spec.volume_snapshot_ref.uid.is_empty();
                // A member's snapshot was made with its group.
                if content.meta.annotation(annotations::SNAPSHOT_GROUP_HANDLE).is_some() {
                    continue;
                }
                if content.status.is_some() || !is_bound || mood == Snapshotter::Silent {
                    continue;
                }
                let status = match mood {
                    Snapshotter::Refusing => json!({
                        "readyToUse": false,
                        "error": { "time": "2026-01-01T00:00:00Z", "message": "the pool is full" },
                    }),
                    _ => json!({
                        "snapshotHandle": format!("handle-{}", content.meta.name),
                        "readyToUse": true,
                        "creationTime": 1_700_000_000_000_000_000_i64,
                        "restoreSize": 1_073_741_824,
                    }),
                };
                let body = json!({ "status": status });
                admin.patch(kinds::VOLUME_SNAPSHOT_CONTENT, &key, "/status", &body).await.unwrap();
            }
            self.answer_groups(mood).await;
            self.world.changes().beyond(seen).await;
        }
    }

    async fn answer_groups(&self, mood: Snapshotter) {
        let admin = self.world.admin();
        for content in admin.list::<VolumeGroupSnapshotContent>() {
            let key = Key::cluster(content.meta.name.as_str());
            if content.meta.is_deleting() {
                if content.meta.annotation(annotations::GROUP_SNAPSHOT_BEING_DELETED).is_some() {
                    let rest = json!({ "metadata": { "finalizers": null } });
                    admin.patch(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT, &key, "", &rest).await.unwrap();
                }
                continue;
            }
            if content.status.is_some() || mood != Snapshotter::Ready {
                continue;
            }
            let info = |handle: &String| {
                json!({
                    "volumeHandle": handle, "snapshotHandle": format!("of-{handle}"), "readyToUse": true,
                    "creationTime": 1_700_000_000_000_000_000_i64, "restoreSize": 4096,
                })
            };
            let infos: Vec<Value> = content.spec.source.volume_handles.iter().map(info).collect();
            let status = json!({
                "volumeGroupSnapshotHandle": "group-1", "readyToUse": true,
                "creationTime": "2026-01-01T00:00:00Z", "volumeSnapshotInfoList": infos,
            });
            let body = json!({ "status": status });
            admin.patch(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT, &key, "/status", &body).await.unwrap();
        }
    }

    /// Plays a story while the controller, started again whenever it is stopped, and the snapshotter run.
    pub async fn play(&self, options: Options, mood: Snapshotter, story: impl Future<Output = ()>) {
        let controller = async {
            loop {
                let life = self.world.life(SERVICE);
                tokio::select! {
                    biased;
                    () = life.gate.stopped() => {}
                    ended = snapshot_controller::run(life.context.clone(), options.clone()) => {
                        assert!(ended.is_err(), "it ended without being asked");
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = controller => {}
            () = self.answer(mood) => {}
            () = story => {}
        }
    }
}
