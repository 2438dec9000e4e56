//! What people get wrong: each mistake ends in a message that names it and the way out.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::mount::{MsFlags, mount};
use serde_json::json;
use stowage_model::object::kinds;

use local_suite::api::PATIENCE;
use local_suite::machine;
use local_suite::objects::{self, DRIVER, IMMEDIATE};
use local_suite::process::Process;
use local_suite::stack::{Place, Service, Stack};
use stowage_services::names;

/// A kubeconfig that can be read, of a server that is not there.
const NOBODY: &str = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, \
                      user: a}}], clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, \
                      user: {}}]}";

fn started(binary: &str, args: &[&str], logs: &Path) -> anyhow::Result<Process> {
    let args: Vec<String> = args.iter().map(|&word| word.to_owned()).collect();
    Process::start(binary, binary, &args, logs)
}

/// Runs a binary that must refuse to start, and returns what it says.
async fn refused(binary: &str, args: &[&str], logs: &Path) -> anyhow::Result<String> {
    let mut process = started(binary, args, logs)?;
    let status = process.ended(PATIENCE).await?;
    ensure!(!status.success(), "{binary} {args:?} ended with {status}");
    process.said()
}

#[test]
fn an_unknown_flag_is_named_by_every_binary() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let place = Place::prepare(&root)?;
        for binary in names(|service| service.is_process()) {
            let said = refused(binary, &["--no-such-flag=1"], &place.logs()).await?;
            ensure!(said.contains("--no-such-flag") && said.contains("--help"), "{binary} says: {said}");
        }
        Ok(())
    })
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named_by_every_client() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let place = Place::prepare(&root)?;
        for binary in names(|service| service.is_client()) {
            let said = refused(binary, &["--kubeconfig=/nowhere/kubeconfig"], &place.logs()).await?;
            let complete = said.contains("/nowhere/kubeconfig") && said.contains("--kubeconfig");
            ensure!(complete && said.contains("readable kubeconfig"), "{binary} says: {said}");
        }
        Ok(())
    })
}

#[test]
fn a_driver_that_is_not_there_is_named_while_it_is_waited_for() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let place = Place::prepare(&root)?;
        std::fs::write(place.kubeconfig(), NOBODY)?;
        let kubeconfig = format!("--kubeconfig={}", place.kubeconfig().display());
        let socket = place.root.join("nobody.sock").display().to_string();
        let address = format!("--csi-address={socket}");
        let path = format!("--kubelet-registration-path={socket}");
        let mut waiting = vec![
            started("provisioner", &[&kubeconfig, &address], &place.logs())?,
            started("attacher", &[&kubeconfig, &address], &place.logs())?,
            started("registrar", &[&address, &path], &place.logs())?,
        ];
        for process in &mut waiting {
            // It waits, because a driver may start later; people are told at once what it waits for.
            process.says("waiting for the driver's socket", PATIENCE).await?;
            let said = process.said()?;
            ensure!(said.contains(&socket) && !said.contains("Error:"), "{} says: {said}", process.name());
        }
        for process in &mut waiting {
            let status = process.ended(PATIENCE).await?;
            ensure!(!status.success(), "{} ended with {status}", process.name());
            let said = process.said()?;
            let last = said.lines().find(|line| line.starts_with("Error:")).context("it ends without an error")?;
            ensure!(last.contains(&socket) && last.contains("--csi-address"), "{} says: {said}", process.name());
        }
        Ok(())
    })
}

#[test]
fn a_driver_that_starts_late_is_found() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let place = Place::prepare(&root)?;
        let services = [Service::Apiserver, Service::PvController, Service::Provisioner];
        let mut stack = Stack::start(place, &services).await?;
        stack.api.create(kinds::CLAIM, objects::claim("early", IMMEDIATE, "8Mi")).await?;
        // Long enough for the first attempts to fail, whenever the provisioner starts.
        tokio::time::sleep(Duration::from_millis(500)).await;
        stack.launch(Service::Driver)?;
        bound(&stack, "early").await
    })
}

