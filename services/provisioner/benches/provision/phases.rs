//! When each claim reached each step, as one observer of the API and the driver sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, Volume};
use stowage_runtime::cache::Cache;

/// The steps after the first, each named by its end.
pub const STEPS: [&str; 4] = ["asked", "called", "made", "bound"];

/// When the claim was created, and then each step of [`STEPS`].
type Times = [Option<Instant>; 5];

/// Of the volumes of our claims, by name.
type Known = Arc<Mutex<BTreeMap<String, Times>>>;

pub struct Phases {
    known: Known,
    bound: tokio::sync::watch::Receiver<usize>,
}

fn note(known: &Known, volume: &str, step: usize) -> bool {
    let mut known = known.lock().unwrap();
    let time = &mut known.entry(volume.to_owned()).or_default()[step];
    let is_first = time.is_none();
    time.get_or_insert_with(Instant::now);
    is_first
}

impl Phases {
    pub fn watch(claims: &Cache<Claim>, volumes: &Cache<Volume>) -> Self {
        let known = Known::default();
        let (sender, bound) = tokio::sync::watch::channel(0);
        let of_claims = Arc::clone(&known);
        claims.on_change(move |change| {
            let Some(claim) = change.after else { return };
            let name = claim.provisioned_volume_name();
            note(&of_claims, &name, 0);
            if claim.storage_provisioner().is_some() {
                note(&of_claims, &name, 1);
            }
            if claim.status.phase == ClaimPhase::Bound && note(&of_claims, &name, 4) {
                sender.send_modify(|count| *count += 1);
            }
        });
        let of_volumes = Arc::clone(&known);
        volumes.on_change(move |change| {
            note(&of_volumes, &change.key.name, 3);
        });
        Self { known, bound }
    }

    pub async fn until_bound(&self, count: usize) {
        self.bound.clone().wait_for(|seen| *seen >= count).await.unwrap();
    }

    /// From creation to Bound, sorted; and the median duration of each step. Those since a moment count.
    pub fn since(&self, begin: Instant, called: &BTreeMap<String, Instant>) -> (Vec<Duration>, [Duration; 4]) {
        let known = self.known.lock().unwrap();
        let (mut all, mut steps) = (Vec::new(), [const { Vec::new() }; 4]);
        for (name, times) in known.iter() {
            let mut times = *times;
            times[2] = called.get(name).copied();
            let Some(created) = times[0].filter(|created| *created >= begin) else { continue };
            let Some(bound) = times[4] else { continue };
            all.push(bound - created);
            for (step, times) in times.windows(2).enumerate() {
                if let [Some(from), Some(to)] = times {
                    steps[step].push(to.saturating_duration_since(*from));
                }
            }
        }
        all.sort();
        let middle = |mut steps: Vec<Duration>| {
            steps.sort();
            steps.get(steps.len() / 2).copied().unwrap_or_default()
        };
        (all, steps.map(middle))
    }
}
