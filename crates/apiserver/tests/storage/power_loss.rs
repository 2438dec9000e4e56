//! What was answered is there when the power comes back, whatever the disk made of the rest.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use stowage_apiserver::Server;
use tokio::task::JoinSet;

use super::disk::Disk;
use super::{MAPS, call, map, open, revision};

const WRITERS: u64 = 6;
const LIVES: u64 = 4;

/// What one writer knows of one of its objects: `None` is absent.
#[derive(Debug, Default, Clone)]
struct Known {
    answered: Option<String>,
    /// What was being written when the power went.
    asked: Option<Option<String>>,
}

/// Writes until the power goes; returns what it knows and the revisions it was told.
async fn write(server: Server, writer: u64, seed: u64, mut known: BTreeMap<String, Known>) -> (Book, Vec<u64>) {
    let mut random = StdRng::seed_from_u64(seed ^ (writer << 32));
    let mut revisions = Vec::new();
    for number in 0_u64.. {
        let name = format!("w{writer}-{}", random.random_range(0..6));
        let path = format!("{MAPS}/{name}");
        let entry = known.entry(name.clone()).or_default();
        let wanted = (entry.answered.is_none() || random.random_ratio(3, 4)).then(|| format!("{seed}-{number}"));
        entry.asked = Some(wanted.clone());
        let (code, answer) = match (&entry.answered, &wanted) {
            (None, Some(value)) => call(&server, Method::POST, MAPS, map(&name, value)).await,
            (Some(_), Some(value)) => call(&server, Method::PUT, &path, map(&name, value)).await,
            (_, None) => call(&server, Method::DELETE, &path, Value::Null).await,
        };
        if !code.is_success() {
            assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{answer}");
            return (known, revisions);
        }
        if wanted.is_some() {
            revisions.push(revision(&answer));
        }
        *entry = Known { answered: wanted, asked: None };
    }
    (known, revisions)
}

type Book = BTreeMap<String, Known>;

/// Compares what is there with what the writers know, and takes over what is there.
async fn check(server: &Server, known: &mut Book) {
    let (_, list) = call(server, Method::GET, MAPS, Value::Null).await;
    let found: BTreeMap<&str, &str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["metadata"]["name"].as_str().unwrap(), item["data"]["value"].as_str().unwrap()))
        .collect();
    for name in found.keys() {
        assert!(known.contains_key(*name), "{name} was never written");
    }
    for (name, entry) in known {
        let there = found.get(name.as_str()).map(|value| (*value).to_owned());
        let possible = there == entry.answered || Some(&there) == entry.asked.as_ref();
        assert!(possible, "{name} is {there:?}, but {entry:?}");
        *entry = Known { answered: there, asked: None };
    }
}

async fn lives(seed: u64) {
    let disk = Disk::new(seed);
    let mut random = StdRng::seed_from_u64(seed);
    let mut known: Vec<Book> = vec![Book::new(); WRITERS as usize];
    let mut newest = 0;
    for life in 0..LIVES {
        let server = open(&disk).unwrap();
        assert!(server.revision() >= newest, "revision {} after {newest} was told", server.revision());
        let mut all: Book = known.iter().flatten().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        check(&server, &mut all).await;
        for book in &mut known {
            for (name, entry) in book {
                entry.clone_from(&all[name]);
            }
        }
        disk.cut_after(random.random_range(1..400));
        let mut writers = JoinSet::new();
        for (writer, book) in (0..).zip(known.drain(..)) {
            let server = server.clone();
            writers.spawn(async move { (writer, write(server, writer, seed * 100 + life, book).await) });
        }
        let mut ended: Vec<(u64, (Book, Vec<u64>))> = writers.join_all().await;
        assert!(disk.is_cut());
        ended.sort_by_key(|(writer, _)| *writer);
        let before = newest;
        for (_, (book, revisions)) in ended {
            assert!(revisions.iter().all(|told| *told > before), "a revision was told twice");
            newest = newest.max(revisions.into_iter().max().unwrap_or(0));
            known.push(book);
        }
        drop(server);
        disk.power_on();
    }
    let server = open(&disk).unwrap();
    check(&server, &mut known.into_iter().flatten().collect()).await;
}

#[tokio::test]
async fn answered_writes_survive_power_losses_that_drop_tear_and_reorder_the_rest() {
    let seeds = std::env::var("STOWAGE_POWER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(16);
    for seed in 0..seeds {
        println!("seed {seed}");
        lives(seed).await;
    }
}

#[tokio::test]
async fn a_power_loss_during_the_very_first_start_leaves_a_file_that_opens_or_begins_anew() {
    for cut in 1..40 {
        let disk = Disk::new(cut);
        disk.cut_after(cut);
        let first = open(&disk);
        let cut_short = first.is_err();
        drop(first);
        disk.power_on();
        match open(&disk) {
            Ok(server) => assert_eq!(call(&server, Method::GET, MAPS, Value::Null).await.0, StatusCode::OK),
            // Nothing was answered yet, so that refusing loses nothing; it must say which file.
            Err(error) => assert!(cut_short && error.to_string().contains("test.redb"), "cut {cut}: {error}"),
        }
    }
}
