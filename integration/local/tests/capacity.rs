//! Room from end to end: what the provisioner of each node publishes of its pool is what the scheduler places pods by.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use stowage_model::object::kinds;
use stowage_model::quantity::Quantity;
use tokio::time::{Instant, sleep};

use local_suite::api::{Api, PATIENCE};
use local_suite::disk::Disk;
use local_suite::life::{Life, all_over};
use local_suite::objects::{self, LOCAL_DRIVER, LOCAL_WAITING};
use local_suite::process::Process;
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

/// What the disks below the pools have; the file system takes a part of it.
const DISKS: [u64; 2] = [1 << 30, 3 << 30];
/// There is room for one such volume, on the second node, and not for two.
const SIZE: &str = "2Gi";
const LOOK: Duration = Duration::from_millis(50);

fn services() -> Vec<Service> {
    let makers = NODES.map(Service::LocalProvisioner);
    Service::local().into_iter().filter(|service| !makers.contains(service)).collect()
}

/// The provisioner of a node, which publishes how much room there is.
fn provisioner(place: &Place, node: &str) -> anyhow::Result<Process> {
    let args = [
        format!("--kubeconfig={}", place.kubeconfig().display()),
        format!("--csi-address={}", place.node_socket(node).display()),
        "--node-deployment".to_owned(),
        format!("--node-name={node}"),
        "--enable-capacity".to_owned(),
        // Longer than anybody here waits: what is published comes of signals, and not of the poll.
        "--capacity-poll-interval=1h".to_owned(),
        "--capacity-ownerref-level=-1".to_owned(),
    ];
    let environment = [("NAMESPACE", "default".to_owned())];
    Process::start_in(&format!("provisioner-{node}"), "provisioner", &args, &environment, &place.logs())
}

/// How much room for volumes of the class is published, by node.
async fn published(api: &Api) -> anyhow::Result<BTreeMap<String, i128>> {
    let mut room = BTreeMap::new();
    for object in api.list(kinds::STORAGE_CAPACITY).await? {
        if object["storageClassName"] != LOCAL_WAITING {
            continue;
        }
        let labels = object["nodeTopology"]["matchLabels"].as_object().context("room that is nowhere")?;
        let node = labels.values().next().and_then(Value::as_str).context("room that is nowhere")?;
        let capacity: Quantity = object["capacity"].as_str().context("no capacity")?.parse()?;
        room.insert(node.to_owned(), capacity.bytes());
    }
    Ok(room)
}

/// Waits until both nodes are told of, the second one with this much room.
async fn room_is(api: &Api, wanted: impl Fn(i128) -> bool) -> anyhow::Result<BTreeMap<String, i128>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let room = published(api).await?;
        if room.len() == NODES.len() && wanted(room[NODES[1]]) {
            return Ok(room);
        }
        ensure!(Instant::now() < deadline, "published after {} s: {room:?}", PATIENCE.as_secs());
        sleep(LOOK).await;
    }
}

/// A pod that may go anywhere.
async fn start_anywhere(life: &Life<'_>, pod: &str) -> anyhow::Result<()> {
    let mut pod = objects::pod(pod, &life.claim, "any");
    pod["spec"]["nodeSelector"] = json!({});
    life.api.create(kinds::POD, pod).await
}

fn refused(pod: Option<&Value>) -> Option<String> {
    let conditions = pod?["status"]["conditions"].as_array()?;
    let refused = conditions.iter().find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
    (refused["reason"] == "Unschedulable").then(|| refused["message"].as_str().map(str::to_owned))?
}

#[test]
fn pods_go_where_the_published_room_is_wait_where_there_is_none_and_are_woken_by_room() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let place = Place::prepare(&root)?;
        let disks =
            DISKS.iter().zip(NODES).map(|(bytes, node)| Disk::mount_of(*bytes, &root, node, &place.node_pool(node)));
        let disks = disks.collect::<anyhow::Result<Vec<Disk>>>()?;
        let mut stack = Stack::start(place, &services()).await?;
        let (api, place) = (stack.api.clone(), stack.place.clone());
        api.patch(kinds::CSI_DRIVER, LOCAL_DRIVER, json!({ "spec": { "storageCapacity": true } })).await?;
        let makers = NODES.map(|node| provisioner(&place, node));
        let mut makers = makers.into_iter().collect::<anyhow::Result<Vec<Process>>>()?;

        let wanted = SIZE.parse::<Quantity>()?.bytes();
        let room = room_is(&api, |room| room >= wanted).await?;
        ensure!(room[NODES[0]] < wanted, "the first node has room: {room:?}");
        let life = |claim: &str| Life { api: &api, place: &place, claim: claim.to_owned() };
        let (first, second) = (life("first"), life("second"));
        first.begin(LOCAL_WAITING, SIZE).await?;
        start_anywhere(&first, "first").await?;
        first.mounted("first", NODES[1]).await.context("not where the room is")?;

        room_is(&api, |room| room < wanted).await?;
        second.begin(LOCAL_WAITING, SIZE).await?;
        start_anywhere(&second, "second").await?;
        let why = api.until(kinds::POD, "second", refused, "to be refused a node").await?;
        ensure!(why.contains("enough free storage"), "{why}");
        let claim = api.get(kinds::CLAIM, "second").await?.context("the claim is gone")?;
        ensure!(claim["spec"]["volumeName"].is_null(), "a volume for a pod that has no node: {claim:#}");

        first.stop("first").await?;
        first.end().await?;
        second.mounted("second", NODES[1]).await.context("not woken by the room that came")?;
        second.stop("second").await?;
        second.end().await?;
        all_over(&api).await?;
        leftovers::none(&root).await?;
        stack.all_run()?;
        for maker in &mut makers {
            maker.signal(nix::sys::signal::Signal::SIGTERM)?;
            let status = maker.ended(PATIENCE).await?;
            ensure!(status.success(), "{} ended with {status} after SIGTERM", maker.name());
        }
        stack.stop().await?;
        for disk in disks {
            disk.unmount().await?;
        }
        Ok(())
    })
}
