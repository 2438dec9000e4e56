//! The two formats in which Prometheus reads numbers.

use std::fmt::Write as _;

/// A text format of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Version 0.0.4, what the originals answer with and every reader knows.
    Text,
    /// OpenMetrics 1.0.0, for who asks for it.
    OpenMetrics,
}

impl Format {
    /// What these values of `Accept` ask for.
    pub fn accepted<'a>(mut values: impl Iterator<Item = &'a str>) -> Self {
        if values.any(|value| value.contains("application/openmetrics-text")) { Self::OpenMetrics } else { Self::Text }
    }

    /// What the answer's header says.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What was written as OpenMetrics, in this format. The older one names a counter as its samples are, knows fewer
    /// types and no units, and has no last line.
    pub(super) fn of(self, open: String) -> String {
        if self == Self::OpenMetrics {
            return open;
        }
        let mut text = String::with_capacity(open.len());
        let mut help = None;
        for line in open.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some("HELP"), Some(name), said) => help = Some((name, said.unwrap_or_default())),
                (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                    let (suffix, kind) = match kind {
                        "counter" => ("_total", kind),
                        "info" => ("_info", "gauge"),
                        "unknown" => ("", "untyped"),
                        _ => ("", kind),
                    };
                    if let Some((_, said)) = help.take().filter(|(about, _)| *about == name) {
                        _ = writeln!(text, "# HELP {name}{suffix} {said}");
                    }
                    _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
                }
                (Some("#"), Some("UNIT" | "EOF"), ..) => {}
                _ => _ = writeln!(text, "{line}"),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "# HELP decisions Decisions taken.\n# TYPE decisions counter\ndecisions_total{service=\"a b\"} 3\n\
        # HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n# UNIT wait_seconds seconds\n\
        wait_seconds_sum 1.5\nwait_seconds_count 1\nwait_seconds_bucket{le=\"+Inf\"} 1\n# EOF\n";

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let text = "# HELP decisions_total Decisions taken.\n# TYPE decisions_total counter\n\
            decisions_total{service=\"a b\"} 3\n# HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n\
            wait_seconds_sum 1.5\nwait_seconds_count 1\nwait_seconds_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(Format::Text.of(OPEN.to_owned()), text);
        assert_eq!(Format::OpenMetrics.of(OPEN.to_owned()), OPEN);
    }
}
