use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;

use stowage_runtime::Context;
use stowage_runtime::tasks::Tasks;

use super::*;

/// A disk of which nothing may be removed.
struct Untouchable;

impl Disk for Untouchable {
    fn erase<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        self.remove(directory, permit)
    }

    fn remove<'a>(&'a self, directory: &'a Path, _permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        async move { panic!("{} is being removed", directory.display()) }.boxed()
    }

    fn erase_export<'a>(&'a self, export: &'a Export, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        self.remove(&export.path, permit)
    }
}

fn released(policy: &str, source: Value) -> Value {
    let mut volume = json!({
        "metadata": { "name": "v" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": policy,
            "claimRef": { "namespace": "default", "name": "gone", "uid": "gone" },
        },
    });
    json_patch::merge(&mut volume["spec"], &source);
    volume
}

fn reclaimer(context: &Context, eraser: Eraser, permit: Permit) -> Reclaimer {
    Reclaimer {
        api: context.api.clone(),
        caches: Caches::default(),
        recycling: Recycling { eraser, ..Recycling::default() },
        disk: Arc::new(Untouchable),
        permit,
        turns: Turns::new(1),
        pods_moved: signal::channel(0).1,
        recorder: context.recorder("test", &Tasks::new().spawner()),
        random: context.random.clone(),
    }
}

fn context() -> Context {
    let server = stowage_apiserver::Server::in_memory(stowage_apiserver::Options::system());
    let client = kube::Client::new(server.service(), "default");
    Context::real(client, Arc::new(stowage_csi::UnixConnector), "test")
}

fn host_path_source() -> Value {
    json!({ "hostPath": { "path": "/tmp/v" } })
}

#[tokio::test]
async fn the_right_to_remove_ends_when_somebody_takes_the_volume_back() {
    let context = context();
    let at = |policy: &str, revision: u64, change: Value| {
        let mut volume = released(policy, host_path_source());
        volume["metadata"]["resourceVersion"] = revision.to_string().into();
        json_patch::merge(&mut volume, &change);
        serde_json::from_value::<Volume>(volume).unwrap()
    };
    for taken_back in [
        at("Retain", 2, json!({})),
        at("Delete", 2, json!({ "spec": { "claimRef": null } })),
        at("Delete", 2, json!({ "spec": { "claimRef": { "uid": "another" } } })),
    ] {
        let reclaimer = reclaimer(&context, Eraser::Plugin, Permit::always());
        let released = at("Delete", 1, json!({}));
        let permit = reclaimer.permit_for(&Work::of(&released));
        reclaimer.caches.volumes.observe(released);
        assert!(permit.lasts());
        reclaimer.caches.volumes.observe(taken_back);
        assert!(!permit.lasts());
    }
}

#[tokio::test]
async fn a_deposed_leader_removes_nothing_and_tells_nobody() {
    let (path, export) = (host_path_source(), json!({ "nfs": { "server": "s", "path": "/v" } }));
    for (policy, source, eraser) in [
        ("Delete", path.clone(), Eraser::Plugin),
        ("Recycle", path.clone(), Eraser::Plugin),
        ("Recycle", export, Eraser::Plugin),
        ("Recycle", path, Eraser::Pod),
    ] {
        let context = context();
        let volume = context.api.create_raw(kinds::VOLUME, released(policy, source)).await.unwrap();
        let reclaimer = reclaimer(&context, eraser, Permit::new(|| false));
        let work = Work::of(&serde_json::from_value(volume).unwrap());
        let ended = reclaimer.reclaim(work).await;
        assert!(context.api.list::<Pod>("", "").await.unwrap().is_empty(), "a pod would erase it");
        assert!(matches!(&ended, Ended::Uncertain(why) if why.message.contains("does not lead")), "{ended:?}");
    }
}
