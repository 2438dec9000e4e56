//! The life of one claim, in steps that can be begun without being waited for.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use local_suite::objects;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use serde_json::Value;
use stowage_model::names;
use stowage_model::object::kinds;

use crate::node::ROOT;
use crate::stack::{NODES, Stack};

/// Enough for more than one extent.
const DATA_BYTES: usize = 1 << 20;

/// What a claim asks for.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub class: &'static str,
    pub size: &'static str,
    pub file_system: &'static str,
    /// Whether the volume is made only when a pod needs it.
    pub waits: bool,
}

/// The class of `deploy/kubernetes` whose volumes are made at once.
pub const EXT4: Shape = Shape { class: "stowage", size: "16Mi", file_system: "ext4", waits: false };
/// The one whose volumes wait; xfs is not made smaller than this.
pub const XFS: Shape = Shape { class: "stowage-wait", size: "300Mi", file_system: "xfs", waits: true };
/// A class that a test makes.
pub const BTRFS: Shape = Shape { class: "btrfs", size: "256Mi", file_system: "btrfs", waits: false };

/// A claim, its first pod on one node and its second on the other.
pub struct Life<'a> {
    stack: &'a Stack,
    claim: String,
    shape: Shape,
    data: Vec<u8>,
    /// What the volume is filled from, if not by the first pod.
    source: Option<Value>,
    from: &'static str,
    to: &'static str,
}

/// What comes next in a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Claim,
    FirstPod,
    EndFirstPod,
    SecondPod,
    EndSecondPod,
    EndClaim,
}

impl Step {
    pub const ALL: [Self; 6] =
        [Self::Claim, Self::FirstPod, Self::EndFirstPod, Self::SecondPod, Self::EndSecondPod, Self::EndClaim];
}

