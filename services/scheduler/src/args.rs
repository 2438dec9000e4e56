use clap::{ArgAction, Parser};

use stowage_runtime::args::{ControllerArgs, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::Options;
use crate::run;

/// Two schedulers that place the same pods must not run side by side, so the original's Lease is taken.
const LEASE: &str = "kube-scheduler";

/// Places pods where their volumes can be, marks silent nodes and collects pods of nodes that are gone
///
/// For stacks without kube-scheduler and kube-controller-manager: it knows volumes, taints, selectors and required
/// node affinity, but neither CPU nor memory.
#[derive(Debug, Parser)]
#[command(name = "scheduler", version)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Pods whose spec.schedulerName is this are placed, and with --node-lifecycle those without one
    #[arg(long, value_name = "NAME", default_value_t = Options::default().scheduler_name)]
    scheduler_name: String,
    /// Also mark silent nodes and collect pods of nodes that are gone, as kube-controller-manager does where there is one
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    node_lifecycle: bool,
    /// How long a node may be silent before it is marked unreachable
    #[arg(long, value_name = "DURATION", default_value = "40s")]
    node_monitor_grace_period: GoDuration,
    /// How long a new node may take to report for the first time
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    node_startup_grace_period: GoDuration,
    /// How long a Node object must be missing before its pods are deleted
    #[arg(long, value_name = "DURATION", default_value = "40s")]
    node_missing_grace_period: GoDuration,
    /// Decisions applied at the same time
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().parallel)]
    concurrent_syncs: usize,
}

impl Args {
    fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            scheduler_name: self.scheduler_name.clone(),
            silence: self.node_monitor_grace_period.into(),
            startup: self.node_startup_grace_period.into(),
            quarantine: self.node_missing_grace_period.into(),
            parallel: workers("--concurrent-syncs", self.concurrent_syncs)?,
            node_lifecycle: self.node_lifecycle,
        })
    }

    pub async fn run(self) -> anyhow::Result<()> {
        let options = self.options()?;
        self.controller.run(100, LEASE, Vec::new(), |context| run(context, options)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Args {
        let all = std::iter::once(&"scheduler").chain(words);
        stowage_runtime::flags::try_parse_from(all.map(Into::into)).unwrap()
    }

    #[test]
    fn without_flags_the_options_are_the_defaults() {
        assert_eq!(parse(&[]).options().unwrap(), Options::default());
    }

    #[test]
    fn the_duties_for_nodes_can_be_left_to_another() {
        for (words, wanted) in [(&["--node-lifecycle=false"], false), (&["--node-lifecycle"], true)] {
            assert_eq!(parse(words).options().unwrap().node_lifecycle, wanted, "{words:?}");
        }
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        let error = parse(&["--concurrent-syncs=0"]).options().unwrap_err();
        assert!(error.to_string().contains("--concurrent-syncs 0"), "{error}");
    }

    #[test]
    fn the_flags_of_the_originals_parse() {
        let args =
            parse(&["--leader-elect=false", "-scheduler-name=mine", "--node-monitor-grace-period", "5s", "-v=2"]);
        assert!(args.controller.election.options(LEASE).unwrap().is_none());
        let options = args.options().unwrap();
        assert_eq!((options.scheduler_name.as_str(), options.silence.as_secs()), ("mine", 5));
    }
}
