//! Looks at the invariants after every change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::JoinHandle;

use stowage_testing::{Observed, Violation, World};

/// Looks until it is asked what it saw.
pub struct Witness {
    seen: Arc<Mutex<Seen>>,
    looking: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    looks: u64,
    broken: BTreeSet<Violation>,
    /// What claims and volumes were said to have, by uid: never less again.
    sizes: BTreeMap<String, i128>,
}

impl Witness {
    /// Begins to look, or only to wake up as often, so that a life takes the same course whether it is watched or not.
    pub fn begin(world: &World, look: bool) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        Self { looking: tokio::spawn(watch(world.clone(), Arc::clone(&seen), look)), seen }
    }

    /// How often it looked, and what it saw.
    pub fn end(self) -> (u64, BTreeSet<Violation>) {
        self.looking.abort();
        let mut seen = lock(&self.seen);
        (seen.looks, std::mem::take(&mut seen.broken))
    }
}

async fn watch(world: World, seen: Arc<Mutex<Seen>>, look: bool) {
    loop {
        let count = world.changes().count();
        if look {
            lock(&seen).look(&world.observe());
        }
        world.changes().beyond(count).await;
    }
}

impl Seen {
    fn look(&mut self, observed: &Observed) {
        self.looks += 1;
        self.broken.extend(observed.violations());
        let claims = observed.claims.iter().map(|claim| {
            (&claim.meta.uid, claim.status.capacity.storage.unwrap_or_default().bytes(), &claim.meta.name)
        });
        let volumes =
            observed.volumes.iter().map(|volume| (&volume.meta.uid, volume.capacity().bytes(), &volume.meta.name));
        for (uid, bytes, name) in claims.chain(volumes) {
            let most = self.sizes.entry(uid.clone()).or_default();
            if bytes < *most {
                let text = format!("{name} shrank from {most} to {bytes} bytes");
                self.broken.insert(Violation { id: "R1", text });
            }
            *most = bytes.max(*most);
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().expect("nobody panics while holding it")
}
