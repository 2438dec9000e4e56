//! Claims of the local driver that grow: a resizer beside it on every node, each for the volumes that are there.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, ensure};
use http::StatusCode;
use serde_json::{Value, json};
use stowage_model::names;
use stowage_model::object::kinds;

use local_suite::life::{Life, all_over, file_system_bytes};
use local_suite::objects::{self, LOCAL_OF, LOCAL_WAITING};
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

/// The least that xfs is made with.
const SMALL: &str = "300Mi";
const LARGE: &str = "400Mi";
const LARGER: &str = "500Mi";

fn bytes(size: &str) -> u64 {
    size.trim_end_matches("Mi").parse::<u64>().unwrap_or_default() << 20
}

fn may_grow_mounted_ext4() -> anyhow::Result<bool> {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").context("cannot read our own status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no capabilities in our status")?;
    Ok(u64::from_str_radix(mask.trim(), 16).context("not a mask of capabilities")? >> SYS_RESOURCE & 1 == 1)
}

#[test]
fn a_claim_of_the_local_driver_grows_in_use_and_not_with_every_file_system() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::local_growth()).await?;
        for ((class, file_system), node) in LOCAL_OF.into_iter().zip(NODES.into_iter().cycle()) {
            let life = Life { api: &stack.api, place: &stack.place, claim: format!("of-{file_system}") };
            life.begin(class, SMALL).await?;
            life.start(&format!("first-{file_system}"), node).await?;
            let path = life.mounted(&format!("first-{file_system}"), node).await?;
            let first = file_system_bytes(&path)?;
            ensure!(first <= bytes(SMALL), "{file_system} has {first} bytes from the start");
            life.stop(&format!("first-{file_system}")).await?;

            // Not in use: the image grows now, the file system when it is next mounted.
            ensure!(life.ask(LARGE).await?.is_ok(), "no growth of {file_system}");
            let waits = |claim: Option<&Value>| {
                let status = &claim?["status"]["allocatedResourceStatuses"]["storage"];
                (*status == "NodeResizePending").then_some(())
            };
            stack.api.until(kinds::CLAIM, &life.claim, waits, "to wait for its node").await?;
            let second = format!("second-{file_system}");
            life.start(&second, node).await?;
            let path = life.mounted(&second, node).await?;
            life.has(LARGE).await?;
            let is = file_system_bytes(&path)?;
            ensure!(is > first && is <= bytes(LARGE), "{file_system} had {first} bytes and has {is}");

            ensure!(life.ask(LARGER).await?.is_ok(), "no growth of {file_system} in use");
            let was = is;
            let (pod, path) = match file_system == "ext4" && !may_grow_mounted_ext4()? {
                false => (second, path),
                true => {
                    let told = stack.api.event(&second, "VolumeResizeFailed").await?;
                    ensure!(told.contains("start its pod again"), "the pod is told {told}");
                    let claim = stack.api.get(kinds::CLAIM, &life.claim).await?.context("the claim is gone")?;
                    ensure!(claim["status"]["capacity"]["storage"] == LARGE, "the claim says more than it has");
                    ensure!(file_system_bytes(&path)? == was, "{file_system} grew without the right");
                    life.stop(&second).await?;
                    let third = format!("third-{file_system}");
                    life.start(&third, node).await?;
                    let path = life.mounted(&third, node).await?;
                    (third, path)
                }
            };
            life.has(LARGER).await?;
            let is = file_system_bytes(&path)?;
            ensure!(is > was && is <= bytes(LARGER), "{file_system} had {was} bytes and has {is}");

            let refused = life.ask(SMALL).await?;
            ensure!(
                matches!(&refused, Err((StatusCode::UNPROCESSABLE_ENTITY, why)) if why.contains("less than")),
                "shrinking {file_system}: {refused:?}"
            );
            life.stop(&pod).await?;
            life.end().await?;
        }
        all_over(&stack.api).await?;
        leftovers::none(&root).await?;
        stack.all_run()?;
        stack.stop().await
    })
}

#[test]
fn a_device_of_the_local_driver_grows_in_use_and_not() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::local_growth()).await?;
        let (api, node) = (&stack.api, NODES[1]);
        let life = Life { api, place: &stack.place, claim: "raw".to_owned() };
        let mut claim = objects::claim("raw", LOCAL_WAITING, "32Mi");
        claim["spec"]["volumeMode"] = "Block".into();
        api.create(kinds::CLAIM, claim).await?;
        let mut pod = objects::pod("user", "raw", node);
        let main = &mut pod["spec"]["containers"][0];
        main["volumeMounts"] = Value::Null;
        main["volumeDevices"] = json!([{ "name": "data", "devicePath": "/dev/data" }]);
        for (count, (size, in_use)) in [("48Mi", "64Mi"), ("80Mi", "96Mi")].into_iter().enumerate() {
            pod["metadata"]["name"] = format!("user-{count}").into();
            if count > 0 {
                ensure!(life.ask(size).await?.is_ok(), "no growth to {size}");
            }
            api.create(kinds::POD, pod.clone()).await?;
            let running = |pod: Option<&Value>| {
                let pod = pod?;
                (pod["status"]["phase"] == "Running").then(|| pod["metadata"]["uid"].as_str().map(str::to_owned))?
            };
            let uid = api.until(kinds::POD, &format!("user-{count}"), running, "to run").await?;
            let claim = api.get(kinds::CLAIM, "raw").await?.context("the claim is gone")?;
            let volume = claim["spec"]["volumeName"].as_str().context("a bound claim without a volume")?;
            let device = stack.place.node(node).join(names::pod_device(&uid, volume));
            if count > 0 {
                life.has(size).await?;
                ensure!(device_bytes(&device)? == bytes(size), "the device is not {size}");
            }
            ensure!(life.ask(in_use).await?.is_ok(), "no growth to {in_use} in use");
            life.has(in_use).await?;
            ensure!(device_bytes(&device)? == bytes(in_use), "the device is not {in_use}");
            life.stop(&format!("user-{count}")).await?;
        }
        life.end().await?;
        all_over(api).await?;
        leftovers::none(&root).await?;
        stack.all_run()?;
        stack.stop().await
    })
}

fn device_bytes(path: &Path) -> anyhow::Result<u64> {
    let mut device = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    device.seek(SeekFrom::End(0)).with_context(|| format!("cannot measure {}", path.display()))
}
