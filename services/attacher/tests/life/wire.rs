//! The whole requests as a driver gets them: sections 3.5 and 3.6, with everything set that a volume can say.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::volume_capability::MountVolume;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability};
use stowage_model::object::{Key, kinds};

use crate::backend::{Backend, DRIVER};
use crate::{NODE, Stage, options};

const EBS: &str = "ebs.csi.aws.com";

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn secrets() -> BTreeMap<String, String> {
    map(&[("password", "p"), ("user", "u")])
}

fn mount(fs_type: &str, flags: &[&str]) -> Option<MountVolume> {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Some(MountVolume { fs_type: fs_type.into(), mount_flags, ..MountVolume::default() })
}

/// A volume that says everything, by this driver.
fn whole(driver: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "mountOptions": ["noatime", "nodev"],
        "csi": {
            "driver": driver, "volumeHandle": "handle-1", "fsType": "xfs", "readOnly": true,
            "volumeAttributes": { "pool": "fast", "storage.kubernetes.io/csiProvisionerIdentity": "id" },
            "controllerPublishSecretRef": { "namespace": "default", "name": "attach" },
            "nodeStageSecretRef": { "namespace": "default", "name": "not-this-one" },
        },
    })
}

async fn make_secret(stage: &Stage) {
    let secret = json!({
        "metadata": { "namespace": "default", "name": "attach" }, "data": { "user": "dQ==", "password": "cA==" },
    });
    stage.world.admin().create(kinds::SECRET, secret).await.unwrap();
}

async fn make_volume(stage: &Stage, mut spec: Value) {
    spec["capacity"] = json!({ "storage": "1Gi" });
    let volume = json!({ "metadata": { "name": "pv" }, "spec": spec });
    stage.world.admin().create(kinds::VOLUME, volume).await.unwrap();
}

