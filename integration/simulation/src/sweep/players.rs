//! Plays cases on all cores.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Real time without any case ending after which the ones that run will not end: a case takes about a second, on a busy
/// machine many.
const CIRCLING: Duration = Duration::from_secs(300);

/// Plays cases on all cores; one that goes round in circles without virtual time passing is a failure too.
pub(super) fn play_all<C>(
    cases: &[C],
    run: impl Fn(&C) -> Result<Duration, String> + Send + Sync + 'static,
) -> Vec<Result<Duration, String>>
where
    C: Clone + fmt::Display + Send + 'static,
{
    let (next, run) = (Arc::new(AtomicUsize::new(0)), Arc::new(run));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
        let (cases, next, run, sender) = (cases.to_vec(), Arc::clone(&next), Arc::clone(&run), sender.clone());
        // Not joined: nobody can stop a thread that goes round in circles.
        thread::spawn(move || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(index) else { return };
                let begin = Instant::now();
                let result = run(case);
                let (took, wrong) = (begin.elapsed(), result.as_ref().err().and_then(|wrong| wrong.lines().next()));
                tracing::info!(%case, ?took, wrong, "played");
                if sender.send((index, result)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut results = BTreeMap::new();
    while let Ok((index, result)) = receiver.recv_timeout(CIRCLING) {
        results.insert(index, result);
    }
    let circling = || Err(format!("still running after {CIRCLING:?}: somebody goes round in circles"));
    let begun = next.load(Ordering::Relaxed).min(cases.len());
    (0..cases.len())
        .map(|index| match results.remove(&index) {
            Some(result) => result,
            None if index < begun => circling(),
            None => Err("not played, because another case never ended".to_owned()),
        })
        .collect()
}
