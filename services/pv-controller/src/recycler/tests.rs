use std::io;
use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;

use stowage_plugins::Disk;
use stowage_plugins::nfs::Export;
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
        plugins: Plugins::of(&(Arc::new(Untouchable) as Arc<dyn Disk>)),
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
        let reclaimer = reclaimer(&context, Eraser::Plugin, Permit::new(|| true));
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

async fn existing_claim(context: &Context, names: &str) -> String {
    let claim = json!({
        "metadata": { "namespace": "default", "name": "gone" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": names,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = context.api.create_raw(kinds::CLAIM, claim).await.unwrap();
    claim["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// What became of the work, on a disk of which nothing may be removed and with no pod to do it.
async fn refused(context: &Context, eraser: Eraser, work: Work) -> Failure {
    let ended = reclaimer(context, eraser, Permit::new(|| true)).reclaim(work).await;
    assert!(context.api.list::<Pod>("", "").await.unwrap().is_empty(), "a pod would erase it");
    match ended {
        Ended::Uncertain(why) => why,
        other => panic!("{other:?}"),
    }
}

const WAYS: [(&str, Eraser); 3] = [("Delete", Eraser::Plugin), ("Recycle", Eraser::Plugin), ("Recycle", Eraser::Pod)];

#[tokio::test]
async fn s6_06_to_08_and_8_06_a_volume_that_changed_before_its_work_begins_is_left() {
    for (policy, eraser) in WAYS {
        for change in [
            json!({ "spec": { "claimRef": null } }),
            json!({ "spec": { "claimRef": { "uid": null } } }),
            json!({ "spec": { "claimRef": { "uid": "another" } } }),
            json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
        ] {
            let context = context();
            let volume = context.api.create_raw(kinds::VOLUME, released(policy, host_path_source())).await.unwrap();
            let work = Work::of(&serde_json::from_value(volume).unwrap());
            let id = ObjectId { kind: kinds::VOLUME, key: work.volume.clone() };
            context.api.patch_raw(&id, change.clone()).await.unwrap();
            let why = refused(&context, eraser, work).await;
            assert!(why.message.contains("not released any more"), "{change}: {}", why.message);
        }
        let context = context();
        let volume = context.api.create_raw(kinds::VOLUME, released(policy, host_path_source())).await.unwrap();
        let work = Work::of(&serde_json::from_value(volume).unwrap());
        let gone = Work { volume: Key::cluster("another"), ..work.clone() };
        let replaced = Work { uid: "of-its-forerunner".into(), ..work };
        for work in [gone, replaced] {
            let why = refused(&context, eraser, work).await;
            assert!(why.message.contains("not released any more"), "{}", why.message);
        }
    }
}

#[tokio::test]
async fn s8_07_a_volume_whose_claim_is_there_after_all_is_left() {
    for (policy, eraser) in WAYS {
        for names in ["v", ""] {
            let context = context();
            let mut body = released(policy, host_path_source());
            body["spec"]["claimRef"]["uid"] = existing_claim(&context, names).await.into();
            let volume = context.api.create_raw(kinds::VOLUME, body).await.unwrap();
            let why = refused(&context, eraser, Work::of(&serde_json::from_value(volume).unwrap())).await;
            assert!(why.message.contains("not released any more"), "{}", why.message);
        }
    }
}

/// The recycler pod of a volume, as it would be created.
fn recycler_pod(source: Value) -> Value {
    let raw = released("Recycle", source);
    let volume: Volume = serde_json::from_value(raw.clone()).unwrap();
    pod(&Recycling::default().host_path, &raw, &volume, &Work::of(&volume))
}

/// What the pod's one container runs, were its volume mounted there.
fn run(pod: &Value, mounted: &Path) -> std::process::ExitStatus {
    let container = &pod["spec"]["containers"][0];
    let words = |field: &str| container[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let inside = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let mut command = words("command").chain(words("args")).map(|word| word.replace(inside, mounted.to_str().unwrap()));
    std::process::Command::new(command.next().unwrap()).args(command).status().unwrap()
}

#[test]
fn the_recycler_pod_has_the_volume_where_its_command_looks_for_it() {
    for source in [host_path_source(), json!({ "nfs": { "server": "s", "path": "/v" } })] {
        let pod = recycler_pod(source.clone());
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
        assert_eq!(container["volumeMounts"], json!([{ "name": "vol", "mountPath": "/scrub" }]));
        let mut volume = source;
        volume["name"] = "vol".into();
        assert_eq!(spec["volumes"], json!([volume]));
        assert!(container["args"][1].as_str().unwrap().contains("/scrub"), "{container}");
        assert_eq!(container["image"], "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6");
        assert_eq!(spec["restartPolicy"], "Never", "it ends as its command does");
    }
}

#[test]
fn what_the_recycler_pod_runs_erases_everything_and_says_so() {
    let root = tempfile::tempdir().unwrap();
    let (volume, outside) = (root.path().join("volume"), root.path().join("outside"));
    std::fs::create_dir_all(volume.join("a/.b/c d")).unwrap();
    std::fs::create_dir_all(volume.join("..two")).unwrap();
    for name in ["file", ".hidden", "..dots", "-rf", "a b", "*", "new\nline", "quo'te\"", "$(id)", "a/.b/c d/\\deep"] {
        std::fs::write(volume.join(name), "secret").unwrap();
    }
    std::fs::write(&outside, "kept").unwrap();
    std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
    std::os::unix::fs::symlink(root.path().join("nowhere"), volume.join("dangling")).unwrap();
    let pod = recycler_pod(host_path_source());
    for time in ["first", "again"] {
        assert!(run(&pod, &volume).success(), "{time}");
        assert_eq!(std::fs::read_dir(&volume).unwrap().count(), 0, "{time}");
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
}

#[test]
fn what_the_recycler_pod_runs_fails_where_there_is_no_volume() {
    let root = tempfile::tempdir().unwrap();
    assert!(!run(&recycler_pod(host_path_source()), &root.path().join("missing")).success());
}
