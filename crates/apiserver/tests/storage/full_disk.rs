//! A full disk fails writes, not the server.

use std::io;
use std::pin::pin;
use std::sync::mpsc;

use futures::poll;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use stowage_apiserver::{Options, Server};

use super::disk::Disk;
use super::{MAPS, call, map, open, revision, send};

#[tokio::test]
async fn a_full_disk_fails_writes_with_a_sentence_and_reads_go_on() {
    let disk = Disk::new(1);
    let server = open(&disk).unwrap();
    let (_, kept) = call(&server, Method::POST, MAPS, map("a", "kept")).await;
    disk.set_full(true);
    for _ in 0..3 {
        let response = send(&server, Method::POST, MAPS, &map("b", "lost")).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let status = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&status).unwrap();
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("space") && message.contains("test.redb"), "{message}");
        assert_eq!(call(&server, Method::GET, &format!("{MAPS}/a"), Value::Null).await, (StatusCode::OK, kept.clone()));
        assert_eq!(call(&server, Method::GET, &format!("{MAPS}/b"), Value::Null).await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn writes_work_again_as_soon_as_there_is_space() {
    let disk = Disk::new(2);
    let server = open(&disk).unwrap();
    let (_, first) = call(&server, Method::POST, MAPS, map("a", "1")).await;
    call(&server, Method::POST, MAPS, map("deleted", "1")).await;
    disk.set_full(true);
    let mut refused = tokio::task::JoinSet::new();
    for number in 0..16 {
        let server = server.clone();
        refused.spawn(async move {
            match number % 3 {
                0 => call(&server, Method::PUT, &format!("{MAPS}/a"), map("a", "lost")).await,
                1 => call(&server, Method::DELETE, &format!("{MAPS}/deleted"), Value::Null).await,
                _ => call(&server, Method::POST, MAPS, map(&format!("n{number}"), "lost")).await,
            }
        });
    }
    // Some of these see what others did before them, which is never kept: a conflict is as good as a failure.
    assert!(refused.join_all().await.iter().all(|(code, _)| !code.is_success()));
    disk.set_full(false);
    let (code, changed) = call(&server, Method::PUT, &format!("{MAPS}/a"), map("a", "2")).await;
    assert_eq!(code, StatusCode::OK, "{changed}");
    assert!(revision(&changed) > revision(&first));
    let watch = format!("{MAPS}?watch=1&resourceVersion={}&timeoutSeconds=1", revision(&first));
    let events = send(&server, Method::GET, &watch, &Value::Null).await.into_body().collect().await.unwrap().to_bytes();
    let events: Vec<Value> = serde_json::Deserializer::from_slice(&events).into_iter().map(Result::unwrap).collect();
    let seen: Vec<(&str, &str)> =
        events.iter().map(|e| (e["type"].as_str().unwrap(), e["object"]["data"]["value"].as_str().unwrap())).collect();
    assert_eq!(seen, [("ADDED", "1"), ("MODIFIED", "2")], "watches see only what was kept");
    drop(server);
    let server = open(&disk).unwrap();
    let (_, list) = call(&server, Method::GET, MAPS, Value::Null).await;
    let found: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
    assert_eq!(found, [&json!("a"), &json!("deleted")]);
    assert!(server.revision() >= revision(&changed));
}

#[tokio::test]
async fn a_write_is_not_refused_by_a_try_that_began_before_it_came() {
    let disk = Disk::new(3);
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (end, ended) = mpsc::channel::<io::Result<()>>();
    let opened = disk.clone();
    let open = move || {
        begin.send(()).unwrap();
        ended.recv().map_err(io::Error::other)??;
        opened.open()
    };
    end.send(Ok(())).unwrap();
    let server = Server::open_storage("test.redb".as_ref(), open, Options::system()).unwrap();
    // Dropped before the server, which waits for its tries to end.
    let end = end;
    begun.recv().await.unwrap();
    disk.set_full(true);
    let post = |name| call(&server, Method::POST, MAPS, map(name, "1"));
    assert_eq!(post("lost").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let mut early = pin!(post("early"));
    tokio::select! {
        biased;
        answer = &mut early => panic!("answered before it was tried: {answer:?}"),
        _ = begun.recv() => {}
    }
    let mut late = pin!(post("late"));
    assert!(poll!(&mut late).is_pending());
    end.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    assert_eq!(early.await.0, StatusCode::INTERNAL_SERVER_ERROR);
    disk.set_full(false);
    end.send(Ok(())).unwrap();
    let (code, made) = late.await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
}
