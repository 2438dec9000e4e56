//! Log output: text for people or JSON for machines, always on stderr.
//!
//! What cannot be written there, because the disk behind it is full or its reader has gone, is counted and dropped: no
//! service ends, and no work fails, for want of a log.

use std::io::{self, IsTerminal};
use std::sync::LazyLock;

use anyhow::{Context as _, bail};
use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{LogArgs, LogFormat};

/// Libraries that are chatty below this level and rarely the reason to turn `-v` up.
const QUIET: &str = "hyper=info,hyper_util=info,h2=info,tower=info,rustls=info,kube_client=info,tonic=info";

/// It warns at each connection of a certificate that is not verified; whoever makes the client says so once.
const SAID_ONCE: &str = "kube_client::client::tls=error";

/// Lines that could not be written; of the process, as its standard error is.
static DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

/// The number of lines that could not be written.
pub(crate) fn dropped() -> Counter {
    DROPPED.clone()
}

/// Starts logging as the flags say; a second call in the same process changes nothing.
pub fn init(args: &LogArgs) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => filter(&said_once(&text)).with_context(|| {
            format!("cannot use RUST_LOG={text:?}, write for example info or provisioner=debug,info")
        })?,
        _ => filter(&directives(args.verbosity)).context("cannot make a log filter from -v")?,
    };
    start(filter, args.logging_format);
    Ok(())
}

/// A filter by module and level, such as `info` or `provisioner=debug,info`.
///
/// Not an `EnvFilter`: that one also looks into spans, for which it brings a regex engine into every binary.
pub fn filter(text: &str) -> anyhow::Result<Targets> {
    if text.contains('[') {
        bail!("a filter is made of modules and levels, it cannot name spans or fields");
    }
    let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    Ok(directives.collect::<Vec<_>>().join(",").parse()?)
}

/// Starts logging what a filter lets pass; a second call in the same process changes nothing.
pub fn start(filter: Targets, format: LogFormat) {
    // It would tell of lines that cannot be written where they cannot be written, and panic.
    let builder = tracing_subscriber::fmt().log_internal_errors(false).with_writer(Lines::default);
    let builder = builder.with_max_level(LevelFilter::TRACE);
    // An error means that a subscriber is there already: in-process assemblies start several services.
    let _already_started = match format {
        LogFormat::Text => builder.compact().with_ansi(is_coloured()).finish().with(filter).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(filter).try_init(),
    };
}

/// Colours are for people at a terminal who have not said that they want none (no-color.org).
fn is_coloured() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Standard error, as far as it can be written.
struct Lines<W = io::Stderr>(W);

impl Default for Lines {
    fn default() -> Self {
        Self(io::stderr())
    }
}

impl<W: io::Write> io::Write for Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.write_all(line).is_err() {
            DROPPED.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Standard error has no buffer.
        Ok(())
    }
}

/// klog's scale: up to 3 is for operators, 4 and 5 for debugging, 5 with every call of the CSI, above that everything.
fn directives(verbosity: i32) -> String {
    match verbosity {
        ..=3 => said_once("info"),
        // The originals write calls from 5 on.
        4 => said_once(&format!("debug,{QUIET},stowage_csi::calls=info")),
        5 => said_once(&format!("debug,{QUIET}")),
        6..=7 => said_once(&format!("trace,{QUIET}")),
        _ => said_once("trace"),
    }
}

/// Whoever names that module wants to hear it.
fn said_once(directives: &str) -> String {
    if directives.contains("kube_client::client") { directives.to_owned() } else { format!("{directives},{SAID_ONCE}") }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn every_verbosity_gives_a_filter_that_parses() {
        for (verbosity, level) in
            [(-1, "info"), (0, "info"), (3, "info"), (4, "debug"), (5, "debug"), (6, "trace"), (10, "trace")]
        {
            let directives = directives(verbosity);
            assert!(directives.starts_with(level), "-v={verbosity} gave {directives}");
            filter(&directives).unwrap();
        }
    }

    #[test]
    fn calls_are_logged_from_5_on_as_the_originals_do() {
        for (verbosity, passes) in [(3, false), (4, false), (5, true), (6, true), (10, true)] {
            let filter = filter(&directives(verbosity)).unwrap();
            assert_eq!(filter.would_enable("stowage_csi::calls", &tracing::Level::DEBUG), passes, "-v={verbosity}");
        }
    }

    #[test]
    fn a_filter_names_modules_and_levels_and_the_longest_name_wins() {
        use tracing::Level;

        let by_module = filter("provisioner=debug, info,kube_client::client::tls=error,").unwrap();
        for (module, level, passes) in [
            ("provisioner::apply", Level::DEBUG, true),
            ("provisioner::apply", Level::TRACE, false),
            ("attacher", Level::INFO, true),
            ("attacher", Level::DEBUG, false),
            ("kube_client::client", Level::INFO, true),
            ("kube_client::client::tls", Level::WARN, false),
        ] {
            assert_eq!(by_module.would_enable(module, &level), passes, "{module} at {level}");
        }
        assert!(filter("provisioner").unwrap().would_enable("provisioner", &Level::TRACE));
        assert!(!filter("provisioner=debug").unwrap().would_enable("attacher", &Level::ERROR));
        assert!(!filter("off").unwrap().would_enable("attacher", &Level::ERROR));
    }

    #[test]
    fn a_filter_that_cannot_be_obeyed_is_refused() {
        for text in ["provisioner=loud", "a=b=c", "[call]=debug", "attacher[{volume=v}]=debug"] {
            assert!(filter(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_dropped() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let before = DROPPED.get();
        Lines(full).write_all(b"a line\n").unwrap();
        assert_eq!(DROPPED.get(), before + 1);
    }

    #[test]
    fn starting_twice_is_harmless() {
        // Off, so that the other tests of this process stay quiet.
        start(Targets::new(), LogFormat::Text);
        start(Targets::new(), LogFormat::Json);
    }
}
