//! `stowage explain`: why a claim, pod, volume or snapshot is not where it should be, from the objects of any cluster alone.
//!
//! `gather` reads them, `diagnose` is a plain function over what was read, `show` prints its report. Nothing is written.

mod clock;
mod diagnose;
mod gather;
mod gathered;
mod report;
mod show;
mod told;

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use stowage_model::object::Key;
use stowage_runtime::api::Api;
use stowage_runtime::args::ClientArgs;

use crate::args::Explain;

pub use diagnose::diagnose;
pub use gather::gather;
pub use gathered::{Gathered, Seen, Unread, Wanted};
pub use report::{Cause, Leader, Mark, Report, State, Step, Story, Who};
pub use show::{json, text};

/// Ends the command's help.
pub const HELP: &str = "Exit code: 0 when nothing is stuck, 2 when something is, 1 when it cannot be told.\nExamples:\n  \
                        stowage explain\n  stowage explain pvc data -n shop\n  stowage explain pod web-0 -o json";

/// Something is stuck: another code than that of a failure of this command.
const STUCK: u8 = 2;

/// What kind of object is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    #[value(name = "pvc", aliases = ["pvcs", "claim", "persistentvolumeclaim", "persistentvolumeclaims"])]
    Claim,
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
    #[value(name = "pv", aliases = ["pvs", "persistentvolume", "persistentvolumes"])]
    Volume,
    #[value(name = "volumesnapshot", aliases = ["volumesnapshots", "vs", "snapshot"])]
    Snapshot,
}

/// How the report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Reads, thinks and prints.
pub async fn run(options: Explain) -> anyhow::Result<ExitCode> {
    stowage_runtime::log::init(&options.log)?;
    let api = Api::new(client_of(&options).client(10).await?);
    let wanted = wanted(&options, api.client().default_namespace())?;
    let gathered = gather(&api, wanted).await?;
    let report = diagnose(&gathered, clock::now(&api).await);
    match options.output {
        Output::Json => println!("{:#}", json(&report)),
        Output::Text => {
            let is_plain = !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some();
            print!("{}", text(&report, !is_plain));
        }
    }
    Ok(if report.is_stuck() { ExitCode::from(STUCK) } else { ExitCode::SUCCESS })
}

fn client_of(options: &Explain) -> ClientArgs {
    let is_named = std::env::var_os("KUBECONFIG").is_some_and(|file| !file.is_empty());
    let kubeconfig = kubeconfig(options.kubeconfig.as_deref(), is_named, &options.root);
    ClientArgs { kubeconfig, ..ClientArgs::default() }
}

/// Whoever names none on a machine with a stack means that stack.
fn kubeconfig(given: Option<&str>, environment_names_one: bool, root: &Path) -> Option<String> {
    let of_stack = root.join("kubeconfig");
    match given {
        Some(file) => Some(file.to_owned()),
        None if environment_names_one || !of_stack.is_file() => None,
        None => Some(of_stack.to_string_lossy().into_owned()),
    }
}

fn wanted(options: &Explain, namespace_of_context: &str) -> anyhow::Result<Wanted> {
    let (Some(subject), Some(name)) = (options.kind, &options.name) else {
        return Ok(Wanted::All { namespace: options.namespace.clone() });
    };
    if name.is_empty() {
        bail!("NAME is empty; `kubectl get pvc,pods,volumesnapshots -A` lists what there is");
    }
    let namespace = options.namespace.as_deref().unwrap_or(namespace_of_context);
    let key = Key::namespaced(namespace, name.as_str());
    Ok(match subject {
        Subject::Claim => Wanted::Claim(key),
        Subject::Pod => Wanted::Pod(key),
        Subject::Snapshot => Wanted::Snapshot(key),
        Subject::Volume if options.namespace.is_some() => {
            bail!("--namespace {namespace} does not go with pv: PersistentVolumes have no namespace; leave it out")
        }
        Subject::Volume => Wanted::Volume(Key::cluster(name.as_str())),
    })
}

#[cfg(test)]
mod tests;
