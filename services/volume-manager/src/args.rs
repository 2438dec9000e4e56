//! Flags, with the kubelet's names where it has them; wires the real world and decides nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use nix::unistd::gethostname;

use stowage_mount::LinuxMounter;
use stowage_runtime::args::{AdminArgs, ClientArgs, LogArgs};
use stowage_runtime::launch::Launch;

use crate::layout::Layout;
use crate::options::Options;
use crate::plugins::RegistryDir;

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
        Ok(Options { node_name, root: self.root_dir.clone(), labels, ..Options::default() })
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
    fn a_relative_root_is_refused_with_the_reason() {
        let error = parse(&["--node-name=a", "--root-dir=r"]).unwrap().options().unwrap_err();
        assert!(error.to_string().contains("must be an absolute path"), "{error}");
    }

    #[test]
    fn a_label_without_a_value_is_refused() {
        assert!(parse(&["--node-labels=a"]).unwrap_err().to_string().contains("write KEY=VALUE"));
    }
}
