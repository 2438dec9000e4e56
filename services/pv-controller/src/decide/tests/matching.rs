//! 8.11 matching, through the controller's own path; the rows about nodes and helpers are tests of `stowage_model`.

use serde_json::json;

use stowage_model::Volume;

use super::expect::*;
use super::fixtures::{Fixture, claim, claim_named, volume};
use super::world::World;

const RWO: &str = "ReadWriteOnce";
const ROX: &str = "ReadOnlyMany";
const RWX: &str = "ReadWriteMany";

/// What a claim without class is told when nothing fits, and one whose class is not there.
const NO_VOLUME: Result<&str, &str> = Err("Normal FailedBinding pvc/c");
const NO_CLASS: Result<&str, &str> = Err("Warning ProvisioningFailed pvc/c");

/// The volume the claim is bound to, or what is told without one. With one exactly the four writes of a binding are made
/// and nothing is told; without one nothing is written, and something is told once.
fn bound_to(claim: Fixture, volumes: impl IntoIterator<Item = Fixture>) -> Result<String, String> {
    let mut world = World::new([claim]);
    let volumes: Vec<Fixture> = volumes.into_iter().collect();
    volumes.iter().for_each(|volume| world.put(volume.clone()));
    let steps = world.rests_after(World::sync_claims);
    let Some(first) = steps.first().and_then(|step| step.strip_prefix("pv/")) else {
        let [told] = &steps[..] else { panic!("{steps:?}") };
        return Err(told.clone());
    };
    let name = first.split([' ', '/']).next().unwrap();
    let volume: Volume = volumes.iter().find(|volume| volume.key().name == name).unwrap().build();
    let status = json!({ "status": {
        "phase": "Bound", "accessModes": volume.spec.access_modes.names(),
        "capacity": { "storage": volume.capacity().to_string() },
    } });
    let reserve = if volume.spec.claim_ref.is_some() { pv_ref(name) } else { pv_ref_marked(name) };
    let attributes = volume.attributes_class();
    let mut expected =
        vec![reserve, pv_phase(name, "Bound"), pvc_done_marked(name), line("pvc/c/status", status.clone())];
    if !attributes.is_empty() {
        let mut status = status;
        status["status"]["currentVolumeAttributesClassName"] = attributes.into();
        expected[3] = line("pvc/c/status", status);
    }
    assert_eq!(steps, expected);
    Ok(name.to_owned())
}

fn free(name: &str, size: &str) -> Fixture {
    volume(name, size).available()
}

fn stock() -> Vec<Fixture> {
    vec![
        free("gce-5", "5G"),
        free("gce-10", "10G"),
        free("gce-20", "20G").phase("Bound").refers("x", "x"),
        claim_named("x", "x").completed("gce-20").size("20G").bound("20G"),
        free("nfs-5", "5G").modes(&[RWO, ROX, RWX]),
        free("nfs-1", "1G").modes(&[RWO, ROX, RWX]).phase("Bound").refers("y", "y"),
        claim_named("y", "y")
            .completed("nfs-1")
            .size("1G")
            .bound("1G")
            .with("status.accessModes", json!([RWO, ROX, RWX])),
        free("huge", "20000G").modes(&[RWO]).label("size", "huge"),
        free("silver1", "10000G").class("silver").label("should-exist", "true"),
        free("silver2", "100G").class("silver"),
        free("e200", "200E").class("large"),
        free("e800", "800E").class("large"),
        free("vac", "50G").class("v").attributes("silver"),
        free("no-vac", "50G").class("v"),
    ]
}

