use serde_json::json;
use tokio::sync::oneshot;

use stowage_runtime::backoff::Backoff;
use stowage_runtime::clock::SystemClock;
use stowage_runtime::operation::{Ended, Operations};
use stowage_runtime::tasks::Tasks;

use super::*;

fn caches_with(attachment: &str) -> Caches {
    let caches = Caches::new("d.example".into());
    let volume = json!({
        "metadata": { "name": "pv", "uid": "pv", "resourceVersion": "1" },
        "spec": { "csi": { "driver": "d.example", "volumeHandle": "h" } },
    });
    let attachment = json!({
        "metadata": { "name": attachment, "uid": attachment, "resourceVersion": "2" },
        "spec": { "attacher": "d.example", "nodeName": "n", "source": { "persistentVolumeName": "pv" } },
    });
    caches.volumes.relist(vec![serde_json::from_value(volume).unwrap()], 2);
    caches.attachments.relist(vec![serde_json::from_value(attachment).unwrap()], 2);
    caches
}

fn subject(uid: &str, kind: Kind) -> Subject {
    Subject { handle: "h".into(), attachment_uid: uid.into(), kind }
}

/// A publish for the second attachment used to start beside the unpublish of the first, whose object was removed by hand.
#[tokio::test]
async fn a_call_for_an_attachment_that_is_gone_still_holds_its_handle_and_is_forgotten_when_it_ends() {
    let tasks = Tasks::new();
    let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
    let on_end = move |subject: &Subject| ended.send(subject.clone()).unwrap();
    let calls: Calls = Operations::new(tasks.spawner(), Arc::new(SystemClock), Backoff::DRIVER, on_end);
    let (answer, answered) = oneshot::channel();
    let call = async move { answered.await.unwrap() };
    calls.start(subject("first", Kind::Unpublish), call);
    let caches = caches_with("second");
    let key = Key::Handle("h".into());

    assert!(gather(&caches, &calls, &key).calling);
    let supervised = async {
        let mut tasks = tasks;
        tasks.supervise().await
    };
    answer.send(Ended::Done(PublishContext::new())).unwrap();
    tokio::select! {
        biased;
        _ = end.recv() => {}
        panicked = supervised => panic!("{panicked:?}"),
    }
    assert!(!gather(&caches, &calls, &key).calling);
    assert!(calls.keys().is_empty());
}
