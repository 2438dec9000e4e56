//! Argument structs to flatten into a service's own, with the originals' flag names and defaults.
//!
//! Parse them with [`crate::flags::parse`]. `--version` is clap's own: `#[command(version)]`.

use anyhow::bail;
use clap::ValueEnum;

use crate::admin::{Admin, Bound};
use crate::duration::GoDuration;
use crate::flags::go_bool;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Logging flags of Kubernetes components.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Verbosity: up to 3 informs, 4 debugs, 5 shows each call of the CSI too, above that traces; RUST_LOG overrides it
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0, allow_negative_numbers = true)]
    pub verbosity: i32,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t)]
    pub logging_format: LogFormat,
    /// Accepted for compatibility: lines are never held back
    #[arg(long, value_name = "DURATION", hide = true)]
    pub log_flush_frequency: Option<GoDuration>,
    /// Accepted for compatibility: use RUST_LOG=module=level
    #[arg(long, hide = true)]
    pub vmodule: Option<String>,
    /// Accepted for compatibility: logs always go to stderr
    #[arg(long, hide = true)]
    pub logtostderr: bool,
    /// Accepted for compatibility: logs always go to stderr
    #[arg(long, hide = true)]
    pub log_text_split_stream: bool,
    /// Accepted for compatibility: lines are never held back
    #[arg(long, value_name = "BYTES", default_value = "0", hide = true)]
    pub log_text_info_buffer_size: String,
    /// Accepted for compatibility: logs always go to stderr
    #[arg(long, hide = true)]
    pub log_json_split_stream: bool,
    /// Accepted for compatibility: lines are never held back
    #[arg(long, value_name = "BYTES", default_value = "0", hide = true)]
    pub log_json_info_buffer_size: String,
}

/// The original's default of `--log-flush-frequency`.
const FLUSH_FREQUENCY: GoDuration = GoDuration(std::time::Duration::from_secs(5));

impl LogArgs {
    /// What was asked for in vain, one sentence each.
    pub fn ignored(&self) -> Vec<String> {
        const UNDIVIDED: &str = "all lines go to stderr";
        const AT_ONCE: &str = "lines are never held back";
        let holds = |size: &str| !["", "0"].contains(&size);
        let flags = [
            (self.log_flush_frequency.is_some_and(|set| set != FLUSH_FREQUENCY), "--log-flush-frequency", AT_ONCE),
            (
                self.vmodule.as_deref().is_some_and(|set| !set.is_empty()),
                "--vmodule",
                "set the environment variable RUST_LOG to module=level",
            ),
            (self.log_text_split_stream, "--log-text-split-stream", UNDIVIDED),
            (holds(&self.log_text_info_buffer_size), "--log-text-info-buffer-size", AT_ONCE),
            (self.log_json_split_stream, "--log-json-split-stream", UNDIVIDED),
            (holds(&self.log_json_info_buffer_size), "--log-json-info-buffer-size", AT_ONCE),
        ];
        let set = flags.into_iter().filter(|(set, _, _)| *set);
        set.map(|(_, flag, why)| format!("{flag} has no effect: {why}")).collect()
    }
}

/// Where the admin HTTP server listens.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Metrics and health")]
pub struct AdminArgs {
    /// Address for /healthz, /readyz, /metrics and /healthz/leader-election, such as :8080; empty is off
    #[arg(long, value_name = "ADDRESS")]
    pub http_endpoint: Option<String>,
    /// Deprecated: use --http-endpoint
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_address: Option<String>,
    /// Path of the metrics
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    pub metrics_path: String,
}

impl AdminArgs {
    /// The address to listen on, if any.
    pub fn address(&self) -> anyhow::Result<Option<&str>> {
        let set = |flag: &'static str, address: &Option<String>| match address.as_deref() {
            None | Some("") => None,
            Some(_) => Some(flag),
        };
        let endpoint = set("--http-endpoint", &self.http_endpoint);
        let metrics = set("--metrics-address", &self.metrics_address);
        if !self.metrics_path.starts_with('/') {
            bail!("--metrics-path {:?} must begin with a slash, for example /metrics", self.metrics_path);
        }
        match (endpoint, metrics) {
            (Some(_), Some(_)) => {
                bail!("--http-endpoint and --metrics-address are both set, keep only --http-endpoint")
            }
            (Some(_), None) => Ok(self.http_endpoint.as_deref()),
            (None, Some(_)) => Ok(self.metrics_address.as_deref()),
            (None, None) => Ok(None),
        }
    }

    /// What the originals mean to drop, one sentence each.
    pub fn deprecated(&self) -> Option<&'static str> {
        let is_set = self.metrics_address.as_deref().is_some_and(|address| !address.is_empty());
        is_set.then_some("--metrics-address is deprecated: use --http-endpoint")
    }

    /// Lets an admin server listen where the flags say, if anywhere.
    pub async fn bind(&self, admin: Admin) -> anyhow::Result<Option<Bound>> {
        match self.address()? {
            Some(address) => Ok(Some(admin.metrics_path(self.metrics_path.clone()).bind(address).await?)),
            None => Ok(None),
        }
    }
}

