//! A world with a driver, a volume in it and a claim bound to it; the test plays users, binder and kubelet.

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};

use resizer::Options;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use stowage_csi::v1::{CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, VolumeCapability};
use stowage_model::object::{Key, kinds};
use stowage_testing::driver::{Abilities, Growth};
use stowage_testing::{Listening, World};

pub const DRIVER: &str = "driver.test";
pub const SOCKET: &str = "/csi.sock";
pub const GI: i64 = 1 << 30;
const LIMIT: Duration = Duration::from_secs(7200);

pub struct Stage {
    pub world: World,
    pub handle: String,
    _listening: Listening,
}

pub fn options() -> Options {
    let mut options = Options::default();
    options.driver.csi_address = SOCKET.into();
    options
}

pub fn claim_key() -> Key {
    Key::namespaced("shop", "data")
}

impl Stage {
    /// A volume of 1Gi, bound; classes of attributes that the driver takes and one that it does not.
    pub async fn set() -> Self {
        Self::with(Abilities::default(), Growth::default()).await
    }

    pub async fn with(abilities: Abilities, growth: Growth) -> Self {
        let world = World::new(7);
        world.driver().enable(abilities);
        world.driver().grow(growth);
        let listening = world.sockets().listen(SOCKET, world.driver().routes("a", world.node("a")));
        let channel = world.life("test").context.csi.connect(SOCKET).unwrap();
        let capability = VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        };
        let request = CreateVolumeRequest {
            name: "pv".into(),
            capacity_range: Some(CapacityRange { required_bytes: GI, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            ..CreateVolumeRequest::default()
        };
        let made = ControllerClient::new(channel).create_volume(request).await.unwrap().into_inner();
        let stage = Self { world, handle: made.volume.unwrap().volume_id, _listening: listening };
        stage.bind().await;
        stage
    }

    async fn bind(&self) {
        let admin = self.world.admin();
        admin.create(kinds::NAMESPACE, json!({ "metadata": { "name": "shop" } })).await.unwrap();
        let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER, "allowVolumeExpansion": true });
        admin.create(kinds::STORAGE_CLASS, class).await.unwrap();
        for (name, driver, attribute) in [
            ("silver", DRIVER, "iops"),
            ("gold", DRIVER, "iops"),
            ("odd", DRIVER, "colour"),
            ("foreign", "other.test", "iops"),
        ] {
            let class = json!({
                "metadata": { "name": name }, "driverName": driver, "parameters": { attribute: name },
            });
            admin.create(kinds::ATTRIBUTES_CLASS, class).await.unwrap();
        }
        let claim = json!({
            "metadata": { "namespace": "shop", "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "pv",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let made = admin.create(kinds::CLAIM, claim).await.unwrap();
        let volume = json!({
            "metadata": { "name": "pv", "annotations": { "other.example/newer": "kept" } },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "claimRef": { "namespace": "shop", "name": "data", "uid": made["metadata"]["uid"] },
                "mountOptions": ["noatime"],
                "csi": {
                    "driver": DRIVER, "volumeHandle": self.handle, "fsType": "ext4",
                    "controllerExpandSecretRef": { "namespace": "shop", "name": "key" },
                },
            },
        });
        admin.create(kinds::VOLUME, volume).await.unwrap();
        let secret = json!({ "metadata": { "namespace": "shop", "name": "key" }, "data": { "password": "cA==" } });
        admin.create(kinds::SECRET, secret).await.unwrap();
        self.status(json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } }))
            .await;
    }

    pub async fn status(&self, status: Value) {
        let body = json!({ "status": status });
        self.world.admin().patch(kinds::CLAIM, &claim_key(), "/status", &body).await.unwrap();
    }

    pub async fn ask_for(&self, size: &str) {
        let body = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        self.world.admin().patch(kinds::CLAIM, &claim_key(), "", &body).await.unwrap();
    }

    /// A claim of a volume of the driver that the driver does not know, bound.
    pub async fn another_claim(&self, name: &str) {
        let admin = self.world.admin();
        let claim = json!({
            "metadata": { "namespace": "shop", "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": name,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let made = admin.create(kinds::CLAIM, claim).await.unwrap();
        let volume = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "claimRef": { "namespace": "shop", "name": name, "uid": made["metadata"]["uid"] },
                "csi": { "driver": DRIVER, "volumeHandle": name },
            },
        });
        admin.create(kinds::VOLUME, volume).await.unwrap();
        let status = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
        admin.patch(kinds::CLAIM, &Key::namespaced("shop", name), "/status", &status).await.unwrap();
    }

    pub async fn ask_another_for(&self, name: &str, size: &str) {
        let body = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        self.world.admin().patch(kinds::CLAIM, &Key::namespaced("shop", name), "", &body).await.unwrap();
    }

    pub async fn ask_for_class(&self, class: &str) {
        let body = json!({ "spec": { "volumeAttributesClassName": class } });
        self.world.admin().patch(kinds::CLAIM, &claim_key(), "", &body).await.unwrap();
    }

    /// The kubelet's part, as node-and-attach.md 3.12 says it ends.
    pub async fn grow_on_node(&self, size: &str) {
        self.status(json!({
            "capacity": { "storage": size }, "allocatedResourceStatuses": { "storage": null }, "conditions": null,
        }))
        .await;
    }

    /// Publishes the volume to the node.
    pub async fn attach(&self) {
        let channel = self.world.life("test").context.csi.connect(SOCKET).unwrap();
        let request = ControllerPublishVolumeRequest {
            volume_id: self.handle.clone(),
            node_id: "a".into(),
            volume_capability: Some(VolumeCapability::default()),
            ..ControllerPublishVolumeRequest::default()
        };
        ControllerClient::new(channel).controller_publish_volume(request).await.unwrap();
    }

    pub async fn detach(&self) {
        let channel = self.world.life("test").context.csi.connect(SOCKET).unwrap();
        let request = stowage_csi::v1::ControllerUnpublishVolumeRequest {
            volume_id: self.handle.clone(),
            node_id: "a".into(),
            ..Default::default()
        };
        ControllerClient::new(channel).controller_unpublish_volume(request).await.unwrap();
    }

    pub async fn pod(&self, name: &str) {
        let pod = json!({
            "metadata": { "namespace": "shop", "name": name },
            "spec": {
                "containers": [{ "name": "main", "image": "none" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        });
        self.world.admin().create(kinds::POD, pod).await.unwrap();
    }

    pub fn claim(&self) -> Value {
        self.world.admin().get_raw(kinds::CLAIM, &claim_key()).unwrap()
    }

    pub fn volume(&self) -> Value {
        self.world.admin().get_raw(kinds::VOLUME, &Key::cluster("pv")).unwrap()
    }

    pub fn resize_status(&self) -> String {
        self.claim()["status"]["allocatedResourceStatuses"]["storage"].as_str().unwrap_or_default().to_owned()
    }

    pub fn conditions(&self) -> Vec<String> {
        let claim = self.claim();
        let list = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        list.iter().map(|condition| condition["type"].as_str().unwrap().to_owned()).collect()
    }

    pub async fn until(&self, what: &str, look: impl FnMut() -> bool) {
        let hang = self.world.until(what, LIMIT, look).await;
        hang.unwrap_or_else(|hang| panic!("{hang}\n{}\n{}", self.claim(), self.world.trace().text()));
    }

    pub async fn until_capacity(&self, size: &str) {
        self.until(size, || self.claim()["status"]["capacity"]["storage"] == size).await;
    }

    pub async fn until_status(&self, status: &str) {
        self.until(status, || self.resize_status() == status).await;
    }

    /// What the resizer wrote and called, in short.
    pub fn acts(&self) -> Vec<String> {
        let points = self.world.trace().points();
        let ours = points.iter().filter(|point| point.service == "resizer");
        let words = ours.filter_map(|point| {
            let words: Vec<&str> = point.what.split(' ').collect();
            match words[..] {
                ["PATCH", path, ..] if path.contains("/events") => None,
                ["POST", ..] => None,
                ["PATCH", path, ..] if path.ends_with("/status") => Some("claim".to_owned()),
                ["PATCH", ..] => Some("volume".to_owned()),
                [path, ..] => path.rsplit('/').next().map(str::to_owned),
                [] => None,
            }
        });
        let asked = ["Probe", "GetPluginInfo", "GetPluginCapabilities"];
        words.filter(|word| !asked.contains(&word.as_str()) && !word.ends_with("GetCapabilities")).collect()
    }

    pub fn reasons(&self) -> Vec<String> {
        let events = self.world.admin().list_raw(kinds::EVENT);
        let mut told: Vec<(String, String)> = events
            .iter()
            .map(|event| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                assert_eq!(event["source"]["component"], format!("external-resizer {DRIVER}"));
                assert_eq!(event["involvedObject"]["kind"], "PersistentVolumeClaim");
                (text(&event["firstTimestamp"]), text(&event["reason"]))
            })
            .collect();
        told.sort();
        told.into_iter().map(|(_, reason)| reason).collect()
    }
}

/// Runs the resizer for ever, again after each time it was stopped, as its supervisor would.
pub async fn keep(stage: &Stage, options: &Options) {
    loop {
        let life = stage.world.life("resizer");
        tokio::select! {
            biased;
            () = life.gate.stopped() => {}
            ended = resizer::run(life.context.clone(), options.clone()) => {
                assert!(ended.is_err(), "ended without being asked");
            }
        }
    }
}

pub async fn in_world(stage: &Stage, options: Options, story: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = keep(stage, &options) => {}
        () = story => {}
    }
}