#[test]
fn the_stock_of_the_index_test_is_matched_as_upstream_does() {
    let rows: Vec<(&str, Fixture, Result<&str, &str>)> = vec![
        ("8G of the free one", claim().size("8G"), Ok("gce-10")),
        ("5G in all modes", claim().size("5G").modes(&[ROX, RWO, RWX]), Ok("nfs-5")),
        ("1G where the 1G is bound: the next, of the narrower group", claim().size("1G"), Ok("gce-5")),
        ("999G", claim().size("999G"), NO_VOLUME),
        ("a label nobody has", claim().size("1G").selects("no", "such"), NO_VOLUME),
        ("20000G read-only too", claim().size("20000G").selects("size", "huge"), NO_VOLUME),
        ("20000G", claim().size("20000G").modes(&[RWO]).selects("size", "huge"), Ok("huge")),
        ("no attributes class", claim().class("v"), Ok("no-vac")),
        ("an attributes class", claim().class("v").attributes("silver"), Ok("vac")),
        ("an unknown attributes class", claim().class("v").attributes("unknown"), NO_CLASS),
        ("silver by label", claim().class("silver").selects("should-exist", "true"), Ok("silver1")),
        ("silver", claim().class("silver"), Ok("silver2")),
        ("1E", claim().class("large").size("1E"), Ok("e200")),
        ("800E", claim().class("large").size("800E"), Ok("e800")),
        ("950E", claim().class("large").size("950E"), NO_CLASS),
    ];
    for (what, claim, expected) in rows {
        let found = bound_to(claim, stock());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{what}");
    }
}

#[test]
fn a_volume_with_fewer_modes_goes_first() {
    let stock = |taken: usize| {
        let all = [("a", &[RWO][..]), ("b", &[RWO, ROX]), ("c", &[RWO, ROX, RWX])];
        let fixtures = all.map(|(name, modes)| free(name, "10G").modes(modes));
        let claimed = |(n, volume): (usize, Fixture)| if n < taken { volume.refers("x", "") } else { volume };
        fixtures.into_iter().enumerate().map(claimed).collect::<Vec<_>>()
    };
    let ask = |modes: &[&str], taken| bound_to(claim().size("10G").modes(modes), stock(taken));
    assert_eq!(ask(&[RWO], 0).as_deref(), Ok("a"));
    assert_eq!(ask(&[RWO, ROX], 0).as_deref(), Ok("b"));
    assert_eq!(ask(&[RWX, RWO, ROX], 0).as_deref(), Ok("c"));
    assert_eq!(ask(&[RWX], 0).as_deref(), Ok("c"));
    assert_eq!(ask(&[RWO], 1).as_deref(), Ok("b"));
    assert_eq!(ask(&[RWO], 2).as_deref(), Ok("c"));
    assert_eq!(ask(&[ROX], 1).as_deref(), Ok("b"));
}

#[test]
fn a_reservation_counts_only_if_the_volume_fits() {
    let stock =
        |spoil: fn(Vec<Fixture>) -> Vec<Fixture>| spoil(vec![free("a", "1Gi"), free("b", "5Gi"), free("d", "8Gi")]);
    let all: fn(Vec<Fixture>) -> Vec<Fixture> = |volumes| volumes;
    assert_eq!(bound_to(claim(), stock(all)).as_deref(), Ok("a"));
    let others: fn(Vec<Fixture>) -> Vec<Fixture> = |mut volumes| {
        volumes[0] = volumes[0].clone().refers("x", "");
        volumes
    };
    assert_eq!(bound_to(claim(), stock(others)).as_deref(), Ok("b"));
    let ours: fn(Vec<Fixture>) -> Vec<Fixture> = |mut volumes| {
        volumes[2] = volumes[2].clone().refers("c", "");
        volumes
    };
    assert_eq!(bound_to(claim(), stock(ours)).as_deref(), Ok("d"));
    let small: fn(Vec<Fixture>) -> Vec<Fixture> = |mut volumes| {
        volumes.push(free("s", "1Mi").refers("c", ""));
        volumes.push(free("r", "8Gi").modes(&[ROX]).refers("c", ""));
        volumes
    };
    assert_eq!(bound_to(claim(), stock(small)).as_deref(), Ok("a"));
}

#[test]
fn a_volume_that_is_being_deleted_is_neither_matched_nor_enough() {
    let held = free("v", "1Gi").deleting().finalizers(&["example.com/held"]);
    assert_eq!(bound_to(claim(), [held.clone()]), Err(text("Normal FailedBinding pvc/c")));
    let mut world = World::new([claim().names("v"), held]);
    assert_eq!(world.rests_after(World::sync_claims), [text("Warning VolumeMismatch pvc/c")]);
}

#[test]
fn a_class_that_does_not_say_when_to_bind_is_told() {
    let class = super::fixtures::class("gold", "d").with("volumeBindingMode", json!(null));
    let mut world = World::new([claim().class("gold"), class, free("v", "1Gi").class("gold")]);
    assert_eq!(world.rests_after(World::sync_claims), [text("Warning FailedBinding pvc/c")]);
}
