//! Signals that are passed on to a command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// What this process is told from now on, instead of being ended by it.
pub struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub fn listen() -> io::Result<Self> {
        let listen = |told: Signal| Ok((told, signal(SignalKind::from_raw(told as i32))?));
        PASSED_ON.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let told = self.0.iter_mut().find_map(|(told, stream)| match stream.poll_recv(context) {
                Poll::Ready(Some(())) => Some(*told),
                Poll::Ready(None) | Poll::Pending => None,
            });
            told.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether the command has the signal already: a terminal tells all that run in its foreground. Twice would be once too often,
/// for many programs end at the first and drop everything at the second.
pub fn is_told_to_all(told: Signal) -> bool {
    matches!(told, Signal::SIGINT | Signal::SIGQUIT)
        && std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| is_in_foreground(&stat))
}

/// By the process's group and that of its terminal's foreground (proc(5): fields 5 and 8).
fn is_in_foreground(stat: &str) -> bool {
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields.get(2).is_some_and(|group| fields.get(5) == Some(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_foreground_of_a_terminal_is_told_from_its_background_and_from_no_terminal() {
        assert!(is_in_foreground("7 (a b) c) S 1 42 40 34816 42 4194304"));
        assert!(!is_in_foreground("7 (a b) c) S 1 42 40 34816 40 4194304"));
        assert!(!is_in_foreground("7 (stowage) S 1 42 40 0 -1 4194304"));
        assert!(!is_in_foreground(""));
    }

    #[tokio::test]
    async fn a_signal_is_told_once() {
        let mut signals = Signals::listen().unwrap();
        nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGUSR2).unwrap();
        assert_eq!(signals.next().await, Signal::SIGUSR2);
        let again = tokio::time::timeout(std::time::Duration::ZERO, signals.next()).await;
        assert!(again.is_err(), "{again:?}");
    }
}
