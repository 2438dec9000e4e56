//! Leader election flags, in the spelling of the sidecars and in that of kube-controller-manager.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context as _;
use clap::ArgAction;

use crate::args::FeatureArgs;
use crate::duration::GoDuration;
use crate::lease::{Options, Timing, sanitize};

/// The sidecars' gate; theirs is off. We stop calling and writing before we give a Lease back, so ours is on.
pub const RELEASE_ON_EXIT: &str = "ReleaseLeaderElectionOnExit";

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Leader election flags of the CSI sidecars.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaderElectionArgs {
    /// Work only while holding a Lease, so that several replicas can run
    #[arg(long, alias = "enable-leader-election")]
    pub leader_election: bool,
    /// Namespace of the Lease; without it $POD_NAMESPACE, the pod's own namespace, else "default"
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// How long others wait after the last renewal they saw before they take the Lease
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub leader_election_lease_duration: GoDuration,
    /// How long a leader goes on without a renewal before it stops leading
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub leader_election_renew_deadline: GoDuration,
    /// Time between renewals
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub leader_election_retry_period: GoDuration,
    /// Labels of the Lease, as key:value separated by commas
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub leader_election_labels: Vec<Label>,
    /// Name of this replica in the Lease; without it the pod's host name, outside of a cluster with the process id
    #[arg(long, value_name = "NAME")]
    pub leader_election_identity: Option<String>,
}

impl LeaderElectionArgs {
    /// The election to take part in, or none if it is off; `lock` is the Lease's name before sanitising.
    pub fn options(&self, lock: &str, features: &FeatureArgs) -> anyhow::Result<Option<Options>> {
        if !self.leader_election {
            return Ok(None);
        }
        let timing = Timing::new(
            self.leader_election_lease_duration.into(),
            self.leader_election_renew_deadline.into(),
            self.leader_election_retry_period.into(),
        )
        .context("cannot use the --leader-election-* durations")?;
        Ok(Some(Options {
            namespace: self.namespace(),
            name: sanitize(lock),
            identity: self.identity()?,
            timing,
            labels: self.leader_election_labels.iter().map(|l| (l.key.clone(), l.value.clone())).collect(),
            release_on_exit: features.alpha_enabled(RELEASE_ON_EXIT, true),
        }))
    }

    /// The namespace of the Lease, which also serves without an election.
    pub fn namespace(&self) -> String {
        match self.leader_election_namespace.as_deref() {
            None | Some("") => own_namespace(),
            Some(namespace) => namespace.to_owned(),
        }
    }

    /// The name of this replica, which also serves without an election.
    pub fn identity(&self) -> anyhow::Result<String> {
        identity(self.leader_election_identity.as_deref())
    }
}

/// Leader election flags of kube-controller-manager.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaderElectArgs {
    /// Work only while holding a Lease, so that several replicas can run
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    pub leader_elect: bool,
    /// How long others wait after the last renewal they saw before they take the Lease
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub leader_elect_lease_duration: GoDuration,
    /// How long a leader goes on without a renewal before it stops leading
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub leader_elect_renew_deadline: GoDuration,
    /// Time between renewals
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub leader_elect_retry_period: GoDuration,
    /// Kind of the lock; only leases exist
    #[arg(long, value_name = "KIND", default_value = "leases", value_parser = ["leases"], hide = true)]
    pub leader_elect_resource_lock: String,
    /// Name of the Lease; without it the service's own name, so that a kube-controller-manager that runs the other
    /// controllers keeps its Lease
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// Give the Lease back when asked to stop, once nothing is under way, so that the next leader need not wait
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    pub leader_elect_release_on_exit: bool,
    /// Name of this replica in the Lease; without it the pod's host name, outside of a cluster with the process id
    #[arg(long, value_name = "NAME")]
    pub leader_elect_identity: Option<String>,
}

impl LeaderElectArgs {
    /// The election to take part in, or none if it is off; `service` names the Lease if the user does not.
    pub fn options(&self, service: &str) -> anyhow::Result<Option<Options>> {
        if !self.leader_elect {
            return Ok(None);
        }
        let timing = Timing::new(
            self.leader_elect_lease_duration.into(),
            self.leader_elect_renew_deadline.into(),
            self.leader_elect_retry_period.into(),
        )
        .context("cannot use the --leader-elect-* durations")?;
        Ok(Some(Options {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone().unwrap_or_else(|| service.to_owned()),
            identity: identity(self.leader_elect_identity.as_deref())?,
            timing,
            labels: BTreeMap::new(),
            release_on_exit: self.leader_elect_release_on_exit,
        }))
    }
}

/// One label of a Lease, read from `key:value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The label's key.
    pub key: String,
    /// The label's value, possibly empty.
    pub value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split(':').map(str::trim).collect::<Vec<_>>()[..] {
            [key, value] if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            _ => Err("write key:value, with one colon".to_owned()),
        }
    }
}

fn own_namespace() -> String {
    let from_file = || std::fs::read_to_string(NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    std::env::var("POD_NAMESPACE")
        .ok()
        .filter(|namespace| !namespace.is_empty())
        .or_else(from_file)
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or_else(|| "default".to_owned())
}

/// A pod's host name is its own, so a restarted container finds its Lease; on a plain machine two processes share
/// the host name and would both take themselves for the holder.
fn identity(given: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = given.filter(|name| !name.is_empty()) {
        return Ok(sanitize(name));
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("cannot read the host name, pass --leader-election-identity NAME")?;
    let host = host.trim();
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Ok(sanitize(host))
    } else {
        Ok(sanitize(&format!("{host}-{}", std::process::id())))
    }
}
