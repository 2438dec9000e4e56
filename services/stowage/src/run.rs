//! `stowage run`: a command with claims mounted where it wants them, as `kubectl exec` is in a cluster.
//!
//! A pod stands for the command. The volume manager of its node says over its socket when the volumes are there, and holds
//! the pod for as long as this process listens: however it ends, the pod goes, and its volumes with it. Every node that the
//! pod may come to holds it by name before it is made, so it is never without a holder.

mod hold;
mod mounts;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use stowage_model::Claim;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::pod::Pod;
use stowage_mount::{Shown, enter as show};
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::args::ClientArgs;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};
use volume_manager::api::{Line, RUN_LABEL};

use crate::args::{Enter, Run};

pub use hold::SOCKET;
pub use mounts::ClaimMount;

/// How long the pod may take to be placed, and to be gone.
const PATIENCE: Duration = Duration::from_secs(120);

const CONTAINER: &str = "command";

/// Runs the command; its exit code is ours.
pub async fn run(options: Run) -> anyhow::Result<ExitCode> {
    stowage_runtime::log::init(&options.log)?;
    let kubeconfig = options.root.join("kubeconfig");
    if !kubeconfig.is_file() {
        bail!("{} is not there; start `stowage up --root {}` first", kubeconfig.display(), options.root.display());
    }
    let client = ClientArgs { kubeconfig: Some(kubeconfig.to_string_lossy().into_owned()), ..ClientArgs::default() };
    let api = Api::new(client.client(10).await?);
    let made = make_claims(&api, &options).await?;
    let outcome = with_pod(&api, &options).await;
    if options.rm {
        for claim in &made {
            let cache = Cache::<Claim>::new();
            let deleted = api.delete(&cache, &Target::any_version(claim.meta()), Deletion::default()).await;
            deleted.with_context(|| format!("cannot delete claim {}", claim.meta.name))?;
        }
    }
    outcome
}

/// Makes the claims that do not exist, if asked to.
async fn make_claims(api: &Api, options: &Run) -> anyhow::Result<Vec<Claim>> {
    let mut made = Vec::new();
    for mount in &options.claims {
        let key = Key::namespaced(options.namespace.as_str(), mount.claim.as_str());
        if api.get::<Claim>(&key).await.context("cannot read the claim")?.is_some() {
            continue;
        }
        let Some(size) = options.size else {
            bail!("claim {key} does not exist; create it, or pass --size to have it made");
        };
        let body = json!({
            "metadata": { "name": mount.claim, "namespace": options.namespace },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": options.class,
                "resources": { "requests": { "storage": size.to_string() } },
            },
        });
        let created = api.create_raw(kinds::CLAIM, body).await.with_context(|| format!("cannot make claim {key}"))?;
        eprintln!("made claim {key} of {size}");
        made.push(serde_json::from_value(created).context("cannot read the claim that was made")?);
    }
    Ok(made)
}

async fn with_pod(api: &Api, options: &Run) -> anyhow::Result<ExitCode> {
    let pods: Cache<Pod> = Cache::new();
    let name = format!("run-{}", &Random::from_os().uuid()[..8]);
    let key = Key::namespaced(options.namespace.as_str(), name.as_str());
    let mut tasks = Tasks::new();
    let scope = Scope::fields(format!("metadata.name={name}"));
    tasks.spawner().spawn(watch::feed(api.clone(), pods.clone(), scope, Random::from_os()));
    let holders = hold::Holders::of(&options.root, options.node.as_deref(), &key).await?;
    let body = pod(&name, &holders.nodes(), options);
    let created = api.create(&pods, body).await.context("cannot make the pod")?;
    let work = async {
        let outcome = tokio::select! {
            biased;
            outcome = in_pod(&pods, &key, options, holders) => outcome,
            // While the command runs it hears of signals itself.
            _ = tokio::signal::ctrl_c(), if !options.command.is_empty() => Err(anyhow::anyhow!("interrupted")),
        };
        let end = delete(api, &pods, &created, &key).await;
        outcome.and_then(|code| end.map(|()| code))
    };
    tokio::select! {
        biased;
        result = work => result,
        panicked = tasks.supervise() => Err(anyhow::anyhow!("{panicked}")),
    }
}

