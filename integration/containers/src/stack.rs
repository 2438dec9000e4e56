//! The services of `compose.yaml` as containers of one run, and what can be done to them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::try_join_all;
use local_suite::api::{Api, PATIENCE};
use local_suite::relay::Relay;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use stowage_model::object::kinds;
use stowage_mount::{Host as _, LinuxMounter};
use testcontainers::bollard::models::{DeviceMapping, HostConfig, RestartPolicy, RestartPolicyNameEnum};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};
use tokio::time::{Instant, sleep};

use crate::checker::is_on;
use crate::compose::{Compose, DRIVER_SOCKET, SOCKET, Spec, repository};
use crate::engine::{Engine, LABEL, Seen};
use crate::machine;
use crate::node::Node;

/// The nodes of `compose.yaml`; each is also the name of its volume manager.
pub const NODES: [&str; 2] = ["node-1", "node-2"];
pub const APISERVER: &str = "apiserver";
pub const DRIVER: &str = "driver";
/// What the driver of `compose.yaml` is called.
const DRIVER_NAME: &str = "shared.csi.stowage.dev";
/// A name of the API server in its certificate, which clients know it by.
const SERVER_NAME: &str = "kubernetes";
const REPLICA: &str = "-replica";
const SETUP: &str = "setup";
const DRAIN: &str = "drain";
const PORT: u16 = 6443;
/// The last byte of the server's address.
const SERVER: u8 = 250;
/// The last byte of the first address that a service can keep.
const FIRST_KEPT: usize = 130;

/// The engine and the kernel are looked at this often.
const LOOK: Duration = Duration::from_millis(50);
/// How long a leader that hears nothing stays one, and how long its successor waits; short, because tests sit it out.
pub const LEASE: Duration = Duration::from_secs(4);
/// How long a node may be unready before volumes are taken from it, where that is on; short for the same reason.
pub const FORCE_DETACH: Duration = Duration::from_secs(5);

/// Everything of one run.
pub struct Stack {
    pub engine: Engine,
    pub api: Api,
    pub client: kube::Client,
    run: String,
    specs: BTreeMap<String, Spec>,
    containers: BTreeMap<String, ContainerAsync<GenericImage>>,
    /// The first three bytes of the run's addresses.
    subnet: String,
    folder: tempfile::TempDir,
    relays: BTreeMap<String, Relay>,
    /// How often the engine gave up on a container that we then started.
    helped: AtomicUsize,
}

impl Stack {
    /// Starts all services and waits until both nodes can take pods.
    pub async fn start(engine: &Engine, compose: Compose) -> anyhow::Result<Self> {
        let mut random = StdRng::from_os_rng();
        let run = format!("stw-{:06x}", random.random_range(0..0x0100_0000));
        // Taken from the part of 10/8 that people rarely route; a network that exists refuses to be made again.
        let subnet = format!("10.{}.{}", random.random_range(200..250), random.random_range(0..256));
        engine.make_network(&run, &format!("{subnet}.0/24"), &format!("{subnet}.0/25")).await?;
        for volume in compose.volumes.keys() {
            engine.make_volume(&format!("{run}-{volume}")).await?;
        }
        let relays = relays(&compose, |volume| engine.volume_path(&format!("{run}-{volume}")).into())?;
        let folder = tempfile::tempdir().context("cannot make a directory")?;
        let starting = Starting { engine, run: &run, folder: folder.path().to_owned() };
        let mut containers = BTreeMap::new();
        let mut start = async |name: &str| -> anyhow::Result<()> {
            let spec = compose.services.get(name).with_context(|| format!("compose.yaml has no {name}"))?;
            containers.insert(name.to_owned(), starting.start(name, spec).await?);
            Ok(())
        };
        start(APISERVER).await?;
        let server = format!("{run}-{APISERVER}");
        engine.cut_off(&run, &server).await?;
        let address = format!("{subnet}.{SERVER}");
        engine.connect(&run, &server, &address, &[SERVER_NAME]).await?;
        start(DRIVER).await?;
        start(SETUP).await?;
        let seen = until("setup to be over", async || {
            let seen = engine.see(&format!("{run}-{SETUP}")).await?;
            Ok((!seen.running && seen.pid == 0).then_some(seen))
        })
        .await?;
        ensure!(seen.exit_code == 0, "setup failed: {}", engine.said(&format!("{run}-{SETUP}"), 20).await);
        // The controller makes the pool's directories as its own.
        let pool = PathBuf::from(engine.volume_path(&format!("{run}-pool"))).join("volumes");
        until("the pool", async || Ok(pool.is_dir().then_some(()))).await?;
        let known = [APISERVER, DRIVER, SETUP, DRAIN];
        for name in compose.services.keys().filter(|name| !known.contains(&name.as_str())) {
            start(name).await?;
        }
        let kubeconfig = administrator(&folder.path().join("kubeconfig"), &address)?;
        let api = Api::connect(&kubeconfig).await?;
        let client = client(&kubeconfig).await?;
        for node in NODES {
            api.until(kinds::NODE, node, |node| is_ready(node?), "to be ready").await?;
            api.until(kinds::CSI_NODE, node, |node| has_driver(node?), "to know the driver").await?;
        }
        start(DRAIN).await?;
        let (engine, specs, helped) = (engine.clone(), compose.services, AtomicUsize::new(0));
        Ok(Self { engine, api, client, run, specs, containers, subnet, folder, relays, helped })
    }

