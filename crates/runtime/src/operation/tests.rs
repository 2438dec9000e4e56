use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::tasks::Tasks;

use super::*;

struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::try_from(self.0.elapsed()).unwrap()
    }

    fn boottime(&self) -> Duration {
        self.0.elapsed()
    }
}

fn failure() -> Failure {
    Failure { code: "Internal".into(), message: "no".into() }
}

async fn settle<F: Future>(tasks: &mut Tasks, until: F) -> F::Output {
    tokio::select! {
        biased;
        output = until => output,
        panicked = tasks.supervise() => unreachable!("{panicked}"),
    }
}

fn operations(tasks: &Tasks) -> (Operations<&'static str, u32>, Arc<AtomicUsize>) {
    let ends = Arc::new(AtomicUsize::new(0));
    let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(8) };
    let clock = Arc::new(Paused(tokio::time::Instant::now()));
    let counted = Arc::clone(&ends);
    let on_end = move |_: &&str| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (Operations::new(tasks.spawner(), clock, backoff, on_end), ends)
}

#[tokio::test(start_paused = true)]
async fn a_second_call_for_a_key_is_refused_while_one_runs() {
    let mut tasks = Tasks::new();
    let (operations, ends) = operations(&tasks);
    assert!(operations.start("a", async { Ended::Done(7) }));
    assert!(!operations.start("a", async { Ended::Done(8) }));
    settle(&mut tasks, tokio::time::sleep(Duration::from_millis(1))).await;
    assert_eq!(operations.record(&"a").unwrap().state, State::Done(7));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_and_success_forgets_them() {
    let mut tasks = Tasks::new();
    let (operations, _) = operations(&tasks);
    let mut delays = Vec::new();
    for _ in 0..3 {
        operations.start("a", async { Ended::Uncertain(failure()) });
        settle(&mut tasks, tokio::time::sleep(Duration::from_millis(1))).await;
        let record = operations.record(&"a").unwrap();
        assert_eq!(record.state, State::Uncertain(failure()));
        assert!(!record.may_start(record.since));
        delays.push((record.retry_at - record.since).total(jiff::Unit::Second).unwrap());
    }
    assert_eq!(delays, [1.0, 2.0, 4.0]);
    operations.start("a", async { Ended::Done(1) });
    settle(&mut tasks, tokio::time::sleep(Duration::from_millis(1))).await;
    assert_eq!(operations.record(&"a").unwrap().failures, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_owner_drops_the_call() {
    let mut tasks = Tasks::new();
    let (operations, ends) = operations(&tasks);
    operations.start("a", async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ended::Done(1)
    });
    settle(&mut tasks, tokio::time::sleep(Duration::from_secs(1))).await;
    drop(tasks);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(ends.load(Ordering::Relaxed), 0);
    assert_eq!(operations.record(&"a").unwrap().state, State::Running);
}
