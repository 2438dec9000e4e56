//! A complete controller: each volume carries a label with the namespace of its claim, so that
//! `kubectl get pv -l example.dev/namespace=shop` shows what a team holds.
//!
//! In a service of its own each part below is a file. `docs/new-service.md` says which; `tests/example.rs` runs it.

use std::sync::Arc;

use clap::Parser;
use jiff::Timestamp;
use serde_json::json;

use stowage_model::Volume;
use stowage_model::object::Key;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::args::ControllerArgs;
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::{self, Decision, Error, Reserved, Watches};
use stowage_runtime::watch::Scope;
use stowage_runtime::{Context, Stop, flags};

const LABEL: &str = "example.dev/namespace";

/// args.rs: flags, nothing else.
#[derive(Debug, Parser)]
#[command(name = "namespace-labels", version)]
struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
}

/// controller.rs: the state, and one line per room.
struct Controller {
    context: Context,
    volumes: Cache<Volume>,
}

pub async fn run(context: Context) -> Result<(), Stop> {
    engine::serve(context, 8, async |setup| Ok(Controller { context: setup.context.clone(), volumes: Cache::new() }))
        .await
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = View<Volume>;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "namespace-labels";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        watches.cache(&self.volumes, Scope::all(), |_, change| [change.key.clone()]);
    }

    fn gather(&self, volume: &Key, _reserved: &Reserved, _now: Timestamp) -> View<Volume> {
        self.volumes.view(volume)
    }

    fn decide(volume: &View<Volume>, _now: Timestamp) -> Decision<Action, Why> {
        decide(volume)
    }

    async fn apply(self: Arc<Self>, volume: Key, action: Action) -> Result<(), Error> {
        self.carry_out(&volume, action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.volumes.keys()
    }
}

/// decide.rs: what must happen next, and why.
#[derive(Debug, Clone, PartialEq)]
enum Action {
    /// A write got no answer: read the volume before anything else.
    Read,
    /// `None` takes the label off.
    Label { volume: Target, namespace: Option<String> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Gone,
    Unknown,
    Labelled,
    Differs,
}

fn decide(volume: &View<Volume>) -> Decision<Action, Why> {
    let volume = match volume {
        View::Absent => return Decision::rest(Why::Gone),
        View::Unknown => return Decision::act([Action::Read], Why::Unknown),
        View::Known(volume) => volume,
    };
    let wanted = volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.as_str());
    if volume.meta.labels.get(LABEL).map(String::as_str) == wanted {
        return Decision::rest(Why::Labelled);
    }
    // The label follows from claimRef, so it is written only onto the version whose claimRef was read.
    let label = Action::Label { volume: Target::exact(&volume.meta), namespace: wanted.map(str::to_owned) };
    Decision::act([label], Why::Differs)
}

/// apply.rs: one action through the ports.
impl Controller {
    async fn carry_out(&self, key: &Key, action: Action) -> Result<(), Error> {
        let volumes = self.context.objects(&self.volumes);
        match action {
            Action::Read => volumes.refresh(key).await.map(drop),
            Action::Label { volume, namespace } => {
                let patch = Patch::Merge(json!({ "metadata": { "labels": { LABEL: namespace } } }));
                volumes.patch(&volume, Part::Main, patch).await.map(drop)
            }
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().controller.run(30, "namespace-labels", Vec::new(), run).await
}
