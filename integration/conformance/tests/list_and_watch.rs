//! Reading: get, lists, selectors, watches.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::pin::pin;

use conformance_suite::rule;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .filter(|name| name != "kube-root-ca.crt")
        .collect()
}

#[tokio::test]
async fn an_object_is_read_as_it_was_answered_and_a_missing_one_is_not_found() {
    rule(async |world| {
        let made = world.map("a").await;
        assert_eq!(world.works("GET", &format!("{MAPS}/a"), Value::Null).await, made);
        let status = world.refused(404, "GET", &format!("{MAPS}/b"), Value::Null).await;
        assert_eq!(status["reason"], "NotFound");
        assert_eq!(status["message"], r#"configmaps "b" not found"#);
        assert_eq!(status["details"], json!({"name": "b", "kind": "configmaps"}));
    })
    .await;
}

#[tokio::test]
async fn pages_of_a_list_are_all_of_one_revision() {
    rule(async |world| {
        for name in ["a", "b", "c", "d"] {
            world.map(name).await;
        }
        let selected = format!("{MAPS}?labelSelector=name&limit=2");
        let first = world.works("GET", &selected, Value::Null).await;
        assert_eq!(names(&first), ["a", "b"]);
        world.map("bb").await;
        world.works("DELETE", &format!("{MAPS}/d"), Value::Null).await;
        let next = first["metadata"]["continue"].as_str().unwrap();
        let second = world.works("GET", &format!("{selected}&continue={next}"), Value::Null).await;
        assert_eq!(names(&second), ["c", "d"], "as it was when the list began");
        assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        assert!(second["metadata"]["continue"].as_str().unwrap_or_default().is_empty());
    })
    .await;
}

#[tokio::test]
async fn labels_select_by_equality_and_by_sets() {
    rule(async |world| {
        for name in ["a", "b", "c"] {
            world.map(name).await;
        }
        for (selector, expected) in [
            ("name%3Da", vec!["a"]),
            ("name%21%3Da,name", vec!["b", "c"]),
            ("name%20in%20(a,c)", vec!["a", "c"]),
            ("name%20notin%20(a),name", vec!["b", "c"]),
            ("other,name", vec![]),
        ] {
            let list = world.works("GET", &format!("{MAPS}?labelSelector={selector}"), Value::Null).await;
            assert_eq!(names(&list), expected, "{selector}");
        }
        world.refused(400, "GET", &format!("{MAPS}?labelSelector=a%20near%20b"), Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn fields_select_where_the_kind_has_them_and_others_are_refused() {
    rule(async |world| {
        world.map("a").await;
        world.map("b").await;
        let list = world.works("GET", &format!("{MAPS}?fieldSelector=metadata.name%3Db"), Value::Null).await;
        assert_eq!(names(&list), ["b"]);
        let status = world.refused(400, "GET", &format!("{MAPS}?fieldSelector=data.a%3Db"), Value::Null).await;
        assert!(status["message"].as_str().unwrap().contains("field label not supported"), "{status}");
        let pods = "/api/v1/namespaces/{ns}/pods?fieldSelector=spec.nodeName%3Dn,status.phase%3DRunning";
        world.works("GET", pods, Value::Null).await;
        let events = "/api/v1/namespaces/{ns}/events?fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3Dp";
        world.works("GET", events, Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_a_revision_shows_what_came_after_it() {
    rule(async |world| {
        let first = world.map("a").await;
        let from = first["metadata"]["resourceVersion"].as_str().unwrap();
        let second = world.map("b").await;
        let mut watch = world.watch(&format!("{MAPS}?watch=1&labelSelector=name&resourceVersion={from}")).await;
        assert_eq!(watch.expect("ADDED").await, second);
        let changed = world.patch("merge", &format!("{MAPS}/a"), json!({"data": {"a": "c"}})).await.json();
        assert_eq!(watch.expect("MODIFIED").await, changed);
        world.works("DELETE", &format!("{MAPS}/b"), Value::Null).await;
        let gone = watch.expect("DELETED").await;
        let revision = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        assert!(revision(&gone) > revision(&changed), "a deletion has a revision of its own");
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_nothing_or_zero_begins_with_what_there_is() {
    rule(async |world| {
        let made = world.map("a").await;
        for version in ["", "&resourceVersion=0"] {
            let mut watch = world.watch(&format!("{MAPS}?watch=1&labelSelector=name{version}")).await;
            assert_eq!(watch.expect("ADDED").await, made);
        }
    })
    .await;
}

#[tokio::test]
async fn an_object_that_leaves_the_selection_is_deleted_for_its_watch() {
    rule(async |world| {
        let made = world.map("a").await;
        let from = made["metadata"]["resourceVersion"].as_str().unwrap();
        let mut watch = world.watch(&format!("{MAPS}?watch=1&labelSelector=name%3Da&resourceVersion={from}")).await;
        world.patch("merge", &format!("{MAPS}/a"), json!({"metadata": {"labels": {"name": "other"}}})).await;
        watch.expect("DELETED").await;
        world.patch("merge", &format!("{MAPS}/a"), json!({"metadata": {"labels": {"name": "a"}}})).await;
        watch.expect("ADDED").await;
    })
    .await;
}

#[tokio::test]
async fn a_watch_list_marks_where_the_beginning_ends() {
    rule(async |world| {
        world.map("a").await;
        let path = format!(
            "{MAPS}?watch=1&labelSelector=name&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
        let mut watch = world.watch(&path).await;
        watch.expect("ADDED").await;
        let mark = watch.expect("BOOKMARK").await;
        assert_eq!(mark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        assert!(!mark["metadata"]["resourceVersion"].as_str().unwrap().is_empty());
        world.map("b").await;
        watch.expect("ADDED").await;
        let without = format!("{MAPS}?watch=1&sendInitialEvents=true");
        world.refused(422, "GET", &without, Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout() {
    rule(async |world| {
        let version = world.works("GET", MAPS, Value::Null).await["metadata"]["resourceVersion"].clone();
        let version = version.as_str().unwrap();
        let mut watch = world.watch(&format!("{MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=1")).await;
        while let Some((event, object)) = watch.next().await {
            assert!(event == "BOOKMARK" || object["metadata"]["name"] == "kube-root-ca.crt", "{event} {object}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_revision_of_the_future_is_refused_for_now() {
    rule(async |world| {
        let status = world.refused(504, "GET", &format!("{MAPS}?resourceVersion=999999999999"), Value::Null).await;
        assert_eq!(status["reason"], "Timeout");
        assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    })
    .await;
}

#[tokio::test]
async fn kube_rs_lists_and_watches_without_a_gap() {
    rule(async |world| {
        let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
        world.map("a").await;
        let list = maps.list(&ListParams::default().labels("name")).await.unwrap();
        assert_eq!(list.items.len(), 1);
        let version = list.metadata.resource_version.unwrap();
        world.map("b").await;
        let mut events = pin!(maps.watch(&WatchParams::default().labels("name"), &version).await.unwrap());
        world.map("c").await;
        let mut added = Vec::new();
        while added.last().is_none_or(|name| name != "c") {
            match events.try_next().await.unwrap().expect("the watch goes on") {
                WatchEvent::Added(map) => added.extend(map.metadata.name),
                WatchEvent::Bookmark(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(added, ["b", "c"]);
    })
    .await;
}

#[tokio::test]
async fn a_page_of_a_named_revision_is_of_exactly_that_revision() {
    rule(async |world| {
        world.map("a").await;
        let version = world.map("b").await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        world.map("c").await;
        let page = format!("{MAPS}?labelSelector=name&limit=10&resourceVersion={version}");
        let list = world.works("GET", &page, Value::Null).await;
        assert_eq!(
            (names(&list), &list["metadata"]["resourceVersion"]),
            (vec!["a".into(), "b".into()], &json!(version))
        );
        let exact = format!("{MAPS}?labelSelector=name&resourceVersionMatch=Exact&resourceVersion={version}");
        assert_eq!(names(&world.works("GET", &exact, Value::Null).await), ["a", "b"]);
        let newer = format!("{MAPS}?labelSelector=name&resourceVersionMatch=NotOlderThan&resourceVersion={version}");
        assert_eq!(names(&world.works("GET", &newer, Value::Null).await), ["a", "b", "c"]);
        world.refused(422, "GET", &format!("{MAPS}?resourceVersionMatch=Exact"), Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_left_of_a_list_is_counted_unless_it_is_selected() {
    rule(async |world| {
        for name in ["a", "b", "c"] {
            world.map(name).await;
        }
        let list = world.works("GET", &format!("{MAPS}?limit=1"), Value::Null).await;
        assert!(list["metadata"]["remainingItemCount"].as_u64().unwrap() >= 2, "{list}");
        let list = world.works("GET", &format!("{MAPS}?limit=1&labelSelector=name"), Value::Null).await;
        assert!(list["metadata"]["remainingItemCount"].is_null() && list["metadata"]["continue"].is_string(), "{list}");
    })
    .await;
}

#[tokio::test]
async fn labels_are_compared_as_numbers() {
    rule(async |world| {
        for (name, rank) in [("low", "3"), ("high", "30"), ("none", "x")] {
            world.works("POST", MAPS, json!({"metadata": {"name": name, "labels": {"rank": rank}}})).await;
        }
        for (selector, expected) in [("rank%3E3", "high"), ("rank%3C30", "low")] {
            let list = world.works("GET", &format!("{MAPS}?labelSelector={selector}"), Value::Null).await;
            assert_eq!(names(&list), [expected], "{selector}");
        }
        for broken in ["a%20b", "name%3D-x-", "rank%3Emany"] {
            world.refused(400, "GET", &format!("{MAPS}?labelSelector={broken}"), Value::Null).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_of_one_name_sees_only_that_one() {
    rule(async |world| {
        let version = world.map("a").await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        world.map("b").await;
        world.works("DELETE", &format!("{MAPS}/a"), Value::Null).await;
        let one = format!("{MAPS}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Da");
        let gone = world.watch(&one).await.expect("DELETED").await;
        assert_eq!(gone["metadata"]["name"], "a");
    })
    .await;
}

#[tokio::test]
async fn a_table_row_comes_with_as_much_of_its_object_as_asked_for() {
    rule(async |world| {
        world.map("a").await;
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
        for (include, kind) in [("", "PartialObjectMetadata"), ("Object", "ConfigMap")] {
            let path = format!("{MAPS}?labelSelector=name&includeObject={include}");
            let table = world.send("GET", &path, &accept, "").await.json();
            assert_eq!((&table["kind"], table["rows"].as_array().unwrap().len()), (&json!("Table"), 1), "{table}");
            assert_eq!(table["rows"][0]["object"]["kind"], kind, "{table}");
        }
    })
    .await;
}
