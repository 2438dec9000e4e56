//! Watches claims until they are Bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stowage_model::Claim;
use stowage_model::phase::ClaimPhase;
use stowage_runtime::cache::Cache;

/// When each of our claims was first seen Bound.
pub struct Bound {
    times: Arc<Mutex<BTreeMap<String, Instant>>>,
    count: tokio::sync::watch::Receiver<usize>,
}

impl Bound {
    pub fn watch(claims: &Cache<Claim>, prefix: String) -> Self {
        let times: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
        let (sender, count) = tokio::sync::watch::channel(0);
        claims.on_change({
            let times = Arc::clone(&times);
            move |change| {
                let bound = |claim: &&Arc<Claim>| {
                    claim.status.phase == ClaimPhase::Bound && claim.meta.name.starts_with(&prefix)
                };
                if let Some(claim) = change.after.filter(bound) {
                    let mut times = times.lock().unwrap();
                    times.entry(claim.meta.name.clone()).or_insert_with(Instant::now);
                    sender.send_replace(times.len());
                }
            }
        });
        Self { times, count }
    }

    pub async fn wait(&self, count: usize) {
        self.count.clone().wait_for(|seen| *seen >= count).await.unwrap();
    }

    pub fn times(&self) -> BTreeMap<String, Instant> {
        self.times.lock().unwrap().clone()
    }
}
