//! Several pools, some of which are away.

use std::collections::BTreeMap;
use std::fs;

use node_plugin::Options;
use node_plugin::args::PoolOption;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use tonic::Code;

use crate::world::{Answer, Client, MIB, SIZE, World, capability, map, refused, request_with, test, test_on, text};

/// A pool `main` that is there, and `late`, which is not.
fn options(world: &World) -> Options {
    let mut options = world.options("a");
    options.pools.push(PoolOption { name: "late".into(), path: world.root.join("late") });
    options
}

async fn capacity(client: &Client, parameters: &[(&str, &str)]) -> Answer<i64> {
    let request = GetCapacityRequest { parameters: map(parameters), ..Default::default() };
    Ok(client.controller().get_capacity(request).await?.into_inner().available_capacity)
}

#[test]
fn the_room_of_a_class_is_that_of_its_pool_and_an_empty_request_asks_for_all_there_is() {
    test(async |world| {
        let client = world.introduced(options(&world)).await;
        let main = capacity(&client, &[("pool", "main")]).await.unwrap();
        assert!(main > SIZE);
        // The machine's disk is others', too.
        let about = |bytes: i64| (bytes - main).abs() < main / 10;
        assert!(about(capacity(&client, &[]).await.unwrap()));
        // An error would draw claims to a node that cannot serve them.
        assert_eq!(capacity(&client, &[("pool", "late")]).await.unwrap(), 0);
        let none = capacity(&client, &[("thin", "true")]).await;
        assert_eq!(refused(none, &["choose one of: main, late"]), Code::InvalidArgument);
        fs::create_dir(world.root.join("late")).unwrap();
        // One disk is counted once, however many pools are on it.
        assert!(about(capacity(&client, &[("pool", "late")]).await.unwrap()));
        assert!(about(capacity(&client, &[]).await.unwrap()));
    });
}

#[test]
fn a_pool_that_is_away_keeps_a_node_from_no_other_and_knows_it_when_it_has_come() {
    test(async |world| {
        let client = world.introduced(options(&world)).await;
        let volume = client.create(request_with("v", &[("pool", "main")])).await.unwrap().volume_id;
        client.attach(&volume, "a").await.unwrap();
        fs::create_dir(world.root.join("late")).unwrap();
        client.identity().probe(ProbeRequest {}).await.unwrap();
        let volume = client.create(request_with("w", &[("pool", "late")])).await.unwrap().volume_id;
        client.attach(&volume, "a").await.unwrap();

        let nowhere = PoolOption { name: "never".into(), path: world.root.join("never") };
        let alone = world.start(
            Options { pools: vec![nowhere], ..world.options("b") },
            std::sync::Arc::new(stowage_mount::LinuxMounter),
        );
        assert_eq!(refused(alone.info().await, &["\"never\""]), Code::Unavailable);
    });
}

#[test]
fn an_inline_volume_goes_while_another_pool_is_away() {
    test(async |world| {
        let client = world.introduced(options(&world)).await;
        let volume_id = format!("csi-{}", "a".repeat(64));
        let attributes = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "32Mi"), ("pool", "main")];
        let request = NodePublishVolumeRequest {
            target_path: text(&client.target("pod")),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            volume_context: map(&attributes),
            ..client.publish_request(&volume_id, &BTreeMap::new(), "pod")
        };
        client.node().node_publish_volume(request).await.unwrap();
        client.unpublish(&volume_id, "pod").await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
        // It might be in the pool that is away.
        assert_eq!(refused(client.unpublish(&volume_id, "pod").await, &["\"late\""]), Code::Unavailable);
        fs::create_dir(world.root.join("late")).unwrap();
        client.unpublish(&volume_id, "pod").await.unwrap();
    });
}

#[test]
fn pools_on_one_file_system_do_not_promise_its_space_twice() {
    test_on("xfs", 512 * MIB, async |world| {
        let pool = |name: &str| {
            let path = world.pool().join(name);
            fs::create_dir(&path).unwrap();
            PoolOption { name: name.into(), path }
        };
        let client = world.introduced(Options { pools: vec![pool("main"), pool("other")], ..world.options("a") }).await;
        let all = capacity(&client, &[]).await.unwrap();
        let of = async |name: &str, bytes: i64| {
            let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
            let request = request_with(&format!("{name} {bytes}"), &[("pool", name)]);
            client.create(CreateVolumeRequest { capacity_range, ..request }).await
        };
        let volume = of("main", all / 2).await.unwrap().volume_id;
        let (main, other) =
            (capacity(&client, &[("pool", "main")]).await, capacity(&client, &[("pool", "other")]).await);
        let (main, other) = (main.unwrap(), other.unwrap());
        // xfs frees what was replaced in its own time.
        assert!((main - other).abs() < MIB && main < all / 2 + MIB, "{main} and {other} of {all}");
        assert_eq!(refused(of("other", all * 3 / 4).await, &["--overcommit"]), Code::ResourceExhausted);
        client.delete(&volume).await.unwrap();
        of("other", all * 3 / 4).await.unwrap();
    });
}
