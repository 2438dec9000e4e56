use std::fs;

use nix::mount::{MsFlags, mount, umount};
use stowage_csi::v1::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use tonic::Code;

use crate::world::{refused, request, test};

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
fn a_read_only_pool_is_not_ready() {
    test(async |world| {
        let client = world.node("a").await;
        let pool = world.pool();
        mount(Some(&pool), &pool, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &pool, None::<&str>, read_only, None::<&str>).unwrap();
        let probe = client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe, &["read-only", "remount it writable"]), Code::FailedPrecondition);
        assert_eq!(refused(client.create(request("v")).await, &["read-only"]), Code::Unavailable);
        umount(&pool).unwrap();
    });
}
