//! The life of a claim where nothing goes wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use simulation_suite::block_on;
use simulation_suite::claim_life::Kind;
use simulation_suite::life::{Report, Script, play};
use simulation_suite::pipeline::ordinary;
use stowage_testing::{Numbers, Port, World};

const SEED: u64 = 1;

struct Played {
    report: Report,
    text: String,
    revision: u64,
    numbers: BTreeMap<String, Numbers>,
}

fn played(seed: u64, binding: Kind) -> Played {
    block_on(async {
        let world = World::new(seed);
        let report = play(&world, &Script::plain(seed, binding)).await;
        let (text, numbers) = (world.trace().text(), world.numbers());
        Played { report, text, revision: world.revision(), numbers }
    })
}

fn tells(binding: Kind) {
    let Played { report, text, revision, numbers } = played(SEED, binding);
    assert!(report.wrong.is_empty(), "{}\n{text}", report.wrong.join("\n"));
    assert!(report.ends.is_empty(), "a service gave up: {:?}", report.ends);
    println!("{binding:?} life: {} points, {revision} revisions", report.trace.len());
    for service in ordinary() {
        let count = |port| report.trace.iter().filter(|p| p.service == service && p.port == port).count();
        println!(
            "  {service:26} {:3} api writes {:3} csi calls {:3} node changes {:4} decisions",
            count(Port::Api),
            count(Port::Csi),
            count(Port::Node),
            numbers[service].decisions,
        );
    }
    let decisions: u64 = numbers.values().map(|numbers| numbers.decisions).sum();
    let per_event = decisions as f64 / revision as f64;
    println!("  {decisions} decisions for {revision} events: {per_event:.1} each");
    assert_eq!(report.took, Duration::ZERO, "somebody waited for a timer\n{text}");
    assert!(per_event < 6.0, "{decisions} decisions for {revision} events");
}

#[test]
fn a_claim_that_waits_for_its_consumer_is_mounted_and_gone_in_no_time() {
    tells(Kind::WaitForFirstConsumer);
}

#[test]
fn a_claim_that_binds_at_once_is_mounted_and_gone_in_no_time() {
    tells(Kind::Immediate);
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte_and_another_seed_another_one() {
    for binding in [Kind::WaitForFirstConsumer, Kind::Immediate] {
        let text = |seed| played(seed, binding).text;
        let first = text(1);
        assert!(!first.is_empty());
        assert_eq!(first, text(1));
        assert_ne!(first, text(2));
    }
}
