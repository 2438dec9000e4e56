//! A driver that times out, aborts, or does its work and does not say so: the life ends well all the same.

use std::time::Duration;

use tonic::Code;

use simulation_suite::block_on;
use simulation_suite::claim_life::Kind;
use simulation_suite::life::{Script, play};
use stowage_testing::{Step, World};

const RPCS: [&str; 8] = [
    "CreateVolume",
    "ControllerPublishVolume",
    "NodeStageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
    "ControllerUnpublishVolume",
    "DeleteVolume",
];

/// Plays a life with a script for one RPC; says how often the call did something and how many volumes were ever made.
fn with(rpc: &str, steps: impl IntoIterator<Item = Step>) -> (usize, u64) {
    block_on(async {
        let world = World::new(1);
        world.driver().script(rpc, steps);
        let report = play(&world, &Script::plain(1, Kind::WaitForFirstConsumer)).await;
        assert!(report.wrong.is_empty(), "{rpc}: {}\n{}", report.wrong.join("\n"), world.trace().text());
        assert!(report.took > Duration::ZERO, "{rpc}: the script was not played");
        let state = world.driver().snapshot();
        (state.count(rpc), state.made())
    })
}

#[test]
fn calls_that_time_out_twice_abort_once_and_then_succeed_are_repeated_until_they_do() {
    for rpc in RPCS {
        let steps = [Step::Hang, Step::Hang, Step::fail(Code::Aborted, "an operation is pending"), Step::Succeed];
        let (done, made) = with(rpc, steps);
        assert!(done >= 1, "{rpc} was given up");
        assert_eq!(made, 1, "{rpc}: volumes made");
    }
}

#[test]
fn calls_that_are_done_but_answered_after_the_deadline_are_repeated_and_double_nothing() {
    for rpc in RPCS {
        let (done, made) = with(rpc, [Step::DoneThenHang]);
        assert!(done >= 2, "{rpc} was not asked again after its answer got lost");
        assert_eq!(made, 1, "{rpc}: volumes made");
    }
}

#[test]
fn calls_that_are_done_but_answered_with_an_error_are_repeated_and_double_nothing() {
    for rpc in RPCS {
        for code in [Code::Internal, Code::Unavailable, Code::DeadlineExceeded, Code::Unknown] {
            let (_, made) = with(rpc, [Step::DoneThenFail(code, "something broke".into())]);
            assert_eq!(made, 1, "{rpc} with {code:?}: volumes made");
        }
    }
}