impl<'a> Life<'a> {
    pub fn new(stack: &'a Stack, claim: impl Into<String>) -> Self {
        let claim = claim.into();
        let seed = claim.bytes().fold(0_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let mut data = vec![0; DATA_BYTES];
        StdRng::seed_from_u64(seed).fill_bytes(&mut data);
        Self { stack, claim, shape: EXT4, data, source: None, from: NODES[0], to: NODES[1] }
    }

    /// The same the other way round.
    pub fn reversed(mut self) -> Self {
        (self.from, self.to) = (self.to, self.from);
        self
    }

    /// The same with another volume.
    pub fn shaped(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    /// A claim whose volume is to hold what this one's does.
    pub fn copied(&self, claim: impl Into<String>, source: Value) -> Self {
        Self { claim: claim.into(), data: self.data.clone(), source: Some(source), ..*self }
    }

    pub fn claim(&self) -> &str {
        &self.claim
    }

    pub fn first_pod(&self) -> String {
        format!("{}-a", self.claim)
    }

    pub fn second_pod(&self) -> String {
        format!("{}-b", self.claim)
    }

    /// Asks for a step; who does it may be away.
    pub async fn begin(&self, step: Step) -> anyhow::Result<()> {
        let (api, first, second) = (&self.stack.api, self.first_pod(), self.second_pod());
        match step {
            Step::Claim => {
                let Shape { class, size, .. } = self.shape;
                let mut claim = objects::claim(&self.claim, class, size);
                if let Some(source) = &self.source {
                    claim["spec"]["dataSource"] = source.clone();
                }
                api.create(kinds::CLAIM, claim).await
            }
            Step::FirstPod => api.create(kinds::POD, objects::pod(&first, &self.claim, self.from)).await,
            Step::EndFirstPod => api.delete(kinds::POD, &first).await,
            Step::SecondPod => api.create(kinds::POD, objects::pod(&second, &self.claim, self.to)).await,
            Step::EndSecondPod => api.delete(kinds::POD, &second).await,
            Step::EndClaim => api.delete(kinds::CLAIM, &self.claim).await,
        }
    }

    /// Waits until a step that was begun is done, and looks at its proof: the mount table and the data.
    pub async fn finish(&self, step: Step) -> anyhow::Result<()> {
        let (api, first, second) = (&self.stack.api, self.first_pod(), self.second_pod());
        match step {
            Step::Claim if self.shape.waits => Ok(()),
            Step::Claim => api.until(kinds::CLAIM, &self.claim, |claim| bound(claim?), "to be bound").await.map(drop),
            Step::FirstPod => self.write(&first, self.from).await,
            Step::EndFirstPod => api.gone(kinds::POD, &first).await,
            Step::SecondPod => self.check(&second, self.to).await,
            Step::EndSecondPod => api.gone(kinds::POD, &second).await,
            Step::EndClaim => {
                api.gone(kinds::CLAIM, &self.claim).await?;
                Ok(())
            }
        }
    }

    pub async fn step(&self, step: Step) -> anyhow::Result<()> {
        self.begin(step).await?;
        self.finish(step).await.with_context(|| format!("claim {}: {step:?}", self.claim))
    }

    /// All steps before this one.
    pub async fn up_to(&self, step: Step) -> anyhow::Result<()> {
        for earlier in Step::ALL.into_iter().filter(|earlier| *earlier < step) {
            self.step(earlier).await?;
        }
        Ok(())
    }

    /// The end of this step, which was begun, and all steps after it.
    pub async fn from(&self, step: Step) -> anyhow::Result<()> {
        self.between(step, Step::EndClaim).await
    }

    /// The end of this step, which was begun, and the steps after it up to the last one.
    pub async fn between(&self, begun: Step, last: Step) -> anyhow::Result<()> {
        self.finish(begun).await.with_context(|| format!("claim {}: {begun:?}", self.claim))?;
        for later in Step::ALL.into_iter().filter(|later| *later > begun && *later <= last) {
            self.step(later).await?;
        }
        Ok(())
    }

    /// All steps after this one, which is done.
    pub async fn after(&self, done: Step) -> anyhow::Result<()> {
        for later in Step::ALL.into_iter().filter(|later| *later > done) {
            self.step(later).await?;
        }
        Ok(())
    }

    /// The first pod has its data.
    pub async fn check_first(&self) -> anyhow::Result<()> {
        self.check(&self.first_pod(), self.from).await
    }

    /// Ends a life that never had a second pod.
    pub async fn end_first(&self) -> anyhow::Result<()> {
        self.step(Step::EndFirstPod).await?;
        self.step(Step::EndClaim).await
    }

    /// Waits until a pod runs; where its volume is mounted.
    pub async fn mounted(&self, pod: &str, node: &'static str) -> anyhow::Result<PathBuf> {
        let uid = self.stack.api.until(kinds::POD, pod, |pod| running(pod?), "to run").await?;
        let volume = self.stack.api.until(kinds::CLAIM, &self.claim, |claim| bound(claim?), "to be bound").await?;
        let path = Path::new(ROOT).join(names::pod_mount(&uid, &volume));
        let mounts = self.stack.node(node).mounts().await?;
        let mount = mounts.iter().rev().find(|mount| mount.target == path);
        let mount = mount.with_context(|| format!("{pod} runs, but {node} has nothing at {}", path.display()))?;
        let wanted = self.shape.file_system;
        ensure!(mount.fs_type == wanted, "{} is {}, not {wanted}", path.display(), mount.fs_type);
        Ok(path)
    }

    async fn write(&self, pod: &str, node: &'static str) -> anyhow::Result<()> {
        let mount = self.mounted(pod, node).await?;
        self.stack.node(node).write(&mount, &self.data).await
    }

    pub async fn check(&self, pod: &str, node: &'static str) -> anyhow::Result<()> {
        let mount = self.mounted(pod, node).await?;
        let found = self.stack.node(node).read(&mount).await?;
        ensure!(found == self.data, "{pod} on {node} has other data than were written");
        Ok(())
    }
}

fn bound(claim: &Value) -> Option<String> {
    let volume = claim["spec"]["volumeName"].as_str()?;
    (claim["status"]["phase"] == "Bound").then(|| volume.to_owned())
}

fn running(pod: &Value) -> Option<String> {
    let uid = pod["metadata"]["uid"].as_str()?;
    (pod["status"]["phase"] == "Running").then(|| uid.to_owned())
}
