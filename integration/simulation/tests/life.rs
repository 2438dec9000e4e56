//! The life of a claim where nothing goes wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simulation_suite::block_on;
use simulation_suite::life::{Report, Script, play};
use simulation_suite::manifests::Binding;
use simulation_suite::pipeline::SERVICES;
use stowage_testing::{Numbers, Port, World};

const SEED: u64 = 1;

struct Played {
    report: Report,
    text: String,
    revision: u64,
    numbers: BTreeMap<String, Numbers>,
    violations: Vec<String>,
}

/// Plays a life and checks the invariants whenever anything changed.
fn watched(binding: Binding) -> Played {
    block_on(async {
        let world = World::new(SEED);
        let found = Arc::new(Mutex::new(Vec::new()));
        let watcher = tokio::spawn({
            let (world, found) = (world.clone(), Arc::clone(&found));
            async move {
                let mut changes = world.changes().subscribe();
                while changes.changed().await.is_ok() {
                    let violations = world.observe().violations();
                    found.lock().unwrap().extend(violations.iter().map(ToString::to_string));
                }
            }
        });
        let report = play(&world, &Script::plain(SEED, binding)).await;
        watcher.abort();
        let violations = found.lock().unwrap().clone();
        let (text, numbers) = (world.trace().text(), world.numbers());
        Played { report, text, revision: world.revision(), numbers, violations }
    })
}

fn tells(binding: Binding) {
    let Played { report, text, revision, numbers, violations } = watched(binding);
    assert!(report.wrong.is_empty(), "{}\n{text}", report.wrong.join("\n"));
    assert_eq!(violations, [""; 0], "{text}");
    println!("{} life: {} points, {revision} revisions", binding.as_str(), report.trace.len());
    for service in SERVICES {
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
    tells(Binding::WaitForFirstConsumer);
}

#[test]
fn a_claim_that_binds_at_once_is_mounted_and_gone_in_no_time() {
    tells(Binding::Immediate);
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    let text = || watched(Binding::WaitForFirstConsumer).text;
    let (first, second) = (text(), text());
    assert!(!first.is_empty());
    assert_eq!(first, second);
}

#[test]
fn another_seed_gives_another_trace() {
    let text = |seed| {
        block_on(async {
            let world = World::new(seed);
            play(&world, &Script::plain(seed, Binding::Immediate)).await;
            world.trace().text()
        })
    };
    assert_ne!(text(1), text(2));
}
