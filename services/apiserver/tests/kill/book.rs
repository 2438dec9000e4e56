//! A writer that keeps books on what it was answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use super::Bell;

/// What is known of one object: absent is `None`.
#[derive(Debug, Default)]
struct Entry {
    answered: Option<String>,
    /// What was asked for and never answered.
    asked: Option<Option<String>>,
}

pub struct Book {
    writer: u64,
    entries: BTreeMap<String, Entry>,
    random: StdRng,
    written: u64,
}

impl Book {
    pub fn new(writer: u64, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed << 8 | writer);
        Self { writer, entries: BTreeMap::new(), random, written: 0 }
    }

    /// Writes until the server is gone; returns the revisions it was told.
    pub async fn write(mut self, client: Client, bell: Arc<Bell>) -> (Self, Vec<u64>) {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let mut revisions = Vec::new();
        loop {
            let name = format!("w{}-{}", self.writer, self.random.random_range(0..12));
            let entry = self.entries.entry(name.clone()).or_default();
            let keep = entry.answered.is_none() || self.random.random_ratio(4, 5);
            let wanted = keep.then(|| self.written.to_string());
            self.written += 1;
            entry.asked = Some(wanted.clone());
            let answer = match (&entry.answered, &wanted) {
                (None, Some(value)) => maps.create(&PostParams::default(), &map(&name, value)).await.map(Some),
                (Some(_), Some(value)) => {
                    maps.replace(&name, &PostParams::default(), &map(&name, value)).await.map(Some)
                }
                (_, None) => maps.delete(&name, &DeleteParams::default()).await.map(|_| None),
            };
            match answer {
                Ok(object) => {
                    revisions.extend(object.map(|o| o.metadata.resource_version.unwrap().parse::<u64>().unwrap()));
                    *entry = Entry { answered: wanted, asked: None };
                    bell.answered();
                }
                Err(kube::Error::Api(status)) => panic!("{name}: {status:?}"),
                Err(_) => return (self, revisions),
            }
        }
    }

    /// Compares with what is there, and takes it over.
    pub fn check(&mut self, there: &BTreeMap<String, String>) {
        let prefix = format!("w{}-", self.writer);
        for name in there.keys().filter(|name| name.starts_with(&prefix)) {
            assert!(self.entries.contains_key(name), "{name} was never written");
        }
        for (name, entry) in &mut self.entries {
            let found = there.get(name).cloned();
            let possible = found == entry.answered || Some(&found) == entry.asked.as_ref();
            assert!(possible, "{name} is {found:?}, but {entry:?}");
            *entry = Entry { answered: found, asked: None };
        }
    }
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}})).unwrap()
}

/// Makes one object and returns its revision.
pub async fn create(client: &Client, name: &str) -> u64 {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made = maps.create(&PostParams::default(), &map(name, name)).await.unwrap();
    made.metadata.resource_version.unwrap().parse().unwrap()
}
