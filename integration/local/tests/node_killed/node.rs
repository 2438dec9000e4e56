//! One node of real processes, and what is done to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use serde_json::Value;
use stowage_model::names;
use stowage_model::object::kinds;
use stowage_mount::{LinuxMounter, MountTable, Mounter as _};
use tokio::time::sleep;

use local_suite::api::{Api, PATIENCE};
use local_suite::leftovers;
use local_suite::life::{DATA_BYTES, Life, all_over};
use local_suite::looks::{Count, Looks};
use local_suite::relay::Relay;
use local_suite::stack::{NODES, Place, Service, Stack};

pub const NODE: &str = NODES[0];
pub const MANAGER: Service = Service::VolumeManager(NODE);
pub const DRIVER: Service = Service::NodeDriver(NODE);

/// Between two looks at something that no event tells of.
const LOOK: Duration = Duration::from_millis(2);

pub struct Node {
    pub stack: Stack,
    pub relay: Relay,
    pub api: Api,
    pub place: Place,
    looks: Looks,
    number: u64,
    began: Instant,
}

impl Node {
    pub async fn start(root: &Path) -> anyhow::Result<Self> {
        let place = Place::prepare(root)?.relayed();
        let relay = Relay::listen(&place.called_socket(NODE), place.node_socket(NODE))?;
        let stack = Stack::start(place.clone(), &Service::on_one_node()).await?;
        let api = stack.api.clone();
        let looks = Looks::begin(&api, &place, NODE);
        Ok(Self { stack, relay, api, place, looks, number: 0, began: Instant::now() })
    }

    /// Plays one case; nothing may be left of it.
    pub async fn case(
        &mut self,
        name: &str,
        case: impl AsyncFnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        self.number += 1;
        case(self).await.with_context(|| name.to_owned())?;
        let ended = async {
            all_over(&self.api).await?;
            leftovers::none(&self.place.root).await?;
            self.looks.so_far().map(drop)
        };
        ended.await.with_context(|| name.to_owned())?;
        self.stack.revive()?;
        eprintln!("{name}: {:.1} s", begin.elapsed().as_secs_f32());
        Ok(())
    }

    pub async fn end(self) -> anyhow::Result<()> {
        let Count { looks, mounts, sizes } = self.looks.so_far()?;
        let (cases, seconds) = (self.number, self.began.elapsed().as_secs());
        ensure!(mounts > 0 && sizes > 0, "nothing was there at {looks} looks: {mounts} mounts, {sizes} sizes");
        drop(self.looks);
        self.stack.stop().await?;
        leftovers::none(&self.place.root).await?;
        eprintln!(
            "{cases} cases in {seconds} s, nothing is left; M1, M2 and R1 held at {looks} looks with {mounts} mounts and {sizes} sizes"
        );
        Ok(())
    }

    /// A claim of this case.
    pub fn life<'a>(&self, api: &'a Api, place: &'a Place) -> Life<'a> {
        Life { api, place, claim: format!("claim-{}", self.number) }
    }

    /// What is written in this case.
    pub fn data(&self) -> Vec<u8> {
        let mut data = vec![0; DATA_BYTES];
        StdRng::seed_from_u64(self.number).fill_bytes(&mut data);
        data
    }

    /// `kill -9`.
    pub fn kill(&mut self, services: &[Service]) -> anyhow::Result<()> {
        services.iter().try_for_each(|service| self.stack.kill(*service))
    }

    pub fn launch(&mut self, services: &[Service]) -> anyhow::Result<()> {
        services.iter().try_for_each(|service| self.stack.launch(*service))
    }

    pub fn root(&self) -> PathBuf {
        self.place.node(NODE)
    }
}

/// A pod runs with a claim that has this on it.
pub async fn begin(life: &Life<'_>, pod: &str, class: &str, size: &str, data: &[u8]) -> anyhow::Result<()> {
    life.begin(class, size).await?;
    life.start(pod, NODE).await?;
    life.write(pod, NODE, data).await
}

/// The pod has the data, and so has the next one, for which it is mounted anew; then all goes.
pub async fn end(life: &Life<'_>, pod: &str, data: &[u8]) -> anyhow::Result<()> {
    life.check(pod, NODE, data).await?;
    life.stop(pod).await?;
    end_with_a_reader(life, data).await
}

pub async fn end_with_a_reader(life: &Life<'_>, data: &[u8]) -> anyhow::Result<()> {
    life.start("reader", NODE).await?;
    life.check("reader", NODE, data).await?;
    life.stop("reader").await?;
    life.end().await
}

pub async fn table() -> anyhow::Result<MountTable> {
    LinuxMounter.mounts().await.context("cannot read the mount table")
}

/// The uid of a pod, whether it runs or not.
pub async fn uid(api: &Api, pod: &str) -> anyhow::Result<String> {
    let pod = api.get(kinds::POD, pod).await?.context("the pod is gone")?;
    pod["metadata"]["uid"].as_str().map(str::to_owned).context("a pod without a uid")
}

/// Where the claim's volume is, or would be, for a pod.
pub async fn target(life: &Life<'_>, pod: &str) -> anyhow::Result<PathBuf> {
    let uid = uid(life.api, pod).await?;
    Ok(life.place.node(NODE).join(names::pod_mount(&uid, &life.volume().await?)))
}

/// Where the claim's volume is, or would be, for the node.
pub async fn staging(life: &Life<'_>) -> anyhow::Result<PathBuf> {
    let volume = life.api.get(kinds::VOLUME, &life.volume().await?).await?.context("the volume is gone")?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a volume without a handle");
    let (driver, handle) = (text(&volume["spec"]["csi"]["driver"])?, text(&volume["spec"]["csi"]["volumeHandle"])?);
    Ok(life.place.node(NODE).join(names::global_mount(&driver, &handle)))
}

/// Looks until something is found.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "waited {} s in vain for {what}", PATIENCE.as_secs());
        sleep(LOOK).await;
    }
}
