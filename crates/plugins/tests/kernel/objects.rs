//! A watch of exactly the objects that pods name.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::Notify;

use stowage_apiserver::{Options, Server};
use stowage_model::node_view::NodeResources;
use stowage_model::object::{Key, ObjectId, Projection as _, kinds};
use stowage_plugins::objects::Bundles;
use stowage_plugins::{Objects, SourceId, WatchedObjects};
use stowage_runtime::Context;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::Cache;

fn context() -> Context {
    let client = kube::Client::new(Server::in_memory(Options::system()).service(), "default");
    Context::real(client, Arc::new(stowage_csi::UnixConnector), "test")
}

#[tokio::test]
async fn an_object_is_watched_for_as_long_as_a_pod_names_it_and_every_change_is_told() {
    let context = context();
    let (told, woken): (Arc<Mutex<Vec<SourceId>>>, _) = (Arc::default(), Arc::new(Notify::new()));
    let on_change = {
        let (told, woken) = (told.clone(), woken.clone());
        move |source: &SourceId| {
            told.lock().unwrap().push(source.clone());
            woken.notify_one();
        }
    };
    let (objects, feeds) = WatchedObjects::new(context.clone(), "node", on_change);
    let key = Key::namespaced("default", "c");
    let source = SourceId::ConfigMap(key.clone());
    let work = async {
        let object = |name: &str| json!({ "metadata": { "name": name, "namespace": "default" }, "data": { "a": "1" } });
        context.api.create_raw(kinds::CONFIG_MAP, object("other")).await.unwrap();
        objects.keep("one", [source.clone()]);
        objects.keep("two", [source.clone(), SourceId::Secret(key.clone())]);
        assert_eq!(objects.watched(), [(source.clone(), 2), (SourceId::Secret(key.clone()), 1)]);
        assert_eq!(objects.pods_of(&source), ["one", "two"]);
        assert!(objects.config_map(&key).await.unwrap().is_none() && objects.secret(&key).await.unwrap().is_none());

        context.api.create_raw(kinds::CONFIG_MAP, object("c")).await.unwrap();
        woken.notified().await;
        assert_eq!(objects.config_map(&key).await.unwrap().unwrap().data["a"], "1");
        let id = ObjectId { kind: kinds::CONFIG_MAP, key: key.clone() };
        context.api.patch_raw(&id, json!({ "data": { "a": "2" } })).await.unwrap();
        woken.notified().await;
        assert_eq!(objects.config_map(&key).await.unwrap().unwrap().data["a"], "2");
        assert_eq!(*told.lock().unwrap(), [source.clone(), source.clone()], "nothing is told of others");

        objects.release("one");
        assert_eq!(objects.watched()[0], (source.clone(), 1));
        objects.release("two");
        objects.release("two");
        assert_eq!(objects.watched(), []);
        // Nobody watches it, and one read is as true.
        assert_eq!(objects.config_map(&key).await.unwrap().unwrap().data["a"], "2");
        assert!(objects.config_map(&Key::namespaced("default", "a,b=c")).await.unwrap().is_none());
    };
    tokio::select! {
        biased;
        () = feeds.run() => panic!("the watches ended"),
        () = work => {}
    }
}

#[tokio::test]
async fn a_name_that_nobody_checked_watches_nothing_else() {
    let context = context();
    let (objects, feeds) = WatchedObjects::new(context.clone(), "node", |_| {});
    let work = async {
        let object = json!({ "metadata": { "name": "c", "namespace": "default" }, "data": { "a": "hunter2" } });
        context.api.create_raw(kinds::CONFIG_MAP, object).await.unwrap();
        for name in ["", "x,metadata.name!=x", "c=", "../default/configmaps/c", "c\\"] {
            let key = Key::namespaced("default", name);
            objects.keep("one", [SourceId::ConfigMap(key.clone())]);
            assert!(!matches!(objects.config_map(&key).await, Ok(Some(_))), "{name:?}");
        }
        assert!(!matches!(objects.trust_bundles(&Bundles::Named("b".into())).await, Ok(found) if !found.is_empty()));
        let node = objects.allocatable().await.unwrap();
        assert!(node.is_empty(), "the node is not there");
    };
    tokio::select! {
        biased;
        () = feeds.run() => panic!("the watches ended"),
        () = work => {}
    }
}

#[tokio::test]
async fn what_the_node_can_give_is_followed_from_the_first_question_on() {
    let context = context();
    let (objects, feeds) = WatchedObjects::new(context.clone(), "node", |_| {});
    let with = |memory: &str| json!({ "status": { "allocatable": { "memory": memory } } });
    let work = async {
        let mut node = with("1Gi");
        node["metadata"] = json!({ "name": "node" });
        context.api.create_raw(kinds::NODE, node).await.unwrap();
        let before = objects.allocatable().await.unwrap();
        assert_eq!(before["memory"], "1Gi".parse().unwrap());
        let node: NodeResources = context.api.get(&Key::cluster("node")).await.unwrap().unwrap();
        let target = Target::any_version(node.meta());
        context
            .api
            .patch(&Cache::<NodeResources>::new(), &target, Part::Status, Patch::Merge(with("2Gi")))
            .await
            .unwrap();
        // Nobody is told of it: a volume that is set up later finds it.
        while objects.allocatable().await.unwrap() == before {
            tokio::task::yield_now().await;
        }
        assert_eq!(objects.allocatable().await.unwrap()["memory"], "2Gi".parse().unwrap());
    };
    tokio::select! {
        biased;
        () = feeds.run() => panic!("the watches ended"),
        () = work => {}
    }
}
