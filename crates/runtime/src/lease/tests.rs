//! Elections for one Lease in memory, under paused time.

mod world;

use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::world::{Link, World};
use super::*;

const LEASE: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const LINKS: [Link; 6] = [Link::Up, Link::Up, Link::Cut, Link::Deaf, Link::DeafToWrites, Link::NoWatch];
const MINUTE: Duration = Duration::from_secs(60);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lets everybody run until only timers are left.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

/// Why the term ended; fails rather than hangs if it does not end.
async fn end_of(leadership: &Leadership) -> Lost {
    timeout(10 * MINUTE, leadership.lost()).await.expect("still leading after ten minutes")
}

#[tokio::test(start_paused = true)]
async fn an_absent_lease_is_created_without_waiting() {
    let world = World::new();
    let start = Instant::now();
    let leadership = world.candidate("a").acquire().await;
    assert!(leadership.valid());
    assert_eq!(start.elapsed(), Duration::ZERO);
    let lease = world.lease().unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "a");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    assert_eq!(lease["metadata"]["labels"], json!({"team": "storage"}));
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_with_one_request_each_time() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    world.forget_requests();
    sleep(MINUTE + seconds(1)).await;
    assert!(leadership.valid());
    assert_eq!(world.requests(), vec!["a PUT"; 12]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_costs_no_requests_while_the_leader_renews() {
    let world = World::new();
    let _leadership = world.candidate("a").acquire().await;
    world.forget_requests();
    timeout(MINUTE, world.candidate("b").acquire()).await.expect_err("a leads");
    let mut requests = world.requests();
    requests.retain(|request| request.starts_with('b'));
    assert_eq!(requests, ["b GET", "b WATCH"]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_takes_over_once_it_saw_no_renewal_for_the_lease_duration() {
    let world = World::new();
    let start = Instant::now();
    let first = world.candidate("a").acquire().await;
    let follower = world.candidate("b");
    let last_renewal = seconds(20);
    let (second, ()) = tokio::join!(follower.acquire(), async {
        sleep(last_renewal).await;
        settle().await;
        world.link("a", Link::Cut);
    });
    assert_eq!(start.elapsed().as_secs(), (last_renewal + LEASE).as_secs());
    assert_eq!(end_of(&first).await, Lost::Expired(DEADLINE));
    assert!(!first.valid() && second.valid());
    assert_eq!(world.lease().unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_leader_stops_at_the_renew_deadline_and_not_later() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    let start = Instant::now();
    world.link("a", Link::Cut);
    sleep(DEADLINE - seconds(1)).await;
    assert!(leadership.valid());
    assert_eq!(leadership.remaining(), seconds(1));
    assert_eq!(end_of(&leadership).await, Lost::Expired(DEADLINE));
    // Timers have a grain of a millisecond and retries one of fifty.
    assert!(start.elapsed() - DEADLINE <= Duration::from_millis(60), "{:?}", start.elapsed());
    assert!(!leadership.valid());
}

#[tokio::test(start_paused = true)]
async fn a_first_candidate_waits_out_a_dead_holder_by_its_own_clock() {
    let world = World::new();
    world.edit(|lease| {
        // Written long ago by its own time, which says nothing about ours.
        lease["spec"] = json!({"holderIdentity": "dead", "leaseDurationSeconds": 15,
                               "renewTime": "1999-01-01T00:00:00.000000Z", "leaseTransitions": 3});
    });
    let start = Instant::now();
    let _leadership = world.candidate("a").acquire().await;
    assert_eq!(start.elapsed().as_secs(), LEASE.as_secs());
    assert_eq!(world.lease().unwrap()["spec"]["leaseTransitions"], 4);
}

#[tokio::test(start_paused = true)]
async fn the_duration_the_holder_promised_counts_not_our_own() {
    let world = World::new();
    world.edit(|lease| lease["spec"] = json!({"holderIdentity": "dead", "leaseDurationSeconds": 40}));
    let start = Instant::now();
    let _leadership = world.candidate("a").acquire().await;
    assert_eq!(start.elapsed().as_secs(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    let world = World::new();
    let first = world.candidate_with("a", true, Metrics::default()).acquire().await;
    let follower = world.candidate("b");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { follower.acquire().await });
    sleep(seconds(7)).await;
    let released = Instant::now();
    let kept = first.clone();
    first.end().await.unwrap();
    assert!(!kept.valid());
    assert_eq!(end_of(&kept).await, Lost::Ended);
    let second = tasks.join_next().await.unwrap().unwrap();
    assert!(second.valid());
    assert_eq!(released.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_back_although_the_server_has_no_time_at_first() {
    let world = World::new();
    let leadership = world.candidate_with("a", true, Metrics::default()).acquire().await;
    world.link("a", Link::Throttled);
    let (ended, ()) = tokio::join!(leadership.end(), async {
        sleep(seconds(3)).await;
        world.link("a", Link::Up);
    });
    ended.unwrap();
    assert!(world.lease().unwrap()["spec"].get("holderIdentity").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_left_to_run_out_unless_release_is_asked_for() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    leadership.end().await.unwrap();
    assert_eq!(world.lease().unwrap()["spec"]["holderIdentity"], "a");
    world.forget_requests();
    sleep(MINUTE).await;
    assert_eq!(world.requests(), [""; 0], "an ended term must not be renewed");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_clone_ends_renewals() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    let clone = leadership.clone();
    drop(leadership);
    sleep(seconds(30)).await;
    assert!(clone.valid());
    drop(clone);
    world.forget_requests();
    sleep(MINUTE).await;
    assert_eq!(world.requests(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn time_spent_suspended_counts_although_no_timer_fired() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    sleep(seconds(6)).await;
    assert!(leadership.valid());
    world.suspend(seconds(3600));
    assert!(!leadership.valid(), "no driver call may start on a lease that ran out while suspended");
    assert_eq!(leadership.remaining(), Duration::ZERO);
    assert_eq!(end_of(&leadership).await, Lost::Expired(DEADLINE));
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_that_resumes_finds_itself_deposed() {
    let world = World::new();
    let first = world.candidate("a").acquire().await;
    // As after SIGSTOP: nothing of a's runs while b waits and takes over.
    world.link("a", Link::Cut);
    let second = world.candidate("b").acquire().await;
    world.link("a", Link::Up);
    assert!(!first.valid() && second.valid());
    sleep(MINUTE).await;
    assert!(!first.valid() && second.valid());
    assert_eq!(world.lease().unwrap()["spec"]["holderIdentity"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_does_not_cost_the_lease() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    sleep(seconds(4)).await;
    world.link("a", Link::Deaf);
    sleep(seconds(2)).await;
    world.link("a", Link::Up);
    for _ in 0..30 {
        sleep(seconds(1)).await;
        assert!(leadership.valid());
    }
    let lease = world.lease().unwrap();
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]), (&json!("a"), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn a_take_over_whose_answer_is_lost_is_found_again() {
    let world = World::new();
    world.link("b", Link::DeafToWrites);
    let election = world.candidate("b");
    let (leadership, ()) = tokio::join!(timeout(MINUTE, election.acquire()), async {
        sleep(seconds(1)).await;
        world.link("b", Link::Up);
    });
    assert!(leadership.unwrap().valid());
    assert_eq!(world.requests(), ["b GET", "b POST", "b GET", "b PUT"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_written_by_somebody_else_is_lost_at_the_next_renewal() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    world.edit(|lease| lease["spec"]["holderIdentity"] = "thief".into());
    assert_eq!(end_of(&leadership).await, Lost::Taken { holder: "thief".into() });
}

#[tokio::test(start_paused = true)]
async fn a_second_process_with_the_same_name_deposes_the_first() {
    let world = World::new();
    let first = world.candidate("a").acquire().await;
    sleep(seconds(2)).await;
    let start = Instant::now();
    let second = world.candidate("a").acquire().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "a restarted container need not wait for itself");
    assert_eq!(end_of(&first).await, Lost::Taken { holder: "a".into() });
    assert!(second.valid());
    assert_eq!(world.lease().unwrap()["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn fields_and_annotations_of_others_survive_every_write() {
    let world = World::new();
    world.edit(|lease| {
        lease["metadata"]["annotations"] = json!({"journal": "1"});
        lease["spec"] = json!({"strategy": "future", "holderIdentity": ""});
    });
    let leadership = world.candidate_with("a", true, Metrics::default()).acquire().await;
    sleep(seconds(7)).await;
    world.edit(|lease| lease["metadata"]["annotations"]["journal"] = "2".into());
    sleep(seconds(14)).await;
    assert!(leadership.valid(), "somebody else's annotation is no reason to stop leading");
    leadership.end().await.unwrap();
    let lease = world.lease().unwrap();
    assert_eq!(lease["metadata"]["annotations"], json!({"journal": "2"}));
    assert_eq!((&lease["spec"]["strategy"], &lease["spec"]["holderIdentity"]), (&json!("future"), &json!(null)));
}

#[tokio::test(start_paused = true)]
async fn a_lease_deleted_under_a_live_leader_is_put_back_and_not_taken() {
    let world = World::new();
    let first = world.candidate("a").acquire().await;
    let follower = world.candidate("b");
    let (taken, ()) = tokio::join!(timeout(MINUTE, follower.acquire()), async {
        sleep(seconds(7)).await;
        world.delete();
    });
    taken.expect_err("a leads on");
    assert!(first.valid());
    assert_eq!(world.lease().unwrap()["spec"]["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_finds_a_held_lease_deleted_lets_the_holders_time_pass() {
    let world = World::new();
    world.link("b", Link::NoWatch);
    let first = world.candidate("a").acquire().await;
    let follower = world.candidate("b");
    let deleted = seconds(28);
    let start = Instant::now();
    let (second, ()) = tokio::join!(follower.acquire(), async {
        sleep(deleted).await;
        world.link("a", Link::Cut);
        world.delete();
    });
    assert!(!first.valid() && second.valid());
    assert!(start.elapsed() >= deleted + LEASE, "taken {:?} after the start", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_a_follower_reads_in_the_rhythm_of_the_original() {
    let world = World::new();
    world.link("b", Link::NoWatch);
    let first = world.candidate("a").acquire().await;
    let follower = world.candidate("b");
    world.forget_requests();
    let (second, ()) = tokio::join!(follower.acquire(), async {
        sleep(MINUTE).await;
        let reads = world.requests().iter().filter(|request| *request == "b GET").count();
        assert!((5..=12).contains(&reads), "{reads} reads in a minute");
        world.link("a", Link::Cut);
    });
    assert!(!first.valid() && second.valid());
}

#[tokio::test(start_paused = true)]
async fn health_is_bad_only_when_leading_long_after_the_lease_ran_out() {
    let world = World::new();
    let election = world.candidate("a");
    let health = election.health();
    assert_eq!(health.check(), Ok(()));
    let leadership = election.acquire().await;
    world.suspend(seconds(34));
    assert_eq!(health.check(), Ok(()));
    world.suspend(seconds(2));
    assert_eq!(health.check(), Err("leading without a renewal for 36s".into()));
    end_of(&leadership).await;
    assert_eq!(health.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_master_status_follows_the_term() {
    let world = World::new();
    let metrics = Metrics::default();
    let status = || metrics.leader_election_master_status.get_or_create_owned(&NameLabel { name: "lock".into() }).get();
    let leadership = world.candidate_with("a", false, metrics.clone()).acquire().await;
    assert_eq!(status(), 1);
    leadership.end().await.unwrap();
    assert_eq!(status(), 0);
}

/// client-go's words, source and reason, which tools and people look for.
#[tokio::test(start_paused = true)]
async fn who_begins_to_lead_and_who_ends_is_told_in_events_of_the_lease() {
    let world = World::new();
    let leadership = world.candidate_with("a", true, Metrics::default()).acquire().await;
    settle().await;
    leadership.end().await.unwrap();
    let events = world.events();
    let involved = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": "ns", "name": "lock",
                           "uid": "uid-of-lock" });
    for (event, message) in events.iter().zip(["a became leader", "a stopped leading"]) {
        assert_eq!(event["message"], message);
        assert_eq!((&event["reason"], &event["type"]), (&json!("LeaderElection"), &json!("Normal")));
        assert_eq!((&event["involvedObject"], &event["source"]), (&involved, &json!({ "component": "lock/a" })));
        assert_eq!((&event["metadata"]["namespace"], &event["count"]), (&json!("ns"), &json!(1)));
    }
    assert_eq!(events.len(), 2, "{events:?}");
    assert_ne!(events[0]["metadata"]["name"], events[1]["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn who_lost_the_lease_tells_it_if_there_is_still_somebody_to_tell() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    settle().await;
    world.edit(|lease| lease["spec"]["holderIdentity"] = "b".into());
    end_of(&leadership).await;
    leadership.abandon().await;
    let told: Vec<_> = world.events().iter().map(|event| event["message"].clone()).collect();
    assert_eq!(told, ["a became leader", "a stopped leading"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_what_is_told_of_an_election() {
    let world = World::new();
    let leadership = world.candidate("a").acquire().await;
    world.link("a", Link::DeafToWrites);
    // The telling hangs, and renewals arrive all the same until the server is deaf for too long.
    sleep(seconds(4)).await;
    assert!(leadership.valid());
    world.link("a", Link::NoEvents);
    let renewed = world.requests().len();
    sleep(MINUTE).await;
    assert!(leadership.valid() && world.requests().len() > renewed + 10);
    world.link("a", Link::Cut);
    let start = Instant::now();
    leadership.abandon().await;
    assert_eq!(start.elapsed(), seconds(1), "who stops us does not wait for long");
}

/// Links of three candidates fail at random for minutes, the machine sleeps now and then; at no moment do two lead.
#[tokio::test(start_paused = true)]
async fn two_candidates_are_never_both_valid() {
    for seed in 0..40 {
        let world = World::new();
        let mut random = StdRng::seed_from_u64(seed);
        let slots: [Arc<Mutex<Vec<Leadership>>>; 3] = Default::default();
        let names = ["a", "b", "c"];
        let mut tasks = JoinSet::new();
        for (name, slot) in names.iter().zip(&slots) {
            let (election, slot) = (world.candidate_with(name, true, Metrics::default()), Arc::clone(slot));
            tasks.spawn(async move {
                loop {
                    let leadership = election.acquire().await;
                    // Old terms are kept to see that they never become valid again.
                    slot.lock().unwrap().push(leadership.clone());
                    leadership.lost().await;
                }
            });
        }
        let mut terms_seen_valid = 0;
        for _ in 0..1_200 {
            sleep(Duration::from_millis(random.random_range(1..500))).await;
            if random.random_ratio(1, 10) {
                let link = LINKS[random.random_range(0..LINKS.len())];
                world.link(names[random.random_range(0..3)], link);
            }
            if random.random_ratio(1, 100) {
                world.suspend(seconds(random.random_range(1..30)));
            }
            let valid: usize = slots.iter().map(|slot| slot.lock().unwrap().iter().filter(|l| l.valid()).count()).sum();
            assert!(valid <= 1, "{valid} valid leaders with seed {seed}");
            terms_seen_valid += valid;
        }
        assert!(terms_seen_valid > 0, "nobody ever led with seed {seed}");
        tasks.shutdown().await;
    }
}

#[test]
fn names_are_sanitised_as_the_originals_do() {
    for (name, expected) in [
        ("hostpath.csi.k8s.io", "hostpath-csi-k8s-io"),
        ("a/b_c", "a-b-c"),
        ("ends.with.", "ends-with-X"),
        ("Ünï", "-n-X"),
        ("", ""),
    ] {
        assert_eq!(sanitize(name), expected, "{name}");
    }
}

#[test]
fn durations_that_do_not_fit_are_refused_with_their_values() {
    let error = |lease, renew, retry| Timing::new(seconds(lease), seconds(renew), seconds(retry)).unwrap_err();
    assert_eq!(error(10, 10, 5).to_string(), "lease duration 10s must be longer than the renew deadline 10s");
    assert_eq!(error(15, 6, 5).to_string(), "renew deadline 6s must be longer than 1.2 times the retry period 5s");
    assert!(matches!(error(15, 10, 0), TimingError::CountSeconds { .. }));
    Timing::new(seconds(15), seconds(10), seconds(2)).unwrap();
}
