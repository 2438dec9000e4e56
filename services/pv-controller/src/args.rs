use std::path::Path;

use anyhow::Context as _;
use clap::{ArgAction, Parser};
use serde_json::Value;

use stowage_runtime::args::{ControllerArgs, FeatureArgs, workers};
use stowage_runtime::duration::GoDuration;

use crate::controllers::Controllers;
use crate::options::{Eraser, Options, Recipe, Recycling};
use crate::run;

const UNUSED_SINCE: &str = "PersistentVolumeClaimUnusedSinceTime";

/// kube-controller-manager's gate; its own is off. We give the Lease back only when nothing is under way, so ours is on.
const RELEASE_ON_EXIT: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";

/// Binds claims to volumes, asks for provisioning, reclaims volumes and protects what is in use
///
/// Stands in for the volume controllers of kube-controller-manager, attaching apart: switch those off there, or run this
/// where there is none.
#[derive(Debug, Parser)]
#[command(name = "pv-controller", version)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    features: FeatureArgs,
    /// Controllers to run: * for all, NAME for one, -NAME for all but one
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Make volumes for claims that name a class and fit none
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    enable_dynamic_provisioning: bool,
    /// Make hostPath volumes of this machine, for tests only
    #[arg(long, action = ArgAction::Set, default_value_t = false, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    enable_hostpath_provisioner: bool,
    /// Decide on everything again this often; unlike the original's 15s, never unless this is set
    #[arg(long, value_name = "DURATION")]
    pvclaimbinder_sync_period: Option<GoDuration>,
    /// Decisions applied at the same time
    #[arg(long, default_value_t = Options::default().parallel, value_name = "COUNT")]
    concurrent_syncs: usize,
    /// Claims for pods made at the same time; unlike the original's 5, only --concurrent-syncs limits them unless set
    #[arg(long, value_name = "COUNT")]
    concurrent_ephemeralvolume_syncs: Option<usize>,
    /// Delete claims made for pods that are gone, where no garbage collector does
    #[arg(long, action = ArgAction::Set, default_value_t = false, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    collect_ephemeral_claims: bool,
    /// Say in a condition why a claim cannot be bound
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    unbound_condition: bool,
    #[command(flatten)]
    recycler: RecyclerArgs,
    /// Accepted for compatibility: there are no FlexVolumes here
    #[arg(long, value_name = "DIR", hide = true)]
    flex_volume_plugin_dir: Option<String>,
    /// Accepted for compatibility: caches need no resync
    #[arg(long, value_name = "DURATION", hide = true)]
    min_resync_period: Option<GoDuration>,
}

/// How volumes with the policy Recycle are erased.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recycling")]
struct RecyclerArgs {
    /// Who erases volumes: a pod, or this process (hostPath of this machine, NFS that it can mount)
    #[arg(long, value_enum, default_value_t)]
    pv_recycler: Eraser,
    /// Least seconds an NFS recycler pod gets
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pv_recycler_minimum_timeout_nfs: u64,
    /// Seconds per Gi an NFS recycler pod gets
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pv_recycler_increment_timeout_nfs: u64,
    /// Least seconds a hostPath recycler pod gets
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pv_recycler_minimum_timeout_hostpath: u64,
    /// Seconds per Gi a hostPath recycler pod gets
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pv_recycler_timeout_increment_hostpath: u64,
    /// File with a pod to use for NFS in place of the built-in one
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_nfs: Option<String>,
    /// File with a pod to use for hostPath in place of the built-in one
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_hostpath: Option<String>,
}

impl RecyclerArgs {
    fn recycling(&self) -> anyhow::Result<Recycling> {
        Ok(Recycling {
            eraser: self.pv_recycler,
            nfs: Recipe {
                minimum_seconds: self.pv_recycler_minimum_timeout_nfs,
                seconds_per_gi: self.pv_recycler_increment_timeout_nfs,
                template: template(self.pv_recycler_pod_template_filepath_nfs.as_deref())?,
            },
            host_path: Recipe {
                minimum_seconds: self.pv_recycler_minimum_timeout_hostpath,
                seconds_per_gi: self.pv_recycler_timeout_increment_hostpath,
                template: template(self.pv_recycler_pod_template_filepath_hostpath.as_deref())?,
            },
        })
    }
}

/// YAML, of which JSON is a part.
fn template(file: Option<&str>) -> anyhow::Result<Option<Value>> {
    let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
    let text =
        std::fs::read_to_string(Path::new(file)).with_context(|| format!("cannot read the pod template {file}"))?;
    // As the original reads it: of members given twice the last counts.
    let reading = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    let pod: Value = serde_saphyr::from_str_with_options(&text, reading)
        .with_context(|| format!("cannot read the pod template {file}"))?;
    let has_volume = pod["spec"]["volumes"].as_array().is_some_and(|volumes| !volumes.is_empty());
    anyhow::ensure!(has_volume, "the pod template {file} has no volume to put the one to be erased in");
    for member in ["/metadata", "/metadata/annotations", "/spec/volumes/0"] {
        let is_map = pod.pointer(member).is_none_or(|found| found.is_object() || found.is_null());
        anyhow::ensure!(is_map, "the pod template {file} has a {member} that is no map: name its fields one by one");
    }
    Ok(Some(pod))
}

