//! Log output: text for people or JSON for machines, always on stderr.

use std::io::IsTerminal;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::args::{LogArgs, LogFormat};

/// Libraries that are chatty below this level and rarely the reason to turn `-v` up.
const QUIET: &str = "hyper=info,hyper_util=info,h2=info,tower=info,rustls=info,kube_client=info,tonic=info";

/// Starts logging as the flags say; a second call in the same process changes nothing.
pub fn init(args: &LogArgs) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text).with_context(|| {
            format!("cannot use RUST_LOG={text:?}, write for example info or provisioner=debug,info")
        })?,
        _ => EnvFilter::try_new(directives(args.verbosity)).context("cannot make a log filter from -v")?,
    };
    start(filter, args.logging_format);
    Ok(())
}

fn start(filter: EnvFilter, format: LogFormat) {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a subscriber is there already: in-process assemblies start several services.
    let _already_started = match format {
        LogFormat::Text => builder.compact().with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// klog's scale: up to 3 is for operators, 4 and 5 for debugging, above that everything.
fn directives(verbosity: i32) -> String {
    match verbosity {
        ..=3 => "info".to_owned(),
        4..=5 => format!("debug,{QUIET}"),
        6..=7 => format!("trace,{QUIET}"),
        _ => "trace".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verbosity_gives_a_filter_that_parses() {
        for (verbosity, level) in [(-1, "info"), (0, "info"), (3, "info"), (5, "debug"), (6, "trace"), (10, "trace")] {
            let directives = directives(verbosity);
            assert!(directives.starts_with(level), "-v={verbosity} gave {directives}");
            EnvFilter::try_new(directives).unwrap();
        }
    }

    #[test]
    fn starting_twice_is_harmless() {
        // Off, so that the other tests of this process stay quiet.
        start(EnvFilter::new("off"), LogFormat::Text);
        start(EnvFilter::new("off"), LogFormat::Json);
    }
}
