//! The container engine: is it there, has it our images, and what testcontainers does not do for us.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Once;

use anyhow::{Context as _, bail};
use testcontainers::bollard::Docker;
use testcontainers::bollard::models::{
    EndpointIpamConfig, EndpointSettings, Ipam, IpamConfig, NetworkConnectRequest, NetworkCreateRequest,
    NetworkDisconnectRequest, VolumeCreateRequest,
};
use testcontainers::bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptions,
};
use testcontainers::core::client::docker_client_instance;

use futures::StreamExt as _;

/// Marks everything that a run makes.
pub const LABEL: &str = "dev.stowage.suite";
/// Set by `cargo xtask test`: `later` while the other tests run, `required` once it has built the images.
const WHEN: &str = "STOWAGE_CONTAINERS";
static SAID: Once = Once::new();

/// An engine on this machine.
#[derive(Clone)]
pub struct Engine {
    docker: Docker,
    /// Where it keeps volumes; shared, so that mounts below it are seen from container to container.
    pub root: String,
}

/// A container, as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub running: bool,
    /// Whether the engine is about to start it again.
    pub restarting: bool,
    /// Why the engine could not.
    pub error: String,
    pub pid: i32,
    pub exit_code: i64,
}

impl Engine {
    /// The engine, if it answers and has these images; else one line says what is missing.
    pub async fn find(images: &[String]) -> anyhow::Result<Option<Self>> {
        let when = std::env::var(WHEN).unwrap_or_default();
        if when == "later" {
            return Ok(None);
        }
        let missing = match Self::look(images).await {
            Ok(engine) => return Ok(Some(engine)),
            Err(missing) => missing,
        };
        if when == "required" {
            bail!("the container suite cannot run: {missing:#}");
        }
        // Around the harness, which hides what tests that pass have printed; once is enough.
        SAID.call_once(|| _ = writeln!(std::io::stderr(), "skipped: the container suite: {missing:#}"));
        Ok(None)
    }

