//! Flags, with the kubelet's names where it has them; wires the real world and decides nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{ArgAction, Parser};
use nix::unistd::gethostname;

use stowage_mount::LinuxMounter;
use stowage_plugins::flex::DRIVER_DIR;
use stowage_plugins::{Image, Layout, in_tree_with};
use stowage_runtime::args::{AdminArgs, ClientArgs, LogArgs};
use stowage_runtime::duration::GoDuration;
use stowage_runtime::launch::Launch;

use crate::machine::LinuxMachine;
use crate::options::Options;
use crate::plugin_watcher::RegistryDir;
use crate::selinux::SeLinux;

/// The kubelet's `kubeAPIBurst`.
const BURST: u32 = 100;

/// Mounts the volumes of one node's pods, where no kubelet does.
#[derive(Debug, Parser)]
#[command(name = "volume-manager", version)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    /// Name of the Node; the host name if not given
    #[arg(long, alias = "hostname-override", value_name = "NAME")]
    node_name: Option<String>,
    /// Directory for pods, plugins and the plugin registry
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Address of the Node, or one of each family separated by a comma; if not given, the one that packets leave by
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = parse_address)]
    node_ip: Vec<IpAddr>,
    /// Make the Node if it is missing
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL")]
    register_node: bool,
    /// How often the machine is looked at; what has changed is written to the Node
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    node_status_update_frequency: GoDuration,
    /// How many pods the Node says it takes
    #[arg(long, value_name = "NUMBER", default_value_t = 110)]
    max_pods: u32,
    /// Leave attaching to the attach-detach controller; otherwise this node attaches what its plugins can attach
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL")]
    enable_controller_attach_detach: bool,
    /// Keep the volumes of a pod that has ended until it is deleted
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL")]
    keep_terminated_pod_volumes: bool,
    /// How often volumes are asked how full they are; zero or less for never
    #[arg(long, value_name = "DURATION", default_value = "1m", allow_hyphen_values = true, value_parser = parse_period)]
    volume_stats_agg_period: GoDuration,
    /// Directory of OCI image layouts (NAME/ or NAME.tar) for image volumes; `images` below --root-dir if not given
    #[arg(long, value_name = "DIR")]
    image_dir: Option<PathBuf>,
    /// Directory in which FlexVolume drivers are looked for, as VENDOR~DRIVER/DRIVER
    #[arg(long, value_name = "DIR", default_value = DRIVER_DIR)]
    volume_plugin_dir: PathBuf,
    /// Labels for the Node when it is registered, as KEY=VALUE separated by commas
    #[arg(long, value_name = "LABELS", value_delimiter = ',', value_parser = parse_label)]
    node_labels: Vec<(String, String)>,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let options = self.options()?;
        let launch = Launch { client: &self.client, burst: BURST, log: &self.log, admin: Some(&self.admin) };
        let mut context = launch.context().await?;
        // Events come from the Node, whatever the machine is called.
        context.identity.clone_from(&options.node_name);
        let plugins = Arc::new(RegistryDir::new(Layout::new(&options.root).registry()));
        launch.run(context, None, |context| crate::run(context, Arc::new(LinuxMounter), plugins, options)).await
    }

    fn options(&self) -> anyhow::Result<Options> {
        let node_name = match &self.node_name {
            Some(name) => name.clone(),
            None => {
                gethostname().context("cannot read the host name; pass --node-name")?.to_string_lossy().into_owned()
            }
        };
        let node_name = node_name.trim().to_lowercase();
        if node_name.is_empty() {
            anyhow::bail!("--node-name is empty; name the Node this machine is");
        }
        if !self.root_dir.is_absolute() {
            anyhow::bail!("--root-dir {:?} must be an absolute path: drivers get paths below it", self.root_dir);
        }
        let labels: BTreeMap<String, String> = self.node_labels.iter().cloned().collect();
        let machine = LinuxMachine::new(&self.root_dir, self.node_ip.clone());
        let node_status_update = self.node_status_update_frequency.0;
        if node_status_update.is_zero() {
            anyhow::bail!("--node-status-update-frequency 0s would never rest; write for example 10s");
        }
        Ok(Options {
            node_name,
            root: self.root_dir.clone(),
            labels,
            socket: Some(self.root_dir.join("volume-manager.sock")),
            machine,
            register_node: self.register_node,
            node_status_update,
            max_pods: self.max_pods,
            controller_attach: self.enable_controller_attach_detach,
            keep_terminated_pod_volumes: self.keep_terminated_pod_volumes,
            volume_stats_agg_period: self.volume_stats_agg_period.0,
            se_linux: SeLinux::read(Path::new("/")),
            devices: Some(Arc::new(LinuxMounter)),
            plugins: in_tree_with(Image::from(self.image_dir.clone())),
            volume_plugin_dir: Some(self.volume_plugin_dir.clone()),
            ..Options::default()
        })
    }
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.trim().parse().map_err(|_| "write an IPv4 or IPv6 address".to_owned())?;
    match address.is_loopback() || address.is_multicast() {
        true => Err("the Node needs an address that others can reach; leave --node-ip out to have it found".into()),
        false => Ok(address),
    }
}

