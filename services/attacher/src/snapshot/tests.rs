use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use stowage_csi::Channel;
use stowage_csi::identity::{ControllerCapabilities, PluginCapabilities};
use stowage_runtime::Context;
use stowage_runtime::engine::{self, Setup};
use stowage_runtime::operation::Ended;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Tasks;
use stowage_testing::World;

use super::*;
use crate::decide::Action;

/// Nothing is asked of the API or of the driver here.
fn controller(tasks: &Tasks) -> (Controller, Queue<Key>) {
    controller_in(Context::deaf(), tasks)
}

fn controller_in(context: Context, tasks: &Tasks) -> (Controller, Queue<Key>) {
    let setup = Setup::new(context, tasks.spawner());
    let driver = Driver {
        channel: Channel::in_process(tonic::service::Routes::default()),
        name: "d.example".into(),
        plugin: PluginCapabilities::new(),
        controller: ControllerCapabilities::from([Call::PublishUnpublishVolume]),
    };
    (Controller::new(&setup, &driver, &Options::default()), setup.queue)
}

fn volume(name: &str, handle: &str) -> Volume {
    let object = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": "1" },
        "spec": { "csi": { "driver": "d.example", "volumeHandle": handle } },
    });
    serde_json::from_value(object).unwrap()
}

fn attachment(name: &str, volume: &str, spoil: impl FnOnce(&mut Value)) -> VolumeAttachment {
    let mut object = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": "2" },
        "spec": { "attacher": "d.example", "nodeName": "n", "source": { "persistentVolumeName": volume } },
    });
    spoil(&mut object);
    serde_json::from_value(object).unwrap()
}

fn operation(uid: &str, kind: Kind) -> Operation {
    Operation { handle: "h".into(), attachment_uid: uid.into(), kind, node_id: "id-1".into() }
}

/// A publish for the second attachment used to start beside the unpublish of the first, whose object was removed by hand.
#[tokio::test]
async fn a_call_for_an_attachment_that_is_gone_still_holds_its_handle_and_is_forgotten_when_it_ends() {
    let mut tasks = Tasks::new();
    let (controller, queue) = controller(&tasks);
    controller.caches.volumes.relist(vec![volume("pv", "h")], 2);
    controller.caches.attachments.relist(vec![attachment("second", "pv", |_| {})], 2);
    let (answer, answered) = oneshot::channel();
    controller.operations.start(operation("first", Kind::Unpublish), async move { answered.await.unwrap() });
    let key = Key::Handle("h".into());
    let now = jiff::Timestamp::UNIX_EPOCH;

    assert_eq!(controller.gather(&key).calling, ["id-1".to_owned()].into());
    answer.send(Ended::Done(PublishContext::new())).unwrap();
    tokio::select! {
        biased;
        woken = queue.next() => assert_eq!(woken, key),
        panicked = tasks.supervise() => panic!("{panicked:?}"),
    }
    let snapshot = controller.gather(&key);
    assert!(snapshot.calling.is_empty());
    engine::Controller::note(&controller, &key, &snapshot, &crate::decide::decide(&snapshot, now), now);
    assert!(controller.operations.keys().is_empty());
}

