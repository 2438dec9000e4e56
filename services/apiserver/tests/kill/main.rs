//! `kill -9` while writers go at full speed: what was answered is there, and watchers go on without a gap.

#![allow(clippy::unwrap_used, clippy::panic)]

mod book;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use book::Book;
use process::Process;

const WRITERS: u64 = 8;
const SEED: u64 = 4;

/// Rings when so many writes have been answered.
pub struct Bell {
    left: AtomicU64,
    rings: Notify,
}

impl Bell {
    pub fn answered(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.rings.notify_one();
        }
    }
}

/// What somebody who lists once and then watches knows.
#[derive(Default)]
struct Watcher {
    version: String,
    objects: BTreeMap<String, String>,
}

impl Watcher {
    /// Watches until the server is gone or `last` was seen, listing first if it has to.
    async fn follow(mut self, client: Client, last: Option<&'static str>) -> Self {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        loop {
            if self.version.is_empty() {
                let Ok(list) = maps.list(&ListParams::default()).await else { return self };
                self.version = list.metadata.resource_version.unwrap();
                self.objects = list.items.iter().map(|map| (name(map), value(map))).collect();
            }
            let events = match maps.watch(&WatchParams::default(), &self.version).await {
                Ok(events) => events,
                Err(kube::Error::Api(status)) if status.code == 410 => {
                    self.version.clear();
                    continue;
                }
                Err(_) => return self,
            };
            let mut events = std::pin::pin!(events);
            loop {
                if last.is_some_and(|last| self.objects.contains_key(last)) {
                    return self;
                }
                match events.try_next().await {
                    Ok(Some(WatchEvent::Added(map) | WatchEvent::Modified(map))) => {
                        self.advance(&map);
                        self.objects.insert(name(&map), value(&map));
                    }
                    Ok(Some(WatchEvent::Deleted(map))) => {
                        self.advance(&map);
                        self.objects.remove(&name(&map));
                    }
                    Ok(Some(WatchEvent::Bookmark(_))) => {}
                    Ok(Some(WatchEvent::Error(status))) if status.code == 410 => {
                        self.version.clear();
                        break;
                    }
                    Ok(Some(WatchEvent::Error(status))) => panic!("{status:?}"),
                    Ok(None) | Err(_) => return self,
                }
            }
        }
    }

    fn advance(&mut self, map: &ConfigMap) {
        let next = map.metadata.resource_version.clone().unwrap();
        let number = |text: &str| text.parse::<u64>().unwrap();
        assert!(number(&next) > number(&self.version), "{next} came after {}", self.version);
        self.version = next;
    }
}

fn name(map: &ConfigMap) -> String {
    map.metadata.name.clone().unwrap()
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_writes_survive_kill_9_at_any_moment() {
    let rounds: u64 = std::env::var("STOWAGE_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let home = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(SEED);
    let mut books: Vec<Book> = (0..WRITERS).map(|writer| Book::new(writer, SEED)).collect();
    let mut watcher = Watcher::default();
    let mut newest = 0;
    let mut total = 0;
    for round in 0..rounds {
        let mut server = Process::start(home.path()).await;
        let there = list(&server.client().await).await;
        for book in &mut books {
            book.check(&there);
        }
        let bell = Arc::new(Bell { left: AtomicU64::new(random.random_range(1..600)), rings: Notify::new() });
        let watching = tokio::spawn(watcher.follow(server.client().await, None));
        let mut writers = JoinSet::new();
        for book in books.drain(..) {
            writers.spawn(book.write(server.client().await, bell.clone()));
        }
        bell.rings.notified().await;
        server.kill().await;
        let ended = writers.join_all().await;
        watcher = watching.await.unwrap();
        let mut told: Vec<u64> = Vec::new();
        for (book, revisions) in ended {
            told.extend(revisions);
            books.push(book);
        }
        total += told.len();
        told.sort_unstable();
        assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "round {round}: one revision, two writes");
        assert!(told.first().is_none_or(|first| *first > newest), "round {round}: a revision was used again");
        newest = told.last().copied().unwrap_or(newest);
    }
    let mut server = Process::start(home.path()).await;
    let client = server.client().await;
    let there = list(&client).await;
    for book in &mut books {
        book.check(&there);
    }
    // The watcher goes on from where it was, and ends up knowing what there is.
    let watching = tokio::spawn(watcher.follow(server.client().await, Some("last")));
    let last = book::create(&client, "last").await;
    assert!(last > newest);
    let watcher = watching.await.unwrap();
    let mut expected = there;
    expected.insert("last".to_owned(), "last".to_owned());
    assert_eq!(watcher.objects, expected);
    server.kill().await;
    println!("{rounds} kills, {total} answered writes, all there");
}

async fn list(client: &Client) -> BTreeMap<String, String> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let list = maps.list(&ListParams::default()).await.unwrap();
    list.items.iter().map(|map| (name(map), value(map))).collect()
}