    async fn look(images: &[String]) -> anyhow::Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("mount tables and loop devices are looked at, which needs root");
        }
        let docker = docker_client_instance().await.context("no container engine answers")?;
        let info = docker.info().await.context("no container engine answers")?;
        for image in images {
            let found = docker.inspect_image(image).await;
            found.with_context(|| format!("image {image} is missing, `cargo xtask images` builds it"))?;
        }
        let root = info.docker_root_dir.context("the engine does not say where its volumes are")?;
        Ok(Self { docker, root })
    }

    /// Where a volume is on this machine.
    pub fn volume_path(&self, name: &str) -> String {
        format!("{}/volumes/{name}/_data", self.root)
    }

    /// A network with addresses of its own, of which the engine hands out those of `range`.
    pub async fn make_network(&self, name: &str, subnet: &str, range: &str) -> anyhow::Result<()> {
        let config =
            IpamConfig { subnet: Some(subnet.to_owned()), ip_range: Some(range.to_owned()), ..IpamConfig::default() };
        let ipam = Ipam { config: Some(vec![config]), ..Ipam::default() };
        let request = NetworkCreateRequest {
            name: name.to_owned(),
            ipam: Some(ipam),
            labels: Some(labels()),
            ..NetworkCreateRequest::default()
        };
        self.docker.create_network(request).await.with_context(|| format!("cannot make network {name}")).map(drop)
    }

    pub async fn make_volume(&self, name: &str) -> anyhow::Result<()> {
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            labels: Some(labels()),
            ..VolumeCreateRequest::default()
        };
        self.docker.create_volume(request).await.with_context(|| format!("cannot make volume {name}")).map(drop)
    }

    pub async fn cut_off(&self, network: &str, container: &str) -> anyhow::Result<()> {
        let request = NetworkDisconnectRequest { container: container.to_owned(), force: Some(true) };
        let cut = self.docker.disconnect_network(network, request).await;
        cut.with_context(|| format!("cannot cut {container} off"))
    }

    /// Connects a container under this address and these further names.
    pub async fn connect(&self, network: &str, container: &str, address: &str, names: &[&str]) -> anyhow::Result<()> {
        let ipam = EndpointIpamConfig { ipv4_address: Some(address.to_owned()), ..EndpointIpamConfig::default() };
        let settings = EndpointSettings {
            ipam_config: Some(ipam),
            aliases: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..EndpointSettings::default()
        };
        let request = NetworkConnectRequest { container: container.to_owned(), endpoint_config: Some(settings) };
        let connected = self.docker.connect_network(network, request).await;
        connected.with_context(|| format!("cannot connect {container}"))
    }

    pub async fn host_name(&self, container: &str) -> anyhow::Result<String> {
        let seen = self.docker.inspect_container(container, None::<InspectContainerOptions>).await;
        let config = seen.with_context(|| format!("cannot look at {container}"))?.config;
        config.and_then(|config| config.hostname).with_context(|| format!("{container} has no host name"))
    }

    /// What an image says about itself.
    pub async fn labels(&self, image: &str) -> anyhow::Result<HashMap<String, String>> {
        let found = self.docker.inspect_image(image).await.with_context(|| format!("cannot look at {image}"))?;
        Ok(found.config.and_then(|config| config.labels).unwrap_or_default())
    }

    pub async fn see(&self, container: &str) -> anyhow::Result<Seen> {
        let seen = self.docker.inspect_container(container, None::<InspectContainerOptions>).await;
        let state = seen.with_context(|| format!("cannot look at {container}"))?.state.unwrap_or_default();
        Ok(Seen {
            running: state.running.unwrap_or_default() && !state.restarting.unwrap_or_default(),
            restarting: state.restarting.unwrap_or_default(),
            error: state.error.unwrap_or_default(),
            pid: i32::try_from(state.pid.unwrap_or_default()).unwrap_or_default(),
            exit_code: state.exit_code.unwrap_or_default(),
        })
    }

    /// Ends a container and leaves it so.
    pub async fn kill(&self, container: &str) -> anyhow::Result<()> {
        let none = None::<testcontainers::bollard::query_parameters::KillContainerOptions>;
        self.docker.kill_container(container, none).await.with_context(|| format!("cannot kill {container}"))
    }

    pub async fn start_again(&self, container: &str) -> anyhow::Result<()> {
        let none = None::<testcontainers::bollard::query_parameters::StartContainerOptions>;
        self.docker.start_container(container, none).await.with_context(|| format!("cannot start {container}"))
    }

    /// The last lines a container has printed.
    pub async fn said(&self, container: &str, lines: usize) -> String {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
        let mut logs = self.docker.logs(container, Some(options));
        let mut said = String::new();
        while let Some(Ok(line)) = logs.next().await {
            said.push_str(&line.to_string());
        }
        said
    }

    pub async fn image_bytes(&self, image: &str) -> anyhow::Result<i64> {
        let found = self.docker.inspect_image(image).await.with_context(|| format!("cannot look at {image}"))?;
        found.size.with_context(|| format!("{image} has no size"))
    }

    /// Removes every container, network and volume that a run has made; what is mounted must be gone.
    pub async fn remove_all(&self) -> anyhow::Result<()> {
        let filter = HashMap::from([("label", vec![LABEL])]);
        let ours = ListContainersOptionsBuilder::new().all(true).filters(&filter).build();
        let force = || Some(RemoveContainerOptionsBuilder::new().force(true).v(true).build());
        for container in self.docker.list_containers(Some(ours)).await.context("cannot list containers")? {
            let id = container.id.unwrap_or_default();
            self.docker.remove_container(&id, force()).await.with_context(|| format!("cannot remove {id}"))?;
        }
        let ours = ListNetworksOptionsBuilder::new().filters(&filter).build();
        for network in self.docker.list_networks(Some(ours)).await.context("cannot list networks")? {
            let name = network.name.unwrap_or_default();
            self.docker.remove_network(&name).await.with_context(|| format!("cannot remove {name}"))?;
        }
        for name in self.volumes().await? {
            let removed = self.docker.remove_volume(&name, None::<RemoveVolumeOptions>).await;
            removed.with_context(|| format!("cannot remove volume {name}"))?;
        }
        Ok(())
    }

    /// The names of all containers that runs have made.
    pub async fn containers(&self) -> anyhow::Result<Vec<String>> {
        let filter = HashMap::from([("label", vec![LABEL])]);
        let ours = ListContainersOptionsBuilder::new().all(true).filters(&filter).build();
        let found = self.docker.list_containers(Some(ours)).await.context("cannot list containers")?;
        Ok(found.into_iter().filter_map(|container| container.id).collect())
    }

    /// The names of all volumes that runs have made.
    pub async fn volumes(&self) -> anyhow::Result<Vec<String>> {
        let filter = HashMap::from([("label", vec![LABEL])]);
        let ours = ListVolumesOptionsBuilder::new().filters(&filter).build();
        let found = self.docker.list_volumes(Some(ours)).await.context("cannot list volumes")?;
        Ok(found.volumes.unwrap_or_default().into_iter().map(|volume| volume.name).collect())
    }

    /// Kills and removes the containers of all runs, so that nothing makes new mounts.
    pub async fn remove_containers(&self) -> anyhow::Result<()> {
        for id in self.containers().await? {
            let force = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            self.docker.remove_container(&id, Some(force)).await.with_context(|| format!("cannot remove {id}"))?;
        }
        Ok(())
    }
}

fn labels() -> HashMap<String, String> {
    HashMap::from([(LABEL.to_owned(), "run".to_owned())])
}