async fn bound(stack: &Stack, claim: &str) -> anyhow::Result<()> {
    let is_bound = |claim: Option<&serde_json::Value>| (claim?["status"]["phase"] == "Bound").then_some(());
    stack.api.until(kinds::CLAIM, claim, is_bound, "to be bound").await
}

/// A driver without its socket's directory cannot serve.
#[test]
fn a_socket_in_a_missing_directory_is_named_by_the_driver() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let place = Place::prepare(&root)?;
        let pool = format!("--pool=default={}", place.pool().display());
        let state = format!("--state-dir={}", place.root.join("state").display());
        let args = ["--endpoint=unix:///nowhere/csi.sock", "--nodeid=a", &pool, &state];
        let said = refused("node-plugin", &args, &place.logs()).await?;
        ensure!(said.contains("/nowhere"), "{said}");
        Ok(())
    })
}

#[test]
fn claims_and_classes_that_cannot_be_satisfied_say_why() -> anyhow::Result<()> {
    machine::with_processes(async |root| {
        let stack = Stack::start(Place::prepare(&root)?, &Service::provisioning()).await?;
        let api = &stack.api;

        api.create(kinds::CLAIM, objects::claim("huge", IMMEDIATE, "9Ei")).await?;
        let said = api.event("huge", "ProvisioningFailed").await?;
        ensure!(said.contains("9Ei") && said.contains("spec.resources.requests.storage"), "{said}");

        let said = api.refusal(kinds::CLAIM, objects::claim("nothing", IMMEDIATE, "0")).await?;
        ensure!(said.contains("spec.resources") && said.contains("storage"), "{said}");

        let mut bad = objects::class("bad", DRIVER, "Immediate");
        bad["parameters"] = json!({ "colour": "blue" });
        api.create(kinds::STORAGE_CLASS, bad).await?;
        api.create(kinds::CLAIM, objects::claim("blue", "bad", "8Mi")).await?;
        let said = api.event("blue", "ProvisioningFailed").await?;
        ensure!(said.contains("colour") && said.contains("InvalidArgument"), "{said}");

        api.create(kinds::STORAGE_CLASS, objects::class("foreign", "nobody.example.com", "Immediate")).await?;
        api.create(kinds::CLAIM, objects::claim("foreign", "foreign", "8Mi")).await?;
        let said = api.event("foreign", "ExternalProvisioning").await?;
        ensure!(said.contains("nobody.example.com"), "{said}");

        api.create(kinds::CLAIM, objects::claim("unknown", "missing", "8Mi")).await?;
        let said = api.event("unknown", "ProvisioningFailed").await?;
        ensure!(said.contains("missing"), "{said}");

        // Nothing of that is in the way of a good claim, and all of it can be deleted.
        api.create(kinds::CLAIM, objects::claim("good", IMMEDIATE, "8Mi")).await?;
        bound(&stack, "good").await?;
        for claim in ["huge", "blue", "foreign", "unknown", "good"] {
            api.delete(kinds::CLAIM, claim).await?;
            api.gone(kinds::CLAIM, claim).await?;
        }
        api.none_left(kinds::VOLUME).await
    })
}

#[test]
fn a_full_pool_says_so_and_still_serves_what_fits() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let place = Place::prepare(&root)?;
        let pool = place.pool();
        mount(Some("tmpfs"), &pool, Some("tmpfs"), MsFlags::empty(), Some("size=16m"))
            .with_context(|| format!("cannot mount a small file system at {}", pool.display()))?;
        let stack = Stack::start(place, &Service::provisioning()).await?;
        let api = &stack.api;
        api.create(kinds::CLAIM, objects::claim("large", IMMEDIATE, "1Gi")).await?;
        let said = api.event("large", "ProvisioningFailed").await?;
        ensure!(said.contains("ResourceExhausted") && said.contains("default"), "{said}");
        ensure!(said.contains("1073741824") && said.contains("free"), "{said}");
        api.create(kinds::CLAIM, objects::claim("small", IMMEDIATE, "8Mi")).await?;
        bound(&stack, "small").await?;
        for claim in ["large", "small"] {
            api.delete(kinds::CLAIM, claim).await?;
            api.gone(kinds::CLAIM, claim).await?;
        }
        api.none_left(kinds::VOLUME).await
    })
}