fn pod(name: &str, nodes: &[&str], options: &Run) -> Value {
    let volumes: Vec<Value> = options.claims.iter().enumerate().map(|(index, mount)| mount.volume(index)).collect();
    let mounts: Vec<Value> = options.claims.iter().enumerate().map(|(index, mount)| mount.mount(index)).collect();
    let held = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes });
    json!({
        "metadata": { "name": name, "namespace": options.namespace, "labels": { RUN_LABEL: "true" } },
        "spec": {
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [held] }],
            } } },
            "containers": [{ "name": CONTAINER, "image": "stowage.dev/run", "volumeMounts": mounts }],
            "volumes": volumes,
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
        },
    })
}

/// Waits for the pod's volumes, runs the command with them, and lets go.
async fn in_pod(pods: &Cache<Pod>, key: &Key, options: &Run, holders: hold::Holders) -> anyhow::Result<ExitCode> {
    let node = placed(pods, key).await?;
    let mut held = holders.keep(&node)?;
    let mounts = loop {
        match held.next().await? {
            Line::Waiting(missing) => missing.iter().for_each(|missing| eprintln!("waiting: {}", missing.cause)),
            Line::Ready { mounts, .. } => break mounts,
            Line::Failed(cause) => bail!("{cause}"),
        }
    };
    let made = mounts::make_targets(&mounts)?;
    let code = command(&mounts, &options.command, &mut held).await;
    mounts::remove_targets(&made);
    code
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

/// Runs the command in a mount namespace of its own and passes signals on.
async fn command(
    mounts: &[volume_manager::api::ContainerMount],
    command: &[std::ffi::OsString],
    held: &mut hold::Held,
) -> anyhow::Result<ExitCode> {
    let ourselves = std::env::current_exe().context("cannot find this program")?;
    let shown = serde_json::to_string(mounts).context("cannot pass the mounts on")?;
    let mut child = tokio::process::Command::new(ourselves)
        .args(["enter", "--mounts", &shown, "--"])
        .args(command)
        .stdin(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the command")?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
        .map(|kind| signal(kind).map(|stream| (kind, stream)));
    let [interrupt, terminate, hangup, quit] = &mut signals;
    loop {
        let received = tokio::select! {
            biased;
            ended = child.wait() => return Ok(exit_code(ended.context("cannot wait for the command")?)),
            // Nobody may write any more to what is about to be unmounted.
            _ = held.next() => {
                child.kill().await.context("cannot end the command")?;
                bail!("the pod that stands for the command is gone, and its volumes go with it: the command was ended");
            }
            kind = hold::received(interrupt) => kind,
            kind = hold::received(terminate) => kind,
            kind = hold::received(hangup) => kind,
            kind = hold::received(quit) => kind,
        };
        if let (Some(pid), Ok(signal)) = (pid, Signal::try_from(received.as_raw_value())) {
            // One that has ended meanwhile hears nothing.
            let _ = kill(pid, signal);
        }
    }
}

/// As a shell tells it: 128 and the signal for one that was killed.
fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
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

/// Becomes the command, with the volumes where it wants them. Ends with whoever started it.
pub fn enter(options: &Enter) -> anyhow::Result<ExitCode> {
    let mounts: Vec<volume_manager::api::ContainerMount> =
        serde_json::from_str(&options.mounts).context("--mounts is not what `stowage run` passes on")?;
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie the command to `stowage run`")?;
    let shown: Vec<Shown> = mounts
        .into_iter()
        .map(|mount| Shown { from: mount.host_path, at: PathBuf::from(mount.path), read_only: mount.read_only })
        .collect();
    show(&shown)?;
    let Some((program, arguments)) = options.command.split_first() else { bail!("there is no command to run") };
    let error = std::process::Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.to_string_lossy()))
}
