//! Two provisioners, one lease: the leader is stopped in the middle of CreateVolume, the other takes over, the first
//! comes back. One volume, one PV.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use stowage_model::object::kinds;

use local_suite::api::{Api, PATIENCE};
use local_suite::driver::{HeldDriver, Hold, NAME};
use local_suite::process::Process;
use local_suite::stack::{Place, Service, Stack};
use local_suite::{machine, objects};

const CANDIDATES: [&str; 2] = ["first", "second"];

/// How long a candidate's own lease lasts and how long it tries to renew it, in seconds. The first is to lose it soon, but only
/// because it is stopped, not because this machine's disk is busy; the second waits by what the first has written, and is not
/// to lose it again.
const LEASES: [(u32, u32); 2] = [(12, 10), (60, 50)];

fn provisioner(place: &Place, identity: &str) -> anyhow::Result<Process> {
    let (duration, deadline) = LEASES[CANDIDATES.iter().position(|name| *name == identity).unwrap_or_default()];
    let args = [
        format!("--kubeconfig={}", place.kubeconfig().display()),
        format!("--csi-address={}", place.socket().display()),
        "--leader-election".to_owned(),
        format!("--leader-election-lease-duration={duration}s"),
        format!("--leader-election-renew-deadline={deadline}s"),
        "--leader-election-retry-period=500ms".to_owned(),
        format!("--leader-election-identity={identity}"),
    ];
    Process::start(&format!("provisioner-{identity}"), "provisioner", &args, &place.logs())
}

fn holder(lease: Option<&Value>) -> Option<String> {
    let identity = lease?["spec"]["holderIdentity"].as_str()?;
    (!identity.is_empty()).then(|| identity.to_owned())
}

/// The leader among the candidates, by the lease that bears the driver's name.
async fn leader(api: &Api) -> anyhow::Result<String> {
    api.until(kinds::LEASE, &NAME.replace('.', "-"), holder, "to have a holder").await
}

async fn bound(api: &Api, claim: &str) -> anyhow::Result<String> {
    let volume = |claim: Option<&Value>| {
        let claim = claim?;
        let bound = claim["status"]["phase"] == "Bound";
        bound.then(|| claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned())
    };
    api.until(kinds::CLAIM, claim, volume, "to be bound").await
}

async fn seen_by(driver: &HeldDriver, creations: usize) -> anyhow::Result<()> {
    let seen = async {
        while driver.record().creations.len() < creations {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, seen)
        .await
        .with_context(|| format!("the driver never saw CreateVolume number {creations}: {:?}", driver.record()))
}

async fn take_over(place: Place, driver: &HeldDriver) -> anyhow::Result<()> {
    let stack = Stack::start(place, &[Service::Apiserver, Service::PvController]).await?;
    let api = &stack.api;
    api.create(kinds::STORAGE_CLASS, objects::class("held", NAME, "Immediate")).await?;
    let mut old = provisioner(&stack.place, CANDIDATES[0])?;
    ensure!(leader(api).await? == CANDIDATES[0], "the only candidate leads");
    let mut new = provisioner(&stack.place, CANDIDATES[1])?;

    api.create(kinds::CLAIM, objects::claim("one", "held", "1Gi")).await?;
    seen_by(driver, 1).await?;
    old.signal(Signal::SIGSTOP)?;
    let taken = |lease: Option<&Value>| holder(lease).filter(|holder| holder == CANDIDATES[1]);
    api.until(kinds::LEASE, &NAME.replace('.', "-"), taken, "to be taken over").await?;
    let volume = bound(api, "one").await?;

    // The answer it has waited for is there when it wakes, long after it lost the lease.
    driver.release();
    old.signal(Signal::SIGCONT)?;
    let status = old.ended(PATIENCE).await.context("the deposed leader must end")?;
    ensure!(!status.success(), "the deposed leader ended with {status}");

    // The new leader works on, so whatever the old one could have broken would have been seen by now.
    api.create(kinds::CLAIM, objects::claim("two", "held", "1Gi")).await?;
    let second = bound(api, "two").await?;
    ensure!(new.exited()?.is_none(), "the new leader has ended");

    let record = driver.record();
    ensure!(record.deletions.is_empty(), "a volume was deleted: {record:?}");
    let names: Vec<&String> = record.volumes.keys().collect();
    let volumes = api.list(kinds::VOLUME).await?;
    let mut pvs: Vec<&str> = volumes.iter().filter_map(|pv| pv["metadata"]["name"].as_str()).collect();
    pvs.sort_unstable();
    let mut expected = vec![&volume, &second];
    expected.sort_unstable();
    ensure!(names == expected && pvs == expected, "driver {names:?}, PVs {pvs:?}, expected {expected:?}");
    let handles = |name: &str| {
        volumes.iter().find(|pv| pv["metadata"]["name"] == name).unwrap()["spec"]["csi"]["volumeHandle"].clone()
    };
    for (name, (id, _)) in &record.volumes {
        ensure!(handles(name) == *id, "PV {name} names volume {}, the driver made {id}", handles(name));
    }
    Ok(())
}

fn run(hold: Hold) -> anyhow::Result<()> {
    machine::with_processes(async move |root| {
        let place = Place::prepare(&root)?;
        let driver = HeldDriver::new(hold);
        let socket = place.socket();
        tokio::select! {
            biased;
            served = driver.serve(&socket) => served,
            done = take_over(place, &driver) => done,
        }
    })
}

#[test]
fn a_leader_stopped_before_its_volume_is_made_leaves_one_volume() -> anyhow::Result<()> {
    run(Hold::BeforeMaking)
}

#[test]
fn a_leader_stopped_before_it_hears_of_its_volume_leaves_one_volume() -> anyhow::Result<()> {
    run(Hold::AfterMaking)
}