/// The kubelet takes a negative period for never.
fn parse_period(text: &str) -> Result<GoDuration, stowage_runtime::duration::Error> {
    match text.strip_prefix('-') {
        Some(rest) => rest.parse::<GoDuration>().map(|_| GoDuration::default()),
        None => text.parse(),
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use stowage_runtime::flags;

    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        let words = std::iter::once("volume-manager").chain(words.iter().copied());
        flags::try_parse_from(words.map(Into::into))
    }

    #[test]
    fn the_kubelets_flags_are_understood() {
        let args = parse(&["--hostname-override=A", "-root-dir", "/r", "--node-labels=a=b,c=", "-v=4"]).unwrap();
        let options = args.options().unwrap();
        assert_eq!(options.node_name, "a");
        assert_eq!(options.root, PathBuf::from("/r"));
        assert_eq!(options.labels, BTreeMap::from([("a".into(), "b".into()), ("c".into(), String::new())]));
    }

    #[test]
    fn what_is_not_said_is_as_the_kubelet_has_it() {
        let options = parse(&["--node-name=a"]).unwrap().options().unwrap();
        let plain = Options::default();
        assert!(options.register_node && options.controller_attach && !options.keep_terminated_pod_volumes);
        assert_eq!(options.node_status_update, plain.node_status_update);
        assert_eq!(options.volume_stats_agg_period, plain.volume_stats_agg_period);
        assert_eq!(options.max_pods, plain.max_pods);
    }

    #[test]
    fn each_flag_has_its_option() {
        let words = [
            "--node-name=a",
            "--register-node=false",
            "--enable-controller-attach-detach=false",
            "--max-pods=7",
            "--keep-terminated-pod-volumes",
            "--node-status-update-frequency=1m30s",
            "--volume-stats-agg-period=-1s",
            "--volume-plugin-dir=/flex",
        ];
        let options = parse(&words).unwrap().options().unwrap();
        assert!(!options.register_node && !options.controller_attach && options.keep_terminated_pod_volumes);
        assert_eq!((options.max_pods, options.node_status_update.as_secs()), (7, 90));
        assert_eq!(options.volume_plugin_dir, Some("/flex".into()));
        assert!(options.volume_stats_agg_period.is_zero(), "a negative period means never");
    }

    #[test]
    fn an_address_nobody_else_can_reach_is_refused() {
        let error = parse(&["--node-ip=127.0.0.1"]).unwrap_err().to_string();
        assert!(error.contains("an address that others can reach"), "{error}");
        assert!(parse(&["--node-ip=10.0.0.7,fd00::7"]).is_ok());
    }

    #[test]
    fn a_relative_root_is_refused_with_the_reason() {
        let error = parse(&["--node-name=a", "--root-dir=r"]).unwrap().options().unwrap_err();
        assert!(error.to_string().contains("must be an absolute path"), "{error}");
    }

    #[test]
    fn a_label_without_a_value_is_refused() {
        assert!(parse(&["--node-labels=a"]).unwrap_err().to_string().contains("write KEY=VALUE"));
    }
}
