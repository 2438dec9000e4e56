use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use stowage_runtime::args::{ControllerArgs, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::Options;
use crate::run;

/// Attaches the volumes of placed pods to their nodes, and detaches them when nobody needs them there
///
/// Stands in for kube-controller-manager's persistentvolume-attach-detach-controller: switch that off there, or run this
/// where there is none. CSI volumes only.
#[derive(Debug, Parser)]
#[command(name = "attach-detach-controller", version)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Look at every attached volume this often, at least 1s; unlike the original's 1m, only events count unless this is
    /// set
    #[arg(long, value_name = "DURATION")]
    attach_detach_reconcile_sync_period: Option<GoDuration>,
    /// Never look at attached volumes without an event, whatever the period says
    #[arg(long)]
    disable_attach_detach_reconcile_sync: bool,
    /// Never take a volume from a node that does not say it is unmounted, unless the node is deleted or has the taint
    /// node.kubernetes.io/out-of-service
    #[arg(long)]
    disable_force_detach_on_timeout: bool,
    /// How long a node must be not ready before a volume that it says is in use is taken from it; the original has no
    /// flag for its 6m
    #[arg(long, value_name = "DURATION", default_value = "6m")]
    max_wait_for_unmount_duration: GoDuration,
    /// Accepted for compatibility: FlexVolumes are not attached
    #[arg(long, value_name = "DIR", hide = true)]
    flex_volume_plugin_dir: Option<String>,
    /// Volumes worked on at the same time
    #[arg(long, default_value_t = Options::default().parallel, value_name = "COUNT")]
    concurrent_syncs: usize,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let options = self.options()?;
        let flex = self.flex_volume_plugin_dir.iter();
        let ignored = flex.map(|_| "--flex-volume-plugin-dir has no effect: FlexVolumes are not attached".to_owned());
        self.controller.run(30, "attach-detach-controller", ignored.collect(), |context| run(context, options)).await
    }

    fn options(&self) -> anyhow::Result<Options> {
        let period = self.attach_detach_reconcile_sync_period.map(Duration::from);
        let period = period.filter(|_| !self.disable_attach_detach_reconcile_sync);
        if let Some(period) = period
            && period < Duration::from_secs(1)
        {
            bail!(
                "--attach-detach-reconcile-sync-period {period:?} is below 1s; give at least 1s, or \
                 --disable-attach-detach-reconcile-sync"
            );
        }
        let max_unmount_wait = Duration::from(self.max_wait_for_unmount_duration);
        if max_unmount_wait.is_zero() && !self.disable_force_detach_on_timeout {
            bail!(
                "--max-wait-for-unmount-duration 0 would take volumes from every node that stumbles; give a duration, or \
                 --disable-force-detach-on-timeout"
            );
        }
        Ok(Options {
            max_unmount_wait,
            force_detach_on_timeout: !self.disable_force_detach_on_timeout,
            reconcile_sync_period: period,
            parallel: workers("--concurrent-syncs", self.concurrent_syncs)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(flags: &[&str]) -> anyhow::Result<Options> {
        let words = ["attach-detach-controller"].iter().chain(flags);
        Args::try_parse_from(words)?.options()
    }

    #[test]
    fn without_flags_only_events_count_and_force_detach_is_on() {
        let options = options(&[]).unwrap();
        assert_eq!((options.reconcile_sync_period, options.force_detach_on_timeout), (None, true));
        assert_eq!(options.max_unmount_wait, Duration::from_secs(360));
    }

    #[test]
    fn the_flags_of_kube_controller_manager_are_obeyed() {
        let set = options(&["--attach-detach-reconcile-sync-period=1m", "--disable-force-detach-on-timeout"]).unwrap();
        assert_eq!((set.reconcile_sync_period, set.force_detach_on_timeout), (Some(Duration::from_secs(60)), false));
        let off = ["--attach-detach-reconcile-sync-period=1m", "--disable-attach-detach-reconcile-sync"];
        assert_eq!(options(&off).unwrap().reconcile_sync_period, None);
    }

    #[test]
    fn the_time_a_silent_node_has_is_obeyed_and_none_at_all_is_refused() {
        let set = options(&["--max-wait-for-unmount-duration=90s"]).unwrap();
        assert_eq!(set.max_unmount_wait, Duration::from_secs(90));
        let error = options(&["--max-wait-for-unmount-duration=0"]).unwrap_err().to_string();
        assert!(error.contains("--disable-force-detach-on-timeout"), "{error}");
        assert!(options(&["--max-wait-for-unmount-duration=0s", "--disable-force-detach-on-timeout"]).is_ok());
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        assert!(options(&["--concurrent-syncs=0"]).unwrap_err().to_string().contains("at least 1"));
    }

    #[test]
    fn a_period_below_a_second_is_refused_with_the_way_out() {
        let error = options(&["--attach-detach-reconcile-sync-period=10ms"]).unwrap_err().to_string();
        assert!(error.contains("10ms is below 1s") && error.contains("--disable-attach"), "{error}");
    }
}
