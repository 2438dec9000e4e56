//! Tells the story: a live line on a terminal, plain lines in a pipe.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::timeline::millis;

/// Where the story goes.
pub struct Show {
    start: Instant,
    bar: Option<ProgressBar>,
}

impl Show {
    /// Begins the story.
    pub fn new(start: Instant) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            let style =
                ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            bar.set_style(style);
            bar.enable_steady_tick(Duration::from_millis(80));
            bar
        });
        Self { start, bar }
    }

    /// Something happened.
    pub fn say(&self, text: impl AsRef<str>) {
        self.say_at(Instant::now(), text);
    }

    /// Something happened at that moment.
    pub fn say_at(&self, at: Instant, text: impl AsRef<str>) {
        let line = format!("{:>9.1} ms  {}", millis(at.saturating_duration_since(self.start)), text.as_ref());
        match &self.bar {
            Some(bar) => bar.println(line),
            None => println!("{line}"),
        }
    }

    /// Something is being waited for; shown only while it lasts.
    pub fn wait(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    /// The story is over.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