impl Args {
    /// The options the flags say.
    pub fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            provisioning: self.enable_dynamic_provisioning,
            parallel: workers("--concurrent-syncs", self.concurrent_syncs)?,
            controllers: Controllers::parse(self.controllers.iter().map(String::as_str))?,
            host_path_provisioner: self.enable_hostpath_provisioner,
            unused_condition: self.features.beta_enabled(UNUSED_SINCE, true),
            unbound_condition: self.unbound_condition,
            collect: self.collect_ephemeral_claims,
            ephemeral_parallel: self.concurrent_ephemeralvolume_syncs,
            sync_period: self.pvclaimbinder_sync_period.map(Into::into),
            recycling: self.recycler.recycling()?,
        })
    }

    /// What was said and means nothing here.
    fn without_effect(&self) -> Vec<(String, &'static str)> {
        let flex =
            self.flex_volume_plugin_dir.as_ref().map(|_| ("--flex-volume-plugin-dir", "there are no FlexVolumes here"));
        let resync = self.min_resync_period.as_ref().map(|_| ("--min-resync-period", "caches need no resync"));
        let flags = flex.into_iter().chain(resync).map(|(flag, why)| (flag.to_owned(), why));
        let gates = self.features.gates().map(|(gate, _)| gate);
        let unknown = gates.filter(|gate| !["AllAlpha", "AllBeta", UNUSED_SINCE, RELEASE_ON_EXIT].contains(gate));
        flags.chain(unknown.map(|gate| (format!("--feature-gates {gate}"), "no such gate here"))).collect()
    }

    pub async fn run(self) -> anyhow::Result<()> {
        let launch = self.controller.launch(30);
        let mut election = self.controller.election.options("pv-controller")?;
        if let Some(election) = &mut election {
            election.release_on_exit &= self.features.alpha_enabled(RELEASE_ON_EXIT, true);
        }
        let options = self.options()?;
        // Before it nothing is logged.
        let context = launch.context().await?;
        for (flag, why) in self.without_effect() {
            tracing::warn!(flag, why, "has no effect");
        }
        launch.run(context, election, |context| run(context, options)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        let words = ["pv-controller"].into_iter().chain(line.split_whitespace());
        Args::try_parse_from(words).unwrap().options().unwrap()
    }

    #[test]
    fn the_originals_flags_are_taken() {
        let options = options(
            "--controllers=*,-pvc-protection --enable-hostpath-provisioner --pvclaimbinder-sync-period=15s \
             --enable-dynamic-provisioning=false --flex-volume-plugin-dir=/x --concurrent-ephemeralvolume-syncs=5 \
             --pv-recycler-minimum-timeout-nfs=1 --pv-recycler-increment-timeout-nfs=2 \
             --pv-recycler-minimum-timeout-hostpath=3 --pv-recycler-timeout-increment-hostpath=4 \
             --feature-gates=PersistentVolumeClaimUnusedSinceTime=false --min-resync-period=12h",
        );
        assert!(!options.controllers.claim_protection && options.controllers.binder);
        assert!(options.host_path_provisioner && !options.provisioning && !options.unused_condition);
        assert_eq!(options.sync_period, Some(std::time::Duration::from_secs(15)));
        assert_eq!(options.ephemeral_parallel, Some(5));
        let (nfs, path) = (&options.recycling.nfs, &options.recycling.host_path);
        assert_eq!((nfs.minimum_seconds, nfs.seconds_per_gi), (1, 2));
        assert_eq!((path.minimum_seconds, path.seconds_per_gi), (3, 4));
    }

    #[test]
    fn what_means_nothing_here_is_named() {
        let named = |line: &str| {
            let words = ["pv-controller"].into_iter().chain(line.split_whitespace());
            Args::try_parse_from(words).unwrap().without_effect().into_iter().map(|(flag, _)| flag).collect::<Vec<_>>()
        };
        assert!(named("--controllers=* --feature-gates=AllBeta=true").is_empty());
        assert_eq!(named("--min-resync-period=12h"), ["--min-resync-period"]);
        assert_eq!(named("--flex-volume-plugin-dir=/x"), ["--flex-volume-plugin-dir"]);
        assert_eq!(named("--feature-gates=Typo=true"), ["--feature-gates Typo"]);
    }

    #[test]
    fn without_flags_everything_runs_and_nothing_is_collected() {
        let options = options("");
        assert_eq!(options.controllers, Controllers::ALL);
        assert!(!options.collect && options.provisioning && options.unused_condition);
        assert_eq!(options.recycling, Recycling::default());
    }

    #[test]
    fn a_template_that_no_pod_can_be_made_of_is_refused() {
        for (template, complaint) in [
            ("spec: { containers: [] }", "no volume"),
            ("{ metadata: text, spec: { volumes: [{ name: vol }] } }", "a /metadata that is no map"),
            ("{ metadata: { annotations: [] }, spec: { volumes: [{}] } }", "a /metadata/annotations that is no map"),
            ("spec: { volumes: [vol] }", "a /spec/volumes/0 that is no map"),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), template).unwrap();
            let line = format!("--pv-recycler-pod-template-filepath-nfs={}", file.path().display());
            let args = Args::try_parse_from(["pv-controller", &line]).unwrap();
            let refusal = args.options().unwrap_err().to_string();
            assert!(refusal.contains(complaint), "{refusal}");
        }
    }
}
