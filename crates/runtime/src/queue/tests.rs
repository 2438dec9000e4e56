use futures::FutureExt;

use super::*;

fn queue() -> Queue<&'static str> {
    Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(4) })
}

#[tokio::test(start_paused = true)]
async fn a_key_added_twice_is_worked_on_once() {
    let queue = queue();
    queue.add("a");
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    queue.done(&"a");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_running_runs_again_after_it_is_done() {
    let queue = queue();
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    queue.add("a");
    assert!(queue.next().now_or_never().is_none(), "two workers on one key");
    queue.done(&"a");
    assert_eq!(queue.next().await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_key_comes_when_due_and_the_earlier_wish_stands() {
    let queue = queue();
    let start = Instant::now();
    queue.add_after("a", Duration::from_secs(5));
    queue.add_after("a", Duration::from_secs(2));
    queue.add_after("a", Duration::from_secs(9));
    assert_eq!(queue.next().await, "a");
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    queue.done(&"a");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_until_forgotten() {
    let queue = queue();
    let delays: Vec<u64> = (0..4).map(|_| queue.retry(&"a").as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 4]);
    queue.forget(&"a");
    assert_eq!(queue.retry(&"a").as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_begun_goes_before_what_is_new_but_not_for_ever() {
    let queue = queue();
    queue.add("begun");
    assert_eq!(queue.next().await, "begun");
    queue.add("new");
    for _ in 0..FAIRNESS {
        queue.go_on("begun");
        queue.done(&"begun");
        assert_eq!(queue.next().await, "begun");
    }
    queue.go_on("begun");
    queue.done(&"begun");
    assert_eq!(queue.next().await, "new");
    queue.done(&"new");
    assert_eq!(queue.next().await, "begun");
    queue.done(&"begun");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_waits_as_new_goes_first_once_it_is_known_to_be_begun() {
    let queue = queue();
    ["new", "newer", "begun"].into_iter().for_each(|key| queue.add(key));
    queue.go_on("begun");
    queue.go_on("begun");
    assert_eq!(queue.len(), 3);
    for key in ["begun", "new", "newer"] {
        assert_eq!(queue.next().await, key);
        queue.done(&key);
    }
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn it_is_quiet_when_nothing_is_ready_or_worked_on_whatever_is_delayed() {
    let queue = queue();
    queue.add_after("later", Duration::from_secs(60));
    queue.quiet().await;
    queue.add("a");
    let mut quiet = std::pin::pin!(queue.quiet());
    assert!(quiet.as_mut().now_or_never().is_none());
    assert_eq!(queue.next().await, "a");
    queue.add("a");
    queue.done(&"a");
    assert!(quiet.as_mut().now_or_never().is_none(), "it was added again");
    assert_eq!(queue.next().await, "a");
    queue.done(&"a");
    assert!(quiet.now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_reminded_runs_again_unless_it_failed() {
    let queue = queue();
    queue.remind("a");
    assert_eq!(queue.next().await, "a", "nobody works on it");
    queue.remind("a");
    queue.done(&"a");
    assert_eq!(queue.next().await, "a");
    queue.remind("a");
    let delay = queue.retry(&"a");
    queue.done(&"a");
    let begin = Instant::now();
    assert_eq!(queue.next().await, "a");
    assert_eq!(begin.elapsed(), delay);
    let delay = queue.retry(&"a");
    queue.done(&"a");
    queue.remind("a");
    let begin = Instant::now();
    assert_eq!(queue.next().await, "a");
    assert_eq!(begin.elapsed(), delay);
    queue.forget(&"a");
    queue.done(&"a");
    assert!(queue.is_empty() && queue.lock().keys.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_immediate_add_replaces_a_delayed_one() {
    let queue = queue();
    queue.add_after("a", Duration::from_secs(60));
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    queue.done(&"a");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_numbers_are_those_of_client_go() {
    let (metrics, queue) = (Metrics::default(), queue());
    queue.add("early");
    queue.measure(&metrics, String::new(), |key| if *key == "other" { "volumes" } else { "claims" });
    let line = |wanted: &str| {
        let text = metrics.encode();
        assert!(text.lines().any(|line| line == wanted), "no line {wanted:?} in\n{text}");
    };
    queue.add("early");
    queue.add("late");
    queue.add("other");
    line("workqueue_depth{name=\"claims\"} 2");
    line("workqueue_depth{name=\"volumes\"} 1");
    line("workqueue_adds_total{name=\"claims\"} 2");
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(queue.next().await, "early");
    queue.add("early");
    queue.add("early");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(queue.next().await, "late");
    tokio::time::advance(Duration::from_secs(1)).await;
    line("workqueue_adds_total{name=\"claims\"} 3");
    line("workqueue_depth{name=\"claims\"} 0");
    line("workqueue_queue_duration_seconds_sum{name=\"claims\"} 8.0");
    line("workqueue_unfinished_work_seconds{name=\"claims\"} 4.0");
    line("workqueue_longest_running_processor_seconds{name=\"claims\"} 3.0");
    queue.retry(&"late");
    queue.done(&"late");
    queue.done(&"early");
    line("workqueue_work_duration_seconds_sum{name=\"claims\"} 4.0");
    line("workqueue_work_duration_seconds_count{name=\"claims\"} 2");
    line("workqueue_retries_total{name=\"claims\"} 1");
    line("workqueue_depth{name=\"claims\"} 1");
    drop(queue);
    line("workqueue_depth{name=\"claims\"} 0");
    line("workqueue_unfinished_work_seconds{name=\"claims\"} 0.0");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_idle_until_its_hour_unless_it_failed() {
    let queue = queue();
    queue.add_after("later", Duration::from_secs(60));
    queue.retry(&"failed");
    assert!(queue.is_idle(&"later") && queue.is_idle(&"never heard of") && !queue.is_idle(&"failed"));
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(!queue.is_idle(&"later"), "nobody has taken it yet");
}

#[tokio::test(start_paused = true)]
async fn to_be_done_with_a_key_that_nobody_works_on_changes_nothing() {
    let queue = queue();
    queue.add("a");
    queue.done(&"a");
    queue.add("a");
    assert_eq!(queue.next().await, "a");
    assert!(queue.next().now_or_never().is_none(), "two workers on one key");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_keys_that_came_to_rest() {
    let queue: Queue<u64> = Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(4) });
    let mut dice = 7_u64;
    for _ in 0..20_000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (dice >> 33) % 5000;
        match (dice >> 20) % 7 {
            0 | 1 => queue.add(key),
            2 => queue.go_on(key),
            3 => queue.add_after(key, Duration::from_secs(dice % 100)),
            4 => _ = queue.retry(&key),
            _ => {
                if let Some(taken) = queue.next().now_or_never() {
                    queue.add_after(taken, Duration::from_secs(1));
                    queue.done(&taken);
                }
            }
        }
    }
    while !queue.is_empty() {
        let key = queue.next().await;
        queue.forget(&key);
        queue.done(&key);
    }
    let state = queue.lock();
    assert!(state.keys.is_empty() && state.keys.capacity() <= 4 * SPARE, "{}", state.keys.capacity());
    assert!(state.ready.is_empty() && state.begun.is_empty() && state.delayed.is_empty());
}