#[tokio::test]
async fn gathering_and_deciding_change_nothing() {
    let tasks = Tasks::new();
    let (controller, _queue) = controller(&tasks);
    let volumes = vec![volume("a", "ha"), volume("b", "hb"), volume("c", "hb")];
    controller.caches.volumes.relist(volumes, 2);
    let deleting = |object: &mut Value| object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    let unclear = |object: &mut Value| object["spec"]["source"] = json!({});
    controller.caches.attachments.relist(
        vec![
            attachment("wanted", "a", |_| {}),
            attachment("going", "b", deleting),
            attachment("lost", "nowhere", |_| {}),
            attachment("unclear", "", unclear),
        ],
        2,
    );
    // One has ended for an attachment that is gone, one is under way.
    controller.operations.start(operation("gone", Kind::Publish), async { Ended::Done(PublishContext::new()) });
    controller.operations.start(operation("wanted", Kind::Publish), std::future::pending());
    tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await.unwrap_err();
    engine::assert_quiet(&controller, jiff::Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn a_volume_that_any_attachment_names_is_not_among_those_that_nobody_names() {
    let tasks = Tasks::new();
    let (controller, _queue) = controller(&tasks);
    controller.caches.volumes.relist(vec![volume("named", "h"), volume("unnamed", "h")], 2);
    let of_another = |object: &mut Value| object["spec"]["attacher"] = json!("other.example");
    controller.caches.attachments.relist(vec![attachment("foreign", "named", of_another)], 2);
    let snapshot = controller.gather(&Key::Handle("h".into()));
    let unnamed: Vec<&str> = snapshot.unnamed.iter().map(|volume| volume.meta.name.as_str()).collect();
    assert_eq!(unnamed, ["unnamed"]);
    assert!(snapshot.attachments.is_empty());
}

#[tokio::test]
async fn a_volume_of_an_in_tree_plugin_is_found_by_the_handle_its_driver_knows() {
    let tasks = Tasks::new();
    let setup = Setup::new(Context::deaf(), tasks.spawner());
    let driver = Driver {
        channel: Channel::in_process(tonic::service::Routes::default()),
        name: "ebs.csi.aws.com".into(),
        plugin: PluginCapabilities::new(),
        controller: ControllerCapabilities::from([Call::PublishUnpublishVolume]),
    };
    let controller = Controller::new(&setup, &driver, &Options::default());
    let in_tree = |name: &str, id: &str| {
        let metadata = json!({ "name": name, "uid": name, "resourceVersion": "1" });
        let source = json!({ "volumeID": id, "fsType": "xfs" });
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "awsElasticBlockStore": source });
        serde_json::from_value::<Volume>(json!({ "metadata": metadata, "spec": spec })).unwrap()
    };
    controller.caches.volumes.relist(vec![in_tree("pv", "aws://zone/vol-1"), in_tree("odd", "aws://vol-2")], 2);
    let ours = |object: &mut Value| object["spec"]["attacher"] = json!("ebs.csi.aws.com");
    let attachments = vec![attachment("a", "pv", ours), attachment("b", "odd", ours)];
    controller.caches.attachments.relist(attachments, 2);

    let snapshot = controller.gather(&Key::Handle("vol-1".into()));
    let [case] = &snapshot.attachments[..] else { panic!("{snapshot:?}") };
    let mut known = case.clone();
    known.node_id = Some("i-1".into());
    let request = known.publish_request(&snapshot.facts).unwrap();
    assert_eq!((request.volume_id.as_str(), request.volume_context["partition"].as_str()), ("vol-1", "0"));
    let odd = controller.gather(&Key::Attachment("b".into()));
    let error = odd.attachments[0].publish_request(&odd.facts).unwrap_err().to_string();
    assert!(error.contains("\"odd\"") && error.contains("aws://vol-2"), "{error}");
}

/// The refusal came after the attachment had gone, and nothing ever forgot it.
#[tokio::test]
async fn a_refusal_is_kept_for_an_attachment_that_is_there_and_for_no_other() {
    let tasks = Tasks::new();
    let mut life = World::new(5).life("attacher");
    life.forbid("PATCH", "/volumeattachments/");
    let (controller, _) = controller_in(life.context.clone(), &tasks);
    let [there, replaced, gone] = ["there", "replaced", "gone"].map(|name| attachment(name, "pv", |_| {}));
    let namesake = attachment("replaced", "pv", |object| object["metadata"]["uid"] = json!("another"));
    controller.caches.attachments.relist(vec![there.clone(), namesake], 2);
    for (written, is_kept) in [(there, true), (replaced, false), (gone, false)] {
        let action = Action::MarkAttachment { attachment: written.meta.clone(), node_id: "id-1".into() };
        let error = controller.carry_out("h".into(), action).await.unwrap_err();
        assert!(error.must_be_told(), "{error}");
        assert_eq!(controller.refusals.get(&written.meta.uid).is_some(), is_kept, "{}", written.meta.name);
    }
}
