//! Lives of local volumes: every node has a provisioner and a resizer for its own, and nobody else does.
//!
//! The player is the scheduler and the nodes.

use serde_json::json;

use stowage_model::annotations::SELECTED_NODE;
use stowage_model::claim::Claim;
use stowage_model::object::kinds;
use stowage_testing::driver::TOPOLOGY;
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, World};

use crate::life::{self, LIMIT, Life, Report, Sample};
use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, NODE, OTHER_NODE, Pipeline, on};

const CLAIM: &str = "data";

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The claim binds at once: whichever node takes it first.
    Taken,
    /// The scheduler has chosen a node.
    Chosen,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[Self::Taken, Self::Chosen];

    fn sweeps(self, service: &str) -> bool {
        let ours = |name| [NODE, OTHER_NODE].map(|node| on(name, node)).iter().any(|name| name == service);
        ours("provisioner") || ours("resizer")
    }

    fn options(self) -> pipeline::Options {
        pipeline::Options {
            services: Some(&pipeline::GROWTH),
            nodes: &[NODE, OTHER_NODE],
            node_deployment: true,
            ..pipeline::Options::default()
        }
    }

    fn sample(self) -> Sample {
        Sample { watched: true, ..Sample::WORST }
    }

    async fn live(world: &World, script: &Script, report: &mut Report) -> Result<(), Hang> {
        Stage { world, script }.live(report).await
    }
}

type Script = life::Script<Kind>;

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
}

impl Stage<'_> {
    async fn live(&self, report: &mut Report) -> Result<(), Hang> {
        let (world, admin) = (self.world, self.world.admin());
        self.set().await;
        let pipeline = Pipeline::start(world, self.script.options);
        // So that each life begins alike, whoever is faster.
        world.settle().await;
        report.asked = world.trace().len();
        let gave_up = || self.script.gave_up(world);
        admin.create(kinds::CLAIM, self.claim()).await.expect("the manifests of a life are valid");
        world.until("the claim Bound", LIMIT, || gave_up() || has(world, 1 << 30)).await?;
        if !gave_up() {
            report.wrong.extend(self.misplaced());
        }
        let more = json!({ "spec": { "resources": { "requests": { "storage": "5Gi" } } } });
        let asked = admin.patch(kinds::CLAIM, &key(CLAIM), "", &more).await;
        // One that went at the fault is not asked for anything any more.
        assert!(asked.is_ok() || gave_up(), "{asked:?}");
        world.until("the claim grown", LIMIT, || gave_up() || has(world, 5 << 30)).await?;
        report.deleted = world.trace().len();
        admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        report.end(world, self.script, &pipeline).await;
        Ok(())
    }

    async fn set(&self) {
        let (world, admin, made) = (self.world, self.world.admin(), "the manifests of a life are valid");
        world.driver().be_local();
        let mut driver = manifests::csi_driver();
        driver["spec"]["attachRequired"] = false.into();
        admin.create(kinds::CSI_DRIVER, driver).await.expect(made);
        let binding = match self.script.kind {
            Kind::Taken => Binding::Immediate,
            Kind::Chosen => Binding::WaitForFirstConsumer,
        };
        let mut class = manifests::class(binding);
        class["allowVolumeExpansion"] = true.into();
        admin.create(kinds::STORAGE_CLASS, class).await.expect(made);
        for node in self.script.options.nodes {
            let metadata = json!({ "name": node, "labels": { TOPOLOGY: node } });
            admin.create(kinds::NODE, json!({ "metadata": metadata })).await.expect(made);
            let drivers = json!([{ "name": DRIVER, "nodeID": node, "topologyKeys": [TOPOLOGY] }]);
            let csi_node = json!({ "metadata": { "name": node }, "spec": { "drivers": drivers } });
            admin.create(kinds::CSI_NODE, csi_node).await.expect(made);
        }
        self.script.arm(world, |world| async move {
            world.admin().delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        });
    }

    fn claim(&self) -> serde_json::Value {
        let mut claim = manifests::claim(CLAIM, "1Gi");
        if self.script.kind == Kind::Chosen {
            claim["metadata"]["annotations"] = json!({ SELECTED_NODE: OTHER_NODE });
        }
        claim
    }

    /// What is wrong with the place of the one volume there should be.
    fn misplaced(&self) -> Option<String> {
        let made = self.world.driver().snapshot().volumes;
        let nodes: Vec<&str> = made.values().filter_map(|made| made.node.as_deref()).collect();
        let right = nodes.len() == 1 && (self.script.kind == Kind::Taken || nodes == [OTHER_NODE]);
        (!right).then(|| format!("P2: one volume was to be made, and the driver has {made:?}"))
    }
}

/// Whether the claim is bound and has so many bytes.
fn has(world: &World, bytes: i128) -> bool {
    let claim: Option<Claim> = world.admin().get(&key(CLAIM));
    claim.is_some_and(|claim| {
        claim.is_fully_bound() && claim.status.capacity.storage.is_some_and(|size| size.bytes() == bytes)
    })
}

fn is_all_gone(world: &World) -> bool {
    world.driver().snapshot().is_empty() && world.observe().leftovers().is_empty()
}
