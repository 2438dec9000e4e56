use std::fs;

use nix::mount::{MsFlags, mount};
use stowage_csi::v1::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use tonic::Code;

use crate::world::{make_read_only, refused, request, test, unmount};

#[test]
fn the_plugin_tells_its_name_version_and_services() {
    test(async |world| {
        let client = world.node("a").await;
        let info = client.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.name, "shared.csi.stowage.dev");
        assert!(!info.vendor_version.is_empty());
        let services = client.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        assert_eq!(services.into_inner().capabilities.len(), 4, "controller, groups, snapshot metadata, expansion");
    });
}

#[test]
fn a_driver_is_ready_once_its_pool_is_there() {
    test(async |world| {
        fs::remove_dir(world.pool()).unwrap();
        let client = world.node_on("a", std::sync::Arc::new(stowage_mount::LinuxMounter));
        let probe = async || client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe().await, &["\"main\"", "create or mount it"]), Code::FailedPrecondition);
        fs::create_dir(world.pool()).unwrap();
        assert_eq!(probe().await.unwrap().into_inner().ready, Some(true));
    });
}

#[test]
fn a_pool_that_was_seen_and_is_gone_is_lost_and_not_begun_again() {
    test(async |world| {
        let client = world.node("a").await;
        fs::rename(world.pool(), world.root.join("away")).unwrap();
        fs::create_dir(world.pool()).unwrap();
        let probe = client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe, &["lost", "still mounted?"]), Code::FailedPrecondition);
        assert_eq!(refused(client.create(request("v")).await, &["lost"]), Code::Unavailable);
        assert_eq!(fs::read_dir(world.pool()).unwrap().count(), 0);
    });
}

#[test]
fn a_pool_whose_disk_is_not_mounted_after_a_restart_is_lost_and_not_begun_again() {
    test(async |world| {
        let (pool, disk) = (world.pool(), world.root.join("disk"));
        fs::create_dir(&disk).unwrap();
        let insert = || mount(Some(&disk), &pool, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        insert();
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        client.unstage(&volume).await.unwrap();
        drop(client);
        unmount(&pool);

        let client = world.node_on("a", std::sync::Arc::new(stowage_mount::LinuxMounter));
        let probe = client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe, &["lost", "still mounted?", "state/a/main.pool"]), Code::FailedPrecondition);
        assert_eq!(client.delete(&volume).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(client.stage(&volume, &context).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(client.create(request("w")).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(fs::read_dir(&pool).unwrap().count(), 0, "something was made under the mount point");

        insert();
        client.stage(&volume, &context).await.unwrap();
        client.remove(&volume).await;
        unmount(&pool);
        assert_eq!(client.create(request("anew")).await.unwrap_err().code(), Code::Unavailable);
        // The way out that the refusal names.
        fs::remove_file(world.state("a").join("main.pool")).unwrap();
        client.create(request("anew")).await.unwrap();
        assert!(world.state("a").join("main.pool").try_exists().unwrap(), "and from now on that one counts");
    });
}

#[test]
fn a_read_only_pool_is_not_ready() {
    test(async |world| {
        let client = world.node("a").await;
        let pool = world.pool();
        make_read_only(&pool);
        let probe = client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe, &["read-only", "remount it writable"]), Code::FailedPrecondition);
        assert_eq!(refused(client.create(request("v")).await, &["read-only"]), Code::Unavailable);
        unmount(&pool);
    });
}

#[test]
fn a_driver_that_may_not_begin_a_pool_waits_for_somebody_who_does() {
    test(async |world| {
        let options = node_plugin::Options { prepare_pools: false, ..world.options("a") };
        let client = world.start(options, std::sync::Arc::new(stowage_mount::LinuxMounter));
        let probe = async || client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe().await, &["is not there"]), Code::FailedPrecondition);
        assert_eq!(client.create(request("v")).await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(fs::read_dir(world.pool()).unwrap().count(), 0);
        world.node("b").await;
        assert_eq!(probe().await.unwrap().into_inner().ready, Some(true));
        client.create(request("v")).await.unwrap();
    });
}