/// Where the driver is.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Driver")]
pub struct CsiArgs {
    /// Socket of the CSI driver: a path, unix:///PATH, or tcp://HOST:PORT
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    pub csi_address: String,
    /// Time limit of one driver call; each service documents its default
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<GoDuration>,
}

impl CsiArgs {
    /// The time limit of one call, or the original's default where the user gave none.
    pub fn timeout_or(&self, default: std::time::Duration) -> std::time::Duration {
        self.timeout.map_or(default, Into::into)
    }
}

/// Said of `--automaxprocs` where it is set.
pub const AUTOMAXPROCS: &str = "--automaxprocs has no effect: threads follow the container's quota without it";

/// Gates that stand for all others of their age, and that every component knows.
pub const ALL_ALPHA: &str = "AllAlpha";
/// As [`ALL_ALPHA`].
pub const ALL_BETA: &str = "AllBeta";

/// Feature gates and flags of the Go runtime that have no meaning here.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FeatureArgs {
    /// Features to switch, as NAME=true or NAME=false separated by commas; unknown names are ignored
    #[arg(long, value_name = "GATES", value_parser = Gates::parse)]
    feature_gates: Vec<Gates>,
    /// Accepted for compatibility: threads follow the container's quota without it
    #[arg(long, hide = true)]
    pub automaxprocs: bool,
}

/// What one `--feature-gates` switches: nothing at all, where a template had no value for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gates(Vec<(String, bool)>);

impl Gates {
    /// As Go's `MapStringBool`, which skips empty parts and reads the rest with `strconv.ParseBool`.
    fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(parse_gate).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_gate(part: &str) -> Result<(String, bool), String> {
    let halves = part.split_once('=').map(|(name, on)| (name.trim(), go_bool(on.trim())));
    match halves {
        Some((name, Some(on))) if !name.is_empty() => Ok((name.to_owned(), on)),
        _ => Err(format!("{part:?}: write NAME=true or NAME=false")),
    }
}

impl FeatureArgs {
    /// These gates as if they were given, for tests.
    pub fn of(gates: &[(&str, bool)]) -> Self {
        let gates = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        Self { feature_gates: vec![Gates(gates)], ..Self::default() }
    }

    /// The gates that were switched, in their order, each with its setting.
    pub fn gates(&self) -> impl DoubleEndedIterator<Item = (&str, bool)> {
        self.feature_gates.iter().flat_map(|gates| &gates.0).map(|(name, on)| (name.as_str(), *on))
    }

    /// Whether a feature is on; the last setting wins.
    pub fn enabled(&self, gate: &str, default: bool) -> bool {
        self.last(gate).unwrap_or(default)
    }

    /// The same for a gate in beta, which `AllBeta` stands for unless it is named itself.
    pub fn beta_enabled(&self, gate: &str, default: bool) -> bool {
        self.last(gate).or_else(|| self.last(ALL_BETA)).unwrap_or(default)
    }

    /// The same for a gate in alpha, which `AllAlpha` stands for unless it is named itself.
    pub fn alpha_enabled(&self, gate: &str, default: bool) -> bool {
        self.last(gate).or_else(|| self.last(ALL_ALPHA)).unwrap_or(default)
    }

    /// What was asked for in vain, one sentence each, beside gates that nobody knows.
    pub fn ignored(&self) -> Option<&'static str> {
        self.automaxprocs.then_some(AUTOMAXPROCS)
    }

    fn last(&self, gate: &str) -> Option<bool> {
        self.gates().rev().find(|(name, _)| *name == gate).map(|(_, on)| on)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::try_parse_from;

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        log: LogArgs,
        #[command(flatten)]
        admin: AdminArgs,
        #[command(flatten)]
        features: FeatureArgs,
    }

