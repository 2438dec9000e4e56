//! `stowage run`: a command with volumes mounted where it wants them, as `kubectl exec` is in a cluster.
//!
//! A pod stands for the command. The volume manager of its node says over its socket when the volumes are there, and holds
//! the pod for as long as this process listens: however it ends, the pod goes, and its volumes with it. Every node that the
//! pod may come to holds it by name before it is made, so it is never without a holder.

mod hold;
mod inside;
mod mounts;
mod pod;
mod signals;
mod targets;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use stowage_model::Claim;
use stowage_model::object::{Key, kinds};
use stowage_model::phase::VolumeMode;
use stowage_model::pod::Pod;
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::args::ClientArgs;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use volume_manager::api::{ContainerMount, Line};

use crate::args::Run;
use hold::{Held, Holders};
use pod::{CommandPod, NamedClaim};
use signals::Signals;

pub use hold::SOCKET;
pub use inside::enter;
pub use mounts::ClaimMount;

/// How long the pod may take to be placed, and to be gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the command; its exit code is ours.
pub async fn run(options: Run) -> anyhow::Result<ExitCode> {
    stowage_runtime::log::init(&options.log)?;
    let mut pod = match &options.pod {
        Some(file) => CommandPod::read(file, options.container.as_deref())?,
        None => CommandPod::of_claims(),
    };
    let namespace = pod.namespace(options.namespace.as_deref())?;
    let kubeconfig = options.root.join("kubeconfig");
    if !kubeconfig.is_file() {
        bail!("{} is not there; start `stowage up --root {}` first", kubeconfig.display(), options.root.display());
    }
    let client = ClientArgs { kubeconfig: Some(kubeconfig.to_string_lossy().into_owned()), ..ClientArgs::default() };
    let api = Api::new(client.client(10).await?);
    let missing = add_claims(&api, &options, &mut pod, &namespace).await?;
    with_pod(&api, &options, pod, namespace, missing).await
}

/// Adds the claims of the command line to the pod; returns those of the pod that do not exist.
async fn add_claims(
    api: &Api,
    options: &Run,
    pod: &mut CommandPod,
    namespace: &str,
) -> anyhow::Result<Vec<NamedClaim>> {
    let find = async |name: &str| {
        let found = api.get::<Claim>(&Key::namespaced(namespace, name)).await;
        found.with_context(|| format!("cannot read claim {name}"))
    };
    for (index, mount) in options.claims.iter().enumerate() {
        let found = find(&mount.claim).await?;
        let is_block = found.is_some_and(|claim| claim.spec.volume_mode == VolumeMode::Block);
        pod.add_claim(index, mount, is_block)?;
    }
    let mut missing: Vec<NamedClaim> = Vec::new();
    for claim in pod.claims() {
        if missing.iter().any(|known| known.name == claim.name) || find(&claim.name).await?.is_some() {
            continue;
        }
        if options.size.is_none() {
            let name = claim.name;
            bail!("claim {namespace}/{name} does not exist; create it, or pass --size to have it made");
        }
        missing.push(claim);
    }
    Ok(missing)
}

/// Makes the claims that do not exist. Those that are to go with the command are the pod's, and go with it whatever ends it.
async fn make_claims(api: &Api, options: &Run, pod: &Pod, missing: &[NamedClaim]) -> anyhow::Result<()> {
    for NamedClaim { name, is_block } in missing {
        let size = options.size.as_ref().map(ToString::to_string);
        let mut body = json!({
            "metadata": { "name": name, "namespace": pod.meta.namespace },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": options.class,
                "volumeMode": if *is_block { "Block" } else { "Filesystem" },
                "resources": { "requests": { "storage": size } },
            },
        });
        if options.rm {
            body["metadata"]["ownerReferences"] = json!([owner(pod)]);
        }
        let created = api.create_raw(kinds::CLAIM, body).await;
        created.with_context(|| format!("cannot make claim {}/{name}", pod.meta.namespace))?;
        eprintln!("made claim {}/{name} of {}", pod.meta.namespace, size.unwrap_or_default());
    }
    Ok(())
}

