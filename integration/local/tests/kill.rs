//! Twenty rounds in which every service is killed with SIGKILL at random moments while claims live, grow, move and end.
//!
//! `STOWAGE_SEED=N` repeats the order and the moments of a run, `STOWAGE_ROUNDS=N` makes it shorter or longer. What the
//! machine makes of the moments is its own affair.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use tokio::time::sleep;

use local_suite::life::{DATA_BYTES, Life, all_over, file_system_bytes};
use local_suite::objects::{IMMEDIATE, WAITING, XFS};
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

const SEED: u64 = 20_240_229;
const ROUNDS: usize = 20;
/// Claims that live at the same time.
const SLOTS: usize = 4;
/// Between two kills.
const PAUSE_MS: u64 = 400;
/// Between a kill and the new start.
const ABSENCE_MS: u64 = 200;
/// What a claim asks for, and what one that grows asks for later: xfs is not made smaller, and grows while it is mounted.
const SMALL: &str = "16Mi";
const LEAST_XFS: &str = "300Mi";
const GROWN: &str = "400Mi";
/// More than it can have had before it grew.
const BEFORE_GROWTH: u64 = 300 << 20;
/// How often somebody looks whether all services run.
const SUPERVISE: Duration = Duration::from_millis(100);

fn setting<T: FromStr>(name: &str, default: T) -> anyhow::Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| anyhow!("{name}={text:?} is not a number")),
        Err(_) => Ok(default),
    }
}

/// What one claim goes through in a round.
struct Plan {
    claim: String,
    class: &'static str,
    from: &'static str,
    to: &'static str,
    /// The second pod is there before the first one is told to go, and waits for the volume.
    overlapping: bool,
    data: Vec<u8>,
}

impl Plan {
    fn draw(claim: String, rng: &mut StdRng) -> Self {
        let mut nodes = NODES;
        nodes.shuffle(rng);
        let mut data = vec![0; DATA_BYTES];
        rng.fill_bytes(&mut data);
        Self {
            claim,
            class: *[IMMEDIATE, WAITING, XFS].choose(rng).unwrap_or(&XFS),
            from: nodes[0],
            to: nodes[1],
            overlapping: rng.random(),
            data,
        }
    }

    /// Whether more is asked for while the first pod has it, to be had when the second one does.
    fn grows(&self) -> bool {
        self.class == XFS
    }

    async fn live(&self, life: &Life<'_>) -> anyhow::Result<()> {
        let (first, second) = (format!("{}-a", self.claim), format!("{}-b", self.claim));
        life.begin(self.class, if self.grows() { LEAST_XFS } else { SMALL }).await?;
        life.start(&first, self.from).await?;
        life.write(&first, self.from, &self.data).await?;
        if self.grows() {
            let asked = life.ask(GROWN).await?;
            ensure!(asked.is_ok(), "growth is refused: {asked:?}");
        }
        if self.overlapping {
            life.start(&second, self.to).await?;
            life.stop(&first).await?;
        } else {
            life.stop(&first).await?;
            life.start(&second, self.to).await?;
        }
        life.check(&second, self.to, &self.data).await?;
        if self.grows() {
            life.has(GROWN).await?;
            let bytes = file_system_bytes(&life.mounted(&second, self.to).await?)?;
            ensure!(bytes > BEFORE_GROWTH, "the file system has {bytes} bytes after it grew to {GROWN}");
        }
        life.stop(&second).await?;
        life.end().await
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.overlapping { "the second pod first" } else { "one pod after the other" };
        write!(f, "class {}, {} to {}, {order}", self.class, self.from, self.to)
    }
}

#[derive(Default)]
struct Tally {
    claims: u32,
    kills: BTreeMap<Service, u32>,
    /// Services that ended by themselves and were started again: one that starts while its driver dies gives up.
    revived: BTreeMap<Service, u32>,
}

impl Tally {
    fn revive(&mut self, stack: &mut Stack) -> anyhow::Result<()> {
        for service in stack.revive()? {
            *self.revived.entry(service).or_default() += 1;
        }
        Ok(())
    }
}

/// Kills every service once, in random order.
async fn kill_each(stack: &mut Stack, rng: &mut StdRng, tally: &mut Tally) -> anyhow::Result<()> {
    let mut services = Service::all();
    services.shuffle(rng);
    for service in services {
        // The moments are the point of this test: nothing waits for anything here.
        sleep(Duration::from_millis(rng.random_range(0..PAUSE_MS))).await;
        stack.kill(service)?;
        *tally.kills.entry(service).or_default() += 1;
        sleep(Duration::from_millis(rng.random_range(0..ABSENCE_MS))).await;
        stack.launch(service)?;
        tally.revive(stack)?;
    }
    Ok(())
}

/// Every slot lives one claim after the other until the killing is over, so that each kill hits claims on their way.
async fn round(stack: &mut Stack, number: usize, rng: &mut StdRng, tally: &mut Tally) -> anyhow::Result<()> {
    let (api, place) = (stack.api.clone(), stack.place.clone());
    let killing = Cell::new(true);
    let slots: Vec<StdRng> = (0..SLOTS).map(|_| StdRng::from_rng(rng)).collect();
    let lives = try_join_all(slots.into_iter().enumerate().map(async |(slot, mut rng)| {
        let mut lived = 0;
        while killing.get() {
            let plan = Plan::draw(format!("r{number}-s{slot}-{lived}"), &mut rng);
            let life = Life { api: &api, place: &place, claim: plan.claim.clone() };
            plan.live(&life).await.with_context(|| format!("claim {}: {plan}", plan.claim))?;
            lived += 1;
        }
        anyhow::Ok(lived)
    }));
    let kills = async {
        kill_each(stack, rng, tally).await?;
        killing.set(false);
        loop {
            tally.revive(stack)?;
            sleep(SUPERVISE).await;
        }
    };
    let lived = async {
        let lived = lives.await?;
        all_over(&api).await?;
        anyhow::Ok(lived)
    };
    let lived = tokio::select! {
        biased;
        lived = lived => lived?,
        failed = kills => return failed,
    };
    tally.claims += lived.iter().sum::<u32>();
    tally.revive(stack)?;
    leftovers::none(&place.root).await
}

#[test]
fn claims_end_mounted_and_leave_nothing_whoever_is_killed_when() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let seed = setting("STOWAGE_SEED", SEED)?;
        let rounds = setting("STOWAGE_ROUNDS", ROUNDS)?;
        let replay = format!("replay with STOWAGE_SEED={seed} cargo test -p local-suite --test kill");
        eprintln!("{rounds} rounds; {replay}");
        let began = Instant::now();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut tally = Tally::default();
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::all()).await?;
        for number in 0..rounds {
            let start = Instant::now();
            let done = round(&mut stack, number, &mut rng, &mut tally).await;
            done.with_context(|| format!("round {number}; {replay}"))?;
            eprintln!("round {number}: {:.1} s", start.elapsed().as_secs_f32());
        }
        stack.stop().await?;
        leftovers::none(&root).await?;
        let Tally { claims, kills, revived } = tally;
        let total: u32 = kills.values().sum();
        let seconds = began.elapsed().as_secs();
        eprintln!("{rounds} rounds, {claims} claims, {total} kills in {seconds} s, nothing left");
        for (service, count) in kills {
            let again = revived.get(&service).copied().unwrap_or_default();
            eprintln!("  {service}: killed {count} times, gave up {again} times");
        }
        Ok(())
    })
}