/// Attaches this source and detaches it; what the driver was asked for both.
async fn asked(stage: &Stage, source: Value) -> (ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest) {
    let spec = json!({ "attacher": stage.backend.name(), "nodeName": NODE, "source": source });
    let attachment = json!({ "metadata": { "name": "va-a" }, "spec": spec });
    stage
        .play(options(), async {
            let (admin, key) = (stage.world.admin(), Key::cluster("va-a"));
            admin.create(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
            stage.until("attached", || stage.attachment("a").status.attached).await;
            let shown = admin.get_raw(kinds::VOLUME_ATTACHMENT, &key).unwrap()["status"].clone();
            assert_eq!(shown["attachmentMetadata"], json!(stage.backend.publish_context), "{shown}");
            admin.delete(kinds::VOLUME_ATTACHMENT, &key).await.unwrap();
            stage.until("detached", || !admin.exists(kinds::VOLUME_ATTACHMENT, &key)).await;
        })
        .await;
    let mut state = stage.backend.lock();
    assert_eq!((state.publish_requests.len(), state.unpublish_requests.len()), (1, 1));
    (state.publish_requests.remove(0), state.unpublish_requests.remove(0))
}

fn named() -> Value {
    json!({ "persistentVolumeName": "pv" })
}

#[tokio::test(start_paused = true)]
async fn both_calls_carry_all_that_a_volume_says_and_the_secret_for_attaching() {
    let backend = Backend {
        can: vec![Call::PublishReadonly, Call::SingleNodeMultiWriter],
        publish_context: map(&[("devicePath", "/dev/x"), ("token", "7")]),
        ..Backend::default()
    };
    let stage = Stage::set(backend).await;
    make_secret(&stage).await;
    make_volume(&stage, whole(DRIVER)).await;
    let (publish, unpublish) = asked(&stage, named()).await;
    let expected = ControllerPublishVolumeRequest {
        volume_id: "handle-1".into(),
        node_id: "id-1".into(),
        volume_capability: Some(VolumeCapability::new(
            Mode::SingleNodeMultiWriter.into(),
            mount("xfs", &["noatime", "nodev"]),
        )),
        readonly: true,
        secrets: secrets(),
        volume_context: map(&[("pool", "fast"), ("storage.kubernetes.io/csiProvisionerIdentity", "id")]),
    };
    assert_eq!(publish, expected);
    let expected =
        ControllerUnpublishVolumeRequest { volume_id: "handle-1".into(), node_id: "id-1".into(), secrets: secrets() };
    assert_eq!(unpublish, expected);
}

#[tokio::test(start_paused = true)]
async fn a_device_of_a_driver_that_knows_neither_read_only_nor_finer_modes_is_asked_for_without_them() {
    let stage = Stage::set(Backend::default()).await;
    let mut spec = whole(DRIVER);
    spec["volumeMode"] = "Block".into();
    spec["csi"].as_object_mut().unwrap().remove("controllerPublishSecretRef");
    make_volume(&stage, spec).await;
    let (publish, unpublish) = asked(&stage, named()).await;
    let expected = ControllerPublishVolumeRequest {
        volume_id: "handle-1".into(),
        node_id: "id-1".into(),
        volume_capability: Some(VolumeCapability::new(Mode::SingleNodeWriter.into(), None)),
        readonly: false,
        secrets: BTreeMap::new(),
        volume_context: map(&[("pool", "fast"), ("storage.kubernetes.io/csiProvisionerIdentity", "id")]),
    };
    assert_eq!(publish, expected);
    assert_eq!(unpublish.secrets, BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_an_in_tree_plugin_is_asked_for_as_its_driver_knows_it() {
    let stage = Stage::set(Backend { name: Some(EBS), can: vec![Call::PublishReadonly], ..Backend::default() }).await;
    let source = json!({ "volumeID": "aws://eu-west-1a/vol-1", "fsType": "xfs", "partition": 2, "readOnly": true });
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "awsElasticBlockStore": source,
    });
    make_volume(&stage, spec).await;
    let (publish, unpublish) = asked(&stage, named()).await;
    let expected = ControllerPublishVolumeRequest {
        volume_id: "vol-1".into(),
        node_id: "id-1".into(),
        volume_capability: Some(VolumeCapability::new(Mode::SingleNodeWriter.into(), mount("xfs", &["noatime"]))),
        readonly: true,
        secrets: BTreeMap::new(),
        volume_context: map(&[("partition", "2")]),
    };
    assert_eq!(publish, expected);
    let expected = ControllerUnpublishVolumeRequest {
        volume_id: "vol-1".into(),
        node_id: "id-1".into(),
        secrets: BTreeMap::new(),
    };
    assert_eq!(unpublish, expected);
}

/// As the attach-detach controller writes a pod's own volume of a plugin that a driver took over.
#[tokio::test(start_paused = true)]
async fn a_volume_that_the_attachment_itself_describes_is_asked_for_with_its_secret() {
    let stage = Stage::set(Backend { name: Some(EBS), can: vec![Call::PublishReadonly], ..Backend::default() }).await;
    make_secret(&stage).await;
    let (publish, unpublish) = asked(&stage, json!({ "inlineVolumeSpec": whole(EBS) })).await;
    let expected = ControllerPublishVolumeRequest {
        volume_id: "handle-1".into(),
        node_id: "id-1".into(),
        volume_capability: Some(VolumeCapability::new(
            Mode::SingleNodeWriter.into(),
            mount("xfs", &["noatime", "nodev"]),
        )),
        readonly: true,
        secrets: secrets(),
        volume_context: map(&[("pool", "fast"), ("storage.kubernetes.io/csiProvisionerIdentity", "id")]),
    };
    assert_eq!(publish, expected);
    assert_eq!((unpublish.volume_id.as_str(), unpublish.secrets), ("handle-1", secrets()));
}

#[tokio::test(start_paused = true)]
async fn neither_call_is_made_without_the_secret_it_needs_and_the_trouble_names_the_field() {
    let stage = Stage::set(Backend::default()).await;
    make_volume(&stage, whole(DRIVER)).await;
    let spec = json!({ "attacher": DRIVER, "nodeName": NODE, "source": named() });
    let attachment = json!({ "metadata": { "name": "va-a" }, "spec": spec });
    stage
        .play(options(), async {
            let (admin, key) = (stage.world.admin(), Key::cluster("va-a"));
            admin.create(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
            stage.until("told", || stage.attachment("a").status.attach_error.is_some()).await;
            let shown = stage.attachment("a").status.attach_error.unwrap();
            assert_eq!(shown.message, "controllerPublishSecretRef: secret default/attach does not exist; create it");
            assert_eq!(shown.error_code, None, "the driver said nothing");
            admin.delete(kinds::VOLUME_ATTACHMENT, &key).await.unwrap();
            stage.until("told", || stage.attachment("a").status.detach_error.is_some()).await;
            let shown = stage.attachment("a").status.detach_error.unwrap();
            assert_eq!(shown.message, "controllerPublishSecretRef: secret default/attach does not exist; create it");
            let state = stage.backend.lock();
            assert_eq!((state.publish_requests.len(), state.unpublish_requests.len()), (0, 0));
        })
        .await;
    make_secret(&stage).await;
    stage
        .play(options(), async {
            let gone = || !stage.world.admin().exists(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a"));
            stage.until("detached", gone).await;
        })
        .await;
    let state = stage.backend.lock();
    assert_eq!((state.publish_requests.len(), state.unpublish_requests.len()), (0, 1));
}