fn owner(pod: &Pod) -> Value {
    let kind = kinds::POD;
    json!({ "apiVersion": kind.api_version(), "kind": kind.kind, "name": pod.meta.name, "uid": pod.meta.uid })
}

async fn with_pod(
    api: &Api,
    options: &Run,
    pod: CommandPod,
    namespace: String,
    missing: Vec<NamedClaim>,
) -> anyhow::Result<ExitCode> {
    let pods: Cache<Pod> = Cache::new();
    let name = pod.name(&Random::from_os().uuid()[..8]);
    let key = Key::namespaced(namespace.as_str(), name.as_str());
    let mut feed = JoinSet::new();
    let scope = Scope::fields(format!("metadata.name={name}"));
    feed.spawn(watch::feed(api.clone(), pods.clone(), scope, Random::from_os()));
    let holders = Holders::of(&options.root, pod.node(options.node.as_deref())?.as_deref(), &key).await?;
    let container = pod.container().to_owned();
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let created = api.create(&pods, pod.body(&name, &namespace, &holders.nodes())).await;
    let created = created.context("cannot make the pod")?;
    let work = async {
        let ready = tokio::select! {
            biased;
            ready = async {
                make_claims(api, options, &created, &missing).await?;
                mounted(&pods, &key, holders).await
            } => ready,
            told = signals.next() => Err(anyhow::anyhow!("{told} before the command was started")),
        };
        let outcome = match ready {
            Ok((mut held, mut mounts)) => {
                mounts.retain(|mount| mount.container == container);
                inside::command(&mounts, &options.command, &mut held, &mut signals).await
            }
            Err(error) => Err(error),
        };
        let end = delete(api, &pods, &created, &key).await;
        outcome.and_then(|code| end.map(|()| code))
    };
    let result = tokio::select! {
        biased;
        result = work => result,
        // It is for ever.
        _ = feed.join_next() => Err(anyhow::anyhow!("the watch of the pod has ended")),
    };
    // Not left to the end of this process: it would tell of a connection that is gone.
    feed.shutdown().await;
    result
}

/// Waits for the pod's volumes, and says where they are.
async fn mounted(pods: &Cache<Pod>, key: &Key, holders: Holders) -> anyhow::Result<(Held, Vec<ContainerMount>)> {
    let node = placed(pods, key).await?;
    let mut held = holders.keep(&node)?;
    let mut said = BTreeSet::new();
    loop {
        match held.next().await? {
            Line::Waiting(missing) => {
                for cause in missing.into_iter().map(|missing| missing.cause) {
                    if said.insert(cause.clone()) {
                        eprintln!("waiting: {cause}");
                    }
                }
            }
            Line::Ready { mounts, .. } => return Ok((held, mounts)),
            Line::Failed(cause) => bail!("{cause}"),
        }
    }
}

/// The node of the pod, once it has one.
async fn placed(pods: &Cache<Pod>, key: &Key) -> anyhow::Result<String> {
    let placed = async {
        loop {
            if let Some(pod) = pods.get(key).filter(|pod| pod.is_scheduled()) {
                return pod.spec.node_name.clone();
            }
            pods.reached(pods.position() + 1).await;
        }
    };
    let node = tokio::time::timeout(PATIENCE, placed).await;
    node.with_context(|| format!("no node for the command yet; `kubectl describe pod {}` says why", key.name))
}

/// Deletes the pod and waits until its volumes are given back.
async fn delete(api: &Api, pods: &Cache<Pod>, pod: &Pod, key: &Key) -> anyhow::Result<()> {
    api.delete(pods, &Target::any_version(&pod.meta), Deletion::default()).await.context("cannot delete the pod")?;
    let gone = async {
        while pods.get(key).is_some() {
            pods.reached(pods.position() + 1).await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.with_context(|| format!("pod {key} is still there; `kubectl describe pod {}` says why", key.name))
}