    /// The services that run all the time, without the one that drains.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.specs.keys().map(String::as_str).filter(|name| ![SETUP, DRAIN].contains(name))
    }

    /// The same and the one that drains: all that people see running.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.services().chain([DRAIN])
    }

    /// The services that reach the API server over the network.
    pub fn clients(&self) -> impl Iterator<Item = &str> {
        self.services().filter(|name| self.specs[*name].command.iter().any(|word| word.starts_with("--master=")))
    }

    pub fn container(&self, service: &str) -> String {
        format!("{}-{service}", self.run)
    }

    /// A directory of the run on this machine.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.engine.volume_path(&format!("{}-{name}", self.run)).into()
    }

    /// The socket of the driver's controller.
    pub fn driver_socket(&self) -> PathBuf {
        self.volume("csi").join("csi.sock")
    }

    /// What is between a driver and its callers, in a stack that was started so.
    pub fn relay(&self, driver: &str) -> anyhow::Result<&Relay> {
        self.relays.get(driver).with_context(|| format!("{driver} has no relay"))
    }

    pub fn node(&self, name: &'static str) -> Node<'_> {
        Node { stack: self, name }
    }

    pub fn image(&self, service: &str) -> &str {
        &self.specs[service].image
    }

    pub async fn see(&self, service: &str) -> anyhow::Result<Seen> {
        self.engine.see(&self.container(service)).await
    }

    async fn pid(&self, service: &str) -> anyhow::Result<Pid> {
        self.back(service, Pid::from_raw(0)).await?;
        Ok(Pid::from_raw(self.see(service).await?.pid))
    }

    /// The process of a service on this machine.
    pub async fn process(&self, service: &str) -> anyhow::Result<i32> {
        Ok(self.pid(service).await?.as_raw())
    }

    /// `kill -9` as if the machine had done it: the engine starts the container again by its restart policy.
    pub async fn kill(&self, service: &str) -> anyhow::Result<()> {
        let pid = self.pid(service).await?;
        kill(pid, Signal::SIGKILL).with_context(|| format!("cannot kill {service}"))?;
        self.back(service, pid).await
    }

    /// Waits until a service runs as another process than this one.
    pub async fn back(&self, service: &str, than: Pid) -> anyhow::Result<()> {
        until(format!("{service} to be restarted"), async || {
            let seen = self.see(service).await?;
            // The engine tries once: a mount that goes while it looks makes it give up, where a kubelet would not.
            if !seen.running && !seen.restarting && !seen.error.is_empty() {
                eprintln!("{service} was not restarted: {}; starting it", seen.error);
                self.helped.fetch_add(1, Ordering::Relaxed);
                self.engine.start_again(&self.container(service)).await?;
            }
            Ok((seen.running && seen.pid > 0 && seen.pid != than.as_raw()).then_some(()))
        })
        .await
    }

    /// SIGSTOP, until [`Stack::resume`].
    pub async fn pause(&self, service: &str) -> anyhow::Result<Pid> {
        let pid = self.pid(service).await?;
        kill(pid, Signal::SIGSTOP).with_context(|| format!("cannot stop {service}"))?;
        Ok(pid)
    }

    pub fn resume(&self, pid: Pid) -> anyhow::Result<()> {
        kill(pid, Signal::SIGCONT).with_context(|| format!("cannot continue process {pid}"))
    }

    /// Takes a service's network away, until [`Stack::mend`].
    pub async fn cut_off(&self, service: &str) -> anyhow::Result<()> {
        // One that is being started again is connected by that.
        self.pid(service).await?;
        self.engine.cut_off(&self.run, &self.container(service)).await
    }

    /// Gives a service its network and address back.
    pub async fn mend(&self, service: &str) -> anyhow::Result<()> {
        let names: &[&str] = if service == APISERVER { &[SERVER_NAME] } else { &[] };
        self.engine.connect(&self.run, &self.container(service), &self.address(service)?, names).await
    }

    /// Moves all clients to addresses that nobody else is given while they are cut off or being started again.
    pub async fn keep_addresses(&self) -> anyhow::Result<()> {
        let moved = self.clients().map(async |service| {
            self.cut_off(service).await?;
            self.mend(service).await?;
            // Its connections are of the address it had: what it would take to notice is not this fault.
            self.kill(service).await
        });
        try_join_all(moved).await.map(drop)
    }

    /// Outside of what the engine hands out.
    fn address(&self, service: &str) -> anyhow::Result<String> {
        let found = self.specs.keys().position(|name| name == service);
        let place = found.with_context(|| format!("compose.yaml has no {service}"))?;
        Ok(match service {
            APISERVER => format!("{}.{SERVER}", self.subnet),
            _ => format!("{}.{}", self.subnet, FIRST_KEPT + place),
        })
    }

    /// Whether a service works only while it holds a Lease.
    pub fn is_elected(&self, service: &str) -> bool {
        stowage_services::find(service).is_some_and(|service| service.lease.is_some())
    }

    /// Starts a second container of each service that is elected; it waits until the first has lost its Lease.
    pub async fn start_replicas(&self) -> anyhow::Result<Vec<ContainerAsync<GenericImage>>> {
        let starting = Starting { engine: &self.engine, run: &self.run, folder: self.folder.path().to_owned() };
        let mut started = Vec::new();
        for service in stowage_services::names(|service| service.lease.is_some()) {
            started.push(starting.start(&format!("{service}{REPLICA}"), &self.specs[service]).await?);
        }
        Ok(started)
    }

    /// The one of a service and its replica that holds their Lease; a service that is not elected is its own leader.
    pub async fn leader(&self, service: &str) -> anyhow::Result<String> {
        let found = stowage_services::find(service);
        let Some((found, (namespace, _))) = found.and_then(|found| Some((found, found.lease?))) else {
            return Ok(service.to_owned());
        };
        // Those of compose.yaml that elect in their own are told no namespace.
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let name = found.lease_name(DRIVER_NAME).unwrap_or_default();
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let both = [service.to_owned(), format!("{service}{REPLICA}")];
        until(format!("a leader of {service}"), async || {
            let request = http::Request::get(&path).body(Vec::new()).context("cannot make a request")?;
            // The server may be on its way back.
            let Ok(lease) = self.client.request::<serde_json::Value>(request).await else { return Ok(None) };
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            for one in &both {
                // An identity begins with the host's name, which the engine makes of the container's id.
                if holder.starts_with(&self.engine.host_name(&self.container(one)).await?) {
                    return Ok(Some(one.clone()));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Pulls a node's plug: its processes end and what they had in the kernel goes with it, until [`Stack::power_on`].
    pub async fn power_off(&self, node: &'static str) -> anyhow::Result<()> {
        let held = self.node(node).mounts().await?;
        for service in parts_of(node) {
            self.engine.kill(&self.container(&service)).await?;
        }
        machine::unmount_below(&self.volume(node))?;
        for device in LinuxMounter.loops().await.context("cannot list loop devices")? {
            if held.iter().any(|mount| is_on(mount, &device)) {
                LinuxMounter.detach_loop(&device).await.context("cannot detach a loop device")?;
            }
        }
        Ok(())
    }

    /// Lets a node's services start again.
    pub async fn power_on(&self, node: &str) -> anyhow::Result<()> {
        for service in parts_of(node) {
            self.engine.start_again(&self.container(&service)).await?;
        }
        Ok(())
    }

    /// Stops as `docker-compose down` does: what drains first, then what depends on others before those.
    pub async fn shut_down(&self) -> anyhow::Result<()> {
        let mut stopped: Vec<String> = Vec::new();
        while stopped.len() < self.specs.len() {
            let free = |name: &&String| {
                let needed = self
                    .specs
                    .iter()
                    .any(|(other, spec)| !stopped.contains(other) && spec.depends_on.contains_key(*name));
                !stopped.contains(*name) && !needed
            };
            let now: Vec<String> = self.specs.keys().filter(free).cloned().collect();
            ensure!(!now.is_empty(), "compose.yaml has services that depend on each other in a circle");
            for name in &now {
                self.stop(name).await?;
            }
            stopped.extend(now);
        }
        Ok(())
    }

    async fn stop(&self, service: &str) -> anyhow::Result<()> {
        let container = self.containers.get(service).with_context(|| format!("{service} was not started"))?;
        container.stop_with_timeout(Some(90)).await.with_context(|| format!("cannot stop {service}"))?;
        let seen = self.see(service).await?;
        ensure!(
            seen.exit_code == 0,
            "{service} ended with {} after SIGTERM: {}",
            seen.exit_code,
            self.engine.said(&self.container(service), 20).await
        );
        Ok(())
    }

    /// What all services said last, for a test that failed.
    pub async fn print_logs(&self) {
        for service in self.specs.keys() {
            eprintln!("--- {service}\n{}", self.engine.said(&self.container(service), 40).await);
        }
    }

    /// Removes the containers; mounts and volumes are the caller's.
    pub async fn remove(self) -> anyhow::Result<()> {
        let helped = self.helped.load(Ordering::Relaxed);
        println!("containers that the engine did not restart by itself: {helped}");
        for (service, container) in self.containers {
            container.rm().await.with_context(|| format!("cannot remove {service}"))?;
        }
        self.folder.close().context("cannot remove the run's directory")
    }
}

/// A relay for each driver that is not where its callers look for it.
fn relays(compose: &Compose, volume: impl Fn(&str) -> PathBuf) -> anyhow::Result<BTreeMap<String, Relay>> {
    let mut relays = BTreeMap::new();
    for (name, folder) in [(DRIVER, "csi"), ("node-1-plugin", "node-1"), ("node-2-plugin", "node-2")] {
        let spec = compose.services.get(name).with_context(|| format!("compose.yaml has no {name}"))?;
        if spec.command.iter().any(|word| word.ends_with(DRIVER_SOCKET)) {
            if let Some(owner) = spec.user.as_ref().and_then(|user| user.split(':').next()?.parse().ok()) {
                // The engine does so with volumes that are empty, which this one is not when the driver comes.
                chown(volume(folder), Some(owner), Some(owner)).context("cannot give a volume away")?;
            }
            let at = |socket: &str| volume(folder).join(socket.trim_start_matches('/'));
            relays.insert(name.to_owned(), Relay::listen(&at(SOCKET), at(DRIVER_SOCKET))?);
        }
    }
    Ok(relays)
}

/// The services of a node.
fn parts_of(node: &str) -> [String; 4] {
    [node.to_owned(), format!("{node}-registrar"), format!("{node}-probe"), format!("{node}-plugin")]
}

/// Looks until there is something; the clock is only a limit.
pub async fn until<T>(
    what: impl std::fmt::Display,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {} s in vain for {what}", PATIENCE.as_secs());
        }
        sleep(LOOK).await;
    }
}

/// Turns specifications into containers.
struct Starting<'a> {
    engine: &'a Engine,
    run: &'a str,
    folder: PathBuf,
}

impl Starting<'_> {
    async fn start(&self, name: &str, spec: &Spec) -> anyhow::Result<ContainerAsync<GenericImage>> {
        let (image, tag) = spec.image.rsplit_once(':').with_context(|| format!("{} has no tag", spec.image))?;
        let config = Config {
            binds: spec.volumes.iter().map(|volume| self.bind(volume)).collect::<anyhow::Result<_>>()?,
            devices: spec.devices.iter().map(|device| mapping(device)).collect::<anyhow::Result<_>>()?,
            rules: spec.device_cgroup_rules.clone(),
            restarts: spec.restart == "unless-stopped",
        };
        let mut request = GenericImage::new(image, tag)
            .with_container_name(format!("{}-{name}", self.run))
            .with_network(self.run)
            .with_label(LABEL, "run")
            .with_readonly_rootfs(spec.read_only)
            .with_privileged(spec.privileged)
            .with_cmd(spec.command.iter().cloned().chain(extra(spec)))
            .with_host_config_modifier(move |host| config.apply(host));
        if let Some(user) = &spec.user {
            request = request.with_user(user);
        }
        for (name, value) in &spec.environment {
            request = request.with_env_var(name, value);
        }
        for capability in &spec.cap_drop {
            request = request.with_cap_drop(capability);
        }
        for capability in &spec.cap_add {
            request = request.with_cap_add(capability);
        }
        for option in &spec.security_opt {
            // Compose writes name:value where the engine wants name=value.
            request = request.with_security_opt(option.replacen(':', "=", 1));
        }
        request.start().await.with_context(|| format!("cannot start {name}"))
    }

    /// `SOURCE:TARGET[:MODE]`, with the sources of this run.
    fn bind(&self, volume: &str) -> anyhow::Result<String> {
        let (source, target) = volume.split_once(':').with_context(|| format!("volume {volume:?}"))?;
        let source = match source {
            "./.stowage" => self.folder.display().to_string(),
            path if path.starts_with("./") => {
                let path = repository().join(path);
                let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
                path.display().to_string()
            }
            path if path.starts_with('/') => {
                let name = path.strip_suffix("/_data").and_then(|path| path.rsplit('/').next());
                let node = name.and_then(|name| name.strip_prefix("stowage-"));
                let node = node.with_context(|| format!("{path} is not the directory of a node's volume"))?;
                self.engine.volume_path(&format!("{}-{node}", self.run))
            }
            name => format!("{}-{name}", self.run),
        };
        Ok(format!("{source}:{target}"))
    }
}

/// What testcontainers has no words for.
struct Config {
    binds: Vec<String>,
    devices: Vec<DeviceMapping>,
    rules: Vec<String>,
    restarts: bool,
}

impl Config {
    fn apply(&self, host: &mut HostConfig) {
        host.binds = Some(self.binds.clone());
        host.devices = Some(self.devices.clone());
        host.device_cgroup_rules = Some(self.rules.clone());
        host.publish_all_ports = Some(false);
        let policy = RestartPolicy { name: Some(RestartPolicyNameEnum::UNLESS_STOPPED), maximum_retry_count: None };
        host.restart_policy = self.restarts.then_some(policy);
    }
}

fn mapping(device: &str) -> anyhow::Result<DeviceMapping> {
    let parts: Vec<&str> = device.split(':').collect();
    let [host, container, permissions] = parts[..] else { bail!("device {device:?} is not HOST:CONTAINER:MODE") };
    Ok(DeviceMapping {
        path_on_host: Some(host.to_owned()),
        path_in_container: Some(container.to_owned()),
        cgroup_permissions: Some(permissions.to_owned()),
    })
}

/// Times short enough to sit out; of a flag given twice the last counts.
fn extra(spec: &Spec) -> Vec<String> {
    let has = |image: &str| spec.image.contains(&format!("/{image}:"));
    let lease = |flag: &str| {
        let times = [("lease-duration", LEASE), ("renew-deadline", LEASE * 3 / 4), ("retry-period", LEASE / 4)];
        times.map(|(name, time)| format!("--{flag}-{name}={}ms", time.as_millis()))
    };
    let mut words = Vec::new();
    // Those of kube-controller-manager and kube-scheduler elect in kube-system and have other flags than all others.
    let elected = stowage_services::SERVICES.iter().find(|service| has(service.name)).and_then(|service| service.lease);
    if let Some((namespace, _)) = elected {
        words.extend(lease(if namespace.is_empty() { "leader-election" } else { "leader-elect" }));
    }
    if has("attach-detach-controller") {
        words.push(format!("--max-wait-for-unmount-duration={}s", FORCE_DETACH.as_secs()));
    }
    if has("scheduler") {
        // A volume manager reports every ten seconds.
        words.push("--node-monitor-grace-period=15s".to_owned());
    }
    words
}

/// The handed-out kubeconfig, for this machine: the server by its address, known by a name in its certificate.
fn administrator(handed_out: &std::path::Path, address: &str) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(handed_out).context("no kubeconfig was handed out")?;
    let local = format!("server: https://127.0.0.1:{PORT}");
    ensure!(text.contains(&local), "the kubeconfig does not name {local}");
    let remote = format!("server: https://{address}:{PORT}\n    tls-server-name: kubernetes");
    let file = handed_out.with_extension("host");
    fs::write(&file, text.replace(&local, &remote)).context("cannot write the kubeconfig")?;
    Ok(file)
}

async fn client(kubeconfig: &std::path::Path) -> anyhow::Result<kube::Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
    let options = kube::config::KubeConfigOptions::default();
    Ok(kube::Client::try_from(kube::Config::from_custom_kubeconfig(file, &options).await?)?)
}

fn is_ready(node: &serde_json::Value) -> Option<()> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(())
}

fn has_driver(node: &serde_json::Value) -> Option<()> {
    let drivers = node["spec"]["drivers"].as_array()?;
    drivers.iter().any(|driver| driver["name"] == local_suite::objects::DRIVER).then_some(())
}
