//! A world with a driver and a volume in it; the test plays the snapshot-controller.

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};

use snapshotter::Options;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use stowage_csi::v1::{CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability};
use stowage_model::object::{Key, Kind, kinds};
use stowage_model::{annotations, finalizers};
use stowage_testing::driver::Abilities;
use stowage_testing::{Listening, World, crds};

pub const DRIVER: &str = "driver.test";
pub const SOCKET: &str = "/csi.sock";
pub const NAME: &str = "snapcontent-u";
pub const GROUP: &str = "groupsnapcontent-u";
pub const DEFINITION: Kind = Kind {
    group: "apiextensions.k8s.io",
    version: "v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};
const LIMIT: Duration = Duration::from_secs(3600);

pub struct Stage {
    pub world: World,
    pub volumes: Vec<String>,
    _listening: Listening,
}

pub fn options() -> Options {
    let mut options = Options::default();
    options.driver.csi_address = SOCKET.into();
    options
}

impl Stage {
    /// Two volumes, a class of each sort, and the definitions of all kinds.
    pub async fn set() -> Self {
        Self::with(Abilities::ALL).await
    }

    pub async fn with(abilities: Abilities) -> Self {
        let world = World::new(3);
        world.driver().enable(abilities);
        let listening = world.sockets().listen(SOCKET, world.driver().routes("a", world.node("a")));
        let channel = world.life("test").context.csi.connect(SOCKET).unwrap();
        let mut volumes = Vec::new();
        for name in ["pv-1", "pv-2"] {
            let request = CreateVolumeRequest {
                name: name.into(),
                volume_capabilities: vec![VolumeCapability {
                    access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
                    access_type: Some(AccessType::Mount(MountVolume::default())),
                }],
                ..CreateVolumeRequest::default()
            };
            let made = ControllerClient::new(channel.clone()).create_volume(request).await.unwrap().into_inner();
            volumes.push(made.volume.unwrap().volume_id);
        }
        crds::install(world.admin()).await.unwrap();
        let class = json!({ "metadata": { "name": "fast" }, "driver": DRIVER, "deletionPolicy": "Delete" });
        for kind in [kinds::VOLUME_SNAPSHOT_CLASS, kinds::VOLUME_GROUP_SNAPSHOT_CLASS] {
            world.admin().create(kind, class.clone()).await.unwrap();
        }
        Self { world, volumes, _listening: listening }
    }

    /// Removes the definitions whose names contain this, and returns them as they can be created again.
    pub async fn take_definitions(&self, part: &str) -> Vec<Value> {
        let mut taken = Vec::new();
        for definition in self.world.admin().list_raw(DEFINITION) {
            let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
            if name.contains(part) {
                self.world.admin().delete(DEFINITION, &Key::cluster(name.as_str())).await.unwrap();
                let metadata = json!({ "name": name, "annotations": definition["metadata"]["annotations"] });
                taken.push(json!({ "metadata": metadata, "spec": definition["spec"] }));
            }
        }
        taken
    }

    pub async fn remove_volume(&self) {
        let channel = self.world.life("test").context.csi.connect(SOCKET).unwrap();
        let request = DeleteVolumeRequest { volume_id: self.volumes[0].clone(), ..DeleteVolumeRequest::default() };
        ControllerClient::new(channel).delete_volume(request).await.unwrap();
    }

    /// A content as our snapshot-controller makes it.
    pub async fn make(&self, spoil: impl FnOnce(&mut Value)) {
        let mut content = json!({
            "metadata": { "name": NAME, "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND] },
            "spec": {
                "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "u" },
                "deletionPolicy": "Delete", "driver": DRIVER, "volumeSnapshotClassName": "fast",
                "source": { "volumeHandle": self.volumes[0] },
            },
        });
        spoil(&mut content);
        self.world.admin().create(kinds::VOLUME_SNAPSHOT_CONTENT, content).await.unwrap();
    }

    pub async fn make_group(&self, spoil: impl FnOnce(&mut Value)) {
        let mut content = json!({
            "metadata": { "name": GROUP, "finalizers": [finalizers::GROUP_SNAPSHOT_CONTENT_BOUND] },
            "spec": {
                "volumeGroupSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "u" },
                "deletionPolicy": "Delete", "driver": DRIVER, "volumeGroupSnapshotClassName": "fast",
                "source": { "volumeHandles": self.volumes },
            },
        });
        spoil(&mut content);
        self.world.admin().create(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT, content).await.unwrap();
    }

    /// Deletes a content as the snapshot-controller does when the user's object goes.
    pub async fn let_go(&self, kind: Kind, name: &str) {
        let key = match kind == kinds::VOLUME_SNAPSHOT_CONTENT {
            true => annotations::SNAPSHOT_BEING_DELETED,
            false => annotations::GROUP_SNAPSHOT_BEING_DELETED,
        };
        let mark = json!({ "metadata": { "annotations": { key: "yes" } } });
        // A sweep may find it gone already.
        if self.world.admin().exists(kind, &Key::cluster(name)) {
            self.world.admin().patch(kind, &Key::cluster(name), "", &mark).await.unwrap();
            self.world.admin().delete(kind, &Key::cluster(name)).await.unwrap();
        }
    }

    pub fn content(&self) -> Value {
        self.world.admin().get_raw(kinds::VOLUME_SNAPSHOT_CONTENT, &Key::cluster(NAME)).unwrap_or_default()
    }

    pub fn group(&self) -> Value {
        self.world.admin().get_raw(kinds::VOLUME_GROUP_SNAPSHOT_CONTENT, &Key::cluster(GROUP)).unwrap_or_default()
    }

    pub fn is_marked(&self) -> bool {
        self.content()["metadata"]["annotations"][annotations::SNAPSHOT_BEING_CREATED] == "yes"
    }

    pub async fn until(&self, what: &str, look: impl FnMut() -> bool) {
        self.world.until(what, LIMIT, look).await.unwrap_or_else(|hang| {
            panic!("{hang}\n{}\n{}\n{}", self.content(), self.group(), self.world.trace().text())
        });
    }

    pub async fn until_ready(&self) {
        self.until("ready", || self.content()["status"]["readyToUse"] == true).await;
    }

    pub async fn until_gone(&self) {
        self.until("gone", || self.content().is_null() && self.group().is_null()).await;
        let state = self.world.driver().snapshot();
        assert!(state.snapshots.is_empty() && state.groups.is_empty(), "leaked: {state:?}");
        assert_eq!(state.violations, Vec::<String>::new());
    }

    /// What the snapshotter wrote and called, in short.
    pub fn acts(&self) -> Vec<String> {
        let points = self.world.trace().points();
        let ours = points.iter().filter(|point| point.service == "snapshotter");
        let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
        let words = ours.map(|point| {
            let words: Vec<&str> = point.what.split(' ').collect();
            match words[..] {
                ["PATCH", path, ..] if path.ends_with("/status") => "write status".to_owned(),
                ["PATCH", _, ..] => "write".to_owned(),
                [verb, path, ..] if path.contains("events") => format!("{verb} event"),
                [path, ..] => last(path),
                [] => String::new(),
            }
        });
        let asked = ["Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"];
        words.filter(|word| !asked.contains(&word.as_str()) && !word.ends_with("GetCapabilities")).collect()
    }

    pub fn events(&self) -> Vec<(String, String)> {
        let events = self.world.admin().list_raw(kinds::EVENT);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| (text(&event["reason"]), text(&event["message"]))).collect()
    }
}

/// Runs the snapshotter for ever, again after each time it was stopped or gave up, as its supervisor would.
pub async fn keep(stage: &Stage, options: &Options) {
    loop {
        let life = stage.world.life("snapshotter");
        tokio::select! {
            biased;
            () = life.gate.stopped() => {}
            ended = snapshotter::run(life.context.clone(), options.clone()) => {
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
