//! For how many pods of a node a volume is: one alone, or several.

use std::sync::Arc;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_mount::{Counting, LinuxMounter, Stop};
use tonic::Code;

use crate::world::{Answer, Client, Staged, refused, test};

const SEVERAL: [AccessMode; 2] = [AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter];

#[test]
fn a_single_writer_volume_is_published_once() {
    test(async |world| {
        let client = world.node("a").await;
        let staged = client.staged("v", "a").await;
        let alone = AccessMode::SingleNodeSingleWriter;
        for _ in 0..2 {
            client.publish_as(&staged, "one", alone).await.unwrap();
        }
        for mode in SEVERAL.into_iter().chain([alone]) {
            let second = client.publish_as(&staged, "two", mode).await;
            assert_eq!(refused(second, &["single writer", "pods/one"]), Code::FailedPrecondition, "{mode:?}");
            assert!(!client.target("two").try_exists().unwrap());
        }
        for mode in SEVERAL {
            let differently = client.publish_as(&staged, "one", mode).await;
            assert_eq!(refused(differently, &["for a single writer", "unpublish"]), Code::AlreadyExists, "{mode:?}");
        }
        // Of a pod that never had it: the one that has it stays the only one.
        client.unpublish(&staged.0, "two").await.unwrap();
        assert_eq!(client.publish_as(&staged, "two", alone).await.unwrap_err().code(), Code::FailedPrecondition);
        client.unpublish(&staged.0, "one").await.unwrap();
        client.publish_as(&staged, "two", alone).await.unwrap();
        client.unpublish(&staged.0, "two").await.unwrap();
        client.remove(&staged.0).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_volume_of_several_writers_does_not_become_one_pods_alone() {
    test(async |world| {
        let client = world.node("a").await;
        let staged = client.staged("v", "a").await;
        for pod in ["one", "two"] {
            client.publish_as(&staged, pod, AccessMode::SingleNodeMultiWriter).await.unwrap();
        }
        // The same to this driver, so it is no conflict.
        client.publish_as(&staged, "one", AccessMode::SingleNodeWriter).await.unwrap();
        let alone = AccessMode::SingleNodeSingleWriter;
        let differently = client.publish_as(&staged, "one", alone).await;
        assert_eq!(refused(differently, &["for several writers"]), Code::AlreadyExists);
        client.unpublish(&staged.0, "one").await.unwrap();
        assert_eq!(refused(client.publish_as(&staged, "one", alone).await, &["pods/two"]), Code::FailedPrecondition);
        client.unpublish(&staged.0, "two").await.unwrap();
        client.publish_as(&staged, "one", alone).await.unwrap();
        client.unpublish(&staged.0, "one").await.unwrap();
        client.remove(&staged.0).await;
    });
}

/// One pod has the volume alone and gives it back.
async fn use_alone(client: &Client, staged: &Staged) -> Answer<()> {
    client.publish_as(staged, "one", AccessMode::SingleNodeSingleWriter).await?;
    client.unpublish(&staged.0, "one").await
}

#[test]
fn a_driver_killed_while_one_pod_has_a_volume_alone_lets_the_next_pod_in_only_after_it() {
    test(async |world| {
        let client = world.node("a").await;
        let staged = client.staged("v", "a").await;
        let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        use_alone(&world.node_on("a", counting.clone()), &staged).await.unwrap();
        let changes = counting.changes();
        let at_all = (1..=changes.len() as u64).flat_map(|at| [Stop::Before(at), Stop::After(at)]);
        for (stop, next) in at_all.flat_map(|stop| SEVERAL.map(|mode| (stop, mode))) {
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
            use_alone(&world.node_on("a", dying.clone()), &staged).await.unwrap_err();
            assert!(dying.is_dead());
            let client = world.node("a").await;
            let has_it = world.mount_at(&client.target("one")).is_some();
            let second = client.publish_as(&staged, "two", next).await;
            assert_eq!(second.is_err(), has_it, "{stop:?} {next:?}: {second:?}");
            client.unpublish(&staged.0, "one").await.unwrap();
            client.publish_as(&staged, "two", next).await.unwrap();
            client.publish_as(&staged, "three", next).await.unwrap();
            for pod in ["two", "three"] {
                client.unpublish(&staged.0, pod).await.unwrap();
            }
            use_alone(&client, &staged).await.unwrap();
        }
        client.remove(&staged.0).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_mark_that_a_kill_left_goes_with_the_staging() {
    test(async |world| {
        let client = world.node("a").await;
        let staged = client.staged("v", "a").await;
        // The mark is the first change but one: before it comes the target's directory.
        let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(2)));
        use_alone(&world.node_on("a", dying.clone()), &staged).await.unwrap_err();
        assert!(dying.changes()[1].contains("alone.a"), "{:?}", dying.changes());
        client.unpublish(&staged.0, "one").await.unwrap();
        client.unstage(&staged.0).await.unwrap();
        assert!(!world.files().iter().any(|name| name.contains("alone")), "{:?}", world.files());
        client.remove(&staged.0).await;
    });
}