    fn read(words: &[&str]) -> Args {
        let words = std::iter::once("service").chain(words.iter().copied());
        try_parse_from(words.map(Into::into)).unwrap()
    }

    #[test]
    fn flags_that_mean_nothing_here_say_so_and_their_defaults_do_not() {
        for (word, why) in [
            ("--vmodule=a=1", "--vmodule has no effect: set the environment variable RUST_LOG to module=level"),
            ("--log-flush-frequency=1s", "--log-flush-frequency has no effect: lines are never held back"),
            ("--log-text-split-stream", "--log-text-split-stream has no effect: all lines go to stderr"),
            ("--log-text-info-buffer-size=2Ki", "--log-text-info-buffer-size has no effect: lines are never held back"),
            ("--log-json-split-stream=true", "--log-json-split-stream has no effect: all lines go to stderr"),
            ("--log-json-info-buffer-size=512", "--log-json-info-buffer-size has no effect: lines are never held back"),
        ] {
            assert_eq!(read(&[word]).log.ignored(), [why], "{word}");
        }
        let defaults = read(&[
            "--vmodule=",
            "--log-flush-frequency=5s",
            "--log-text-split-stream=false",
            "--log-text-info-buffer-size=0",
            "--log-json-info-buffer-size=0",
            "--logtostderr",
            "--metrics-address=",
            "--automaxprocs=false",
        ]);
        assert!(defaults.log.ignored().is_empty());
        assert_eq!((defaults.admin.deprecated(), defaults.features.ignored()), (None, None));
        let says = "--automaxprocs has no effect: threads follow the container's quota without it";
        assert_eq!(read(&["--automaxprocs"]).features.ignored(), Some(says));
        let says = "--metrics-address is deprecated: use --http-endpoint";
        assert_eq!(read(&["--metrics-address=:8080"]).admin.deprecated(), Some(says));
    }

    #[test]
    fn a_gate_follows_those_of_its_age_unless_it_is_named_itself() {
        let features = |gates: &str| read(&[&format!("--feature-gates={gates}")]).features;
        assert!(features("AllAlpha=true").alpha_enabled("New", false));
        assert!(!features("AllAlpha=true,New=false").alpha_enabled("New", false));
        assert!(!features("AllBeta=true").alpha_enabled("New", false));
        assert!(!features("AllBeta=false").beta_enabled("Old", true));
        assert!(features("AllAlpha=false").beta_enabled("Old", true));
    }

    /// `--feature-gates=` from a chart without a value, a comma too many and `=1` ended the process.
    #[test]
    fn gates_are_read_as_go_reads_them() {
        let gates = |words: &[&str]| {
            let features = read(words).features;
            features.gates().map(|(name, on)| (name.to_owned(), on)).collect::<Vec<_>>()
        };
        let set = |name: &str, on: bool| (name.to_owned(), on);
        assert_eq!(gates(&["--feature-gates="]), []);
        assert_eq!(gates(&["--feature-gates", ""]), []);
        assert_eq!(gates(&["--feature-gates=,"]), []);
        assert_eq!(gates(&["--feature-gates=A=true,"]), [set("A", true)]);
        assert_eq!(gates(&["--feature-gates=,A=true,,B=false"]), [set("A", true), set("B", false)]);
        assert_eq!(gates(&["--feature-gates= A = true , B=false"]), [set("A", true), set("B", false)]);
        for on in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(gates(&[&format!("--feature-gates=A={on}")]), [set("A", true)]);
        }
        for off in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(gates(&[&format!("--feature-gates=A={off}")]), [set("A", false)]);
        }
        assert_eq!(gates(&["--feature-gates=A=1", "--feature-gates=B=0"]), [set("A", true), set("B", false)]);
        assert!(!read(&["--feature-gates=A=1", "--feature-gates=A=0"]).features.enabled("A", true));
        for wrong in ["A", "A=", "A=yes", "A=true,B", "=true"] {
            let words = ["service".to_owned(), format!("--feature-gates={wrong}")];
            let refused = try_parse_from::<Args>(words.map(Into::into)).unwrap_err().to_string();
            assert!(refused.contains("write NAME=true or NAME=false"), "{wrong}: {refused}");
        }
    }
}
