use std::sync::Arc;
use std::time::Duration;

use stowage_runtime::backoff::Backoff;
use stowage_runtime::clock::SystemClock;
use stowage_runtime::operation::State;
use stowage_runtime::tasks::Tasks;

use super::*;
use OperationName::{MountDevice, SetUp, TearDown, UnmountDevice};

fn executor(tasks: &Tasks) -> Executor {
    let backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(122) };
    Executor::new(Operations::new(tasks.spawner(), Arc::new(SystemClock), backoff, |_| {}))
}

fn on(name: OperationName) -> VolumeOperation {
    VolumeOperation::on(&"v".into(), name)
}

fn of(pod: &str, name: OperationName) -> VolumeOperation {
    VolumeOperation::of(&"v".into(), pod, name)
}

#[tokio::test]
async fn s44_s45_an_operation_on_a_volume_excludes_all_others_on_it() {
    let tasks = Tasks::new();
    for (first, second) in [
        (on(MountDevice), on(MountDevice)),
        (on(MountDevice), on(UnmountDevice)),
        (on(MountDevice), of("a", SetUp)),
        (of("a", TearDown), on(UnmountDevice)),
        (of("a", SetUp), of("b", SetUp)),
        (of("a", TearDown), of("b", SetUp)),
    ] {
        let executor = executor(&tasks);
        assert!(executor.start_on_volume(first.clone(), std::future::pending()));
        assert!(!executor.start_on_volume(second.clone(), std::future::pending()), "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn s46_s48_s53_pods_give_a_volume_back_side_by_side_and_volumes_do_not_know_each_other() {
    let tasks = Tasks::new();
    let executor = executor(&tasks);
    assert!(executor.start_on_volume(of("a", TearDown), std::future::pending()));
    assert!(executor.start_on_volume(of("b", TearDown), std::future::pending()));
    assert!(!executor.start_on_volume(of("a", TearDown), std::future::pending()));
    let other = VolumeOperation::on(&"w".into(), MountDevice);
    assert!(executor.start_on_volume(other, std::future::pending()));
    assert!(executor.is_pending(&"v".into()));
    assert!(!executor.is_pending(&"x".into()));
}

#[tokio::test]
async fn s49_s51_a_failure_is_remembered_for_its_own_operation_alone() {
    let mut tasks = Tasks::new();
    let executor = executor(&tasks);
    let _running = tokio::spawn(async move { tasks.supervise().await });
    let failure = Failure { code: "Internal".into(), message: "no".into() };
    executor.start_on_volume(on(MountDevice), async move { Ended::Failed(failure) });
    until(|| !executor.is_pending(&"v".into())).await;
    let records = executor.of_volume(&"v".into());
    let [(operation, record)] = records.iter().collect::<Vec<_>>()[..] else { panic!("{records:?}") };
    assert_eq!((operation.name, record.failures), (MountDevice, 1));
    assert!(executor.start_on_volume(on(UnmountDevice), async { Ended::Done(()) }), "another operation need not wait");
    until(|| !executor.is_pending(&"v".into())).await;
    executor.forget_volume(&"v".into());
    assert!(executor.of_volume(&"v".into()).is_empty());
}

#[tokio::test]
async fn s50_an_operation_that_panics_has_ended_badly_and_the_next_may_start() {
    let mut tasks = Tasks::new();
    let executor = executor(&tasks);
    let _running = tokio::spawn(async move { tasks.supervise().await });
    executor.start_on_volume(on(MountDevice), async { panic!("a bug") });
    until(|| !executor.is_pending(&"v".into())).await;
    let record = executor.record(&Operation::Volume(on(MountDevice))).unwrap();
    let State::Uncertain(failure) = record.state else { panic!("{record:?}") };
    assert!(failure.message.contains("a bug"), "{failure:?}");
    assert!(executor.start_on_volume(on(MountDevice), async { Ended::Done(()) }));
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn s152_a_plugin_is_greeted_once_at_a_time_and_others_meanwhile() {
    let tasks = Tasks::new();
    let executor = executor(&tasks);
    let greet = |socket: &str| executor.start(Operation::Greet(socket.to_owned()), std::future::pending());
    assert!(greet("a.sock"));
    assert!(!greet("a.sock"), "the same socket told twice is not asked twice");
    assert!(greet("b.sock"));
}
