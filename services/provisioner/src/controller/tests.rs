use serde_json::{Value, json};
use tonic::service::Routes;

use stowage_csi::Channel;
use stowage_csi::v1::controller_service_capability::rpc::Type as ControllerCapability;
use stowage_csi::v1::plugin_capability::service::Type as PluginCapability;
use stowage_model::finalizers::{CLONING_PROTECTION, SNAPSHOT_SOURCE_OF_PROVISIONER};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::engine::Controller as _;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Ended, Failure};
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::fixture::{self, DRIVER, claim_with, class_with, volume_with};
use crate::request::{self, Problem};
use crate::source::tests::{content_with, restoring, snapshot_with};

/// A controller that nobody runs: its caches are filled by hand.
struct Still {
    controller: Controller,
    tasks: Tasks,
    now: Timestamp,
}

impl Still {
    async fn new() -> Self {
        Self::of(&[]).await
    }

    async fn of(plugin: &[PluginCapability]) -> Self {
        // No request is ever sent.
        let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("unused"))
        });
        Self::asking(kube::Client::new(service, "default"), plugin).await
    }

    async fn asking(client: kube::Client, plugin: &[PluginCapability]) -> Self {
        let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "test");
        let tasks = Tasks::new();
        let setup = Setup::new(context, tasks.spawner());
        let driver = Driver {
            channel: Channel::in_process(Routes::default()),
            name: DRIVER.into(),
            plugin: plugin.iter().copied().collect(),
            controller: [
                ControllerCapability::CreateDeleteVolume,
                ControllerCapability::PublishUnpublishVolume,
                ControllerCapability::CreateDeleteSnapshot,
                ControllerCapability::CloneVolume,
            ]
            .into(),
        };
        let options = Options { journal: false, ..Options::default() };
        let facts = Arc::new(Facts::of(&driver, &setup.context, options).await.unwrap());
        let provisioner = Arc::new(Csi(driver.caller(setup.context.clone(), facts.options.driver.timeout)));
        let controller = Controller::new(&setup, facts, provisioner, Caches::new(), Signals::default()).await.unwrap();
        controller.caches.classes.observe(class_with(|_| {}));
        Self { controller, tasks, now: setup.context.clock.now() }
    }

    fn add_claim(&self, uid: &str, spoil: impl FnOnce(&mut Value)) {
        self.controller.caches.claims.observe(claim(uid, spoil));
    }

    fn set_class(&self, spoil: impl FnOnce(&mut Value)) {
        self.controller.caches.classes.observe(class_with(|class| {
            class["metadata"]["resourceVersion"] = "4".into();
            spoil(class);
        }));
    }

    fn add_volume(&self, name: &str, phase: &str, spoil: impl FnOnce(&mut Value)) {
        self.controller.caches.volumes.observe_shared(volume_with(|volume| {
            volume["metadata"]["name"] = name.into();
            volume["metadata"]["uid"] = format!("uid-of-{name}").into();
            volume["status"]["phase"] = phase.into();
            spoil(volume);
        }));
    }

    async fn record(&self, uid: &str) {
        let intent =
            request::build(&claim(uid, |_| {}), &class_with(|_| {}), &self.controller.facts, &Cluster::default());
        self.controller.journal().record(Arc::new(intent.unwrap())).await.unwrap();
    }

    fn bid(&self, uid: &str) {
        self.controller.bids.postpone(uid, Backoff::QUEUE, self.now, &self.controller.context().random);
    }

    /// Lets calls end that can.
    async fn settle(&mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(1), self.tasks.supervise()).await;
        assert!(ended.is_err(), "{ended:?}");
    }

    /// As the resync's probe does.
    fn look(&self, key: &Key) -> (Snapshot, Decision) {
        let snapshot = self.controller.gather(key, &Reserved::default(), self.now);
        let decision = Controller::decide(&snapshot, self.now);
        (snapshot, decision)
    }

    /// As the loop does.
    fn think(&self, key: &Key) {
        let (snapshot, decision) = self.look(key);
        self.controller.note(key, &snapshot, &decision, self.now);
    }
}

fn claim(uid: &str, spoil: impl FnOnce(&mut Value)) -> stowage_model::claim::Claim {
    claim_with(|claim| {
        claim["metadata"]["name"] = uid.into();
        claim["metadata"]["uid"] = uid.into();
        spoil(claim);
    })
}

fn failed<R>() -> Ended<R> {
    Ended::Failed(Failure { code: "Internal".into(), message: "no".into() })
}

#[tokio::test(start_paused = true)]
async fn looking_at_claims_and_volumes_in_every_state_changes_nothing() {
    let mut still = Still::new().await;
    still.add_claim("a-new", |_| {});
    still.add_claim("b-called", |_| {});
    still.add_claim("c-refused", |_| {});
    still.add_claim("d-classless", |claim| claim["spec"]["storageClassName"] = "none".into());
    still.add_claim("e-bound", |claim| claim["spec"]["volumeName"] = "pvc-e-bound".into());
    for uid in ["b-called", "c-refused", "f-gone"] {
        still.record(uid).await;
    }
    still.bid("e-bound");
    still.add_claim("g-restored", |claim| claim["spec"]["dataSource"] = restoring());
    still.add_claim("h-cloned", |claim| {
        claim["metadata"]["finalizers"] = json!([CLONING_PROTECTION]);
        claim["spec"]["volumeName"] = "in-use".into();
    });
    still.controller.caches.snapshots.observe(snapshot_with(|snapshot| {
        snapshot["metadata"]["finalizers"] = json!([SNAPSHOT_SOURCE_OF_PROVISIONER]);
    }));
    still.add_volume("in-use", "Bound", |_| {});
    still.add_volume("released", "Released", |_| {});
    still.add_volume("deleted", "Released", |_| {});
    still.add_volume("attached", "Released", |_| {});
    still.add_volume("retained", "Released", |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    });
    let attachment = json!({
        "metadata": { "name": "csi-1", "uid": "attachment-1", "resourceVersion": "5" },
        "spec": { "attacher": DRIVER, "nodeName": "n1", "source": { "persistentVolumeName": "attached" } },
    });
    let controller = &still.controller;
    controller.caches.attachments.observe(serde_json::from_value(attachment).unwrap());
    controller.creations.start("b-called".into(), std::future::pending());
    controller.creations.start("c-refused".into(), async { failed() });
    controller.journal().call_sent("f-gone");
    controller.deletions.start("deleted".into(), async { Ended::Done("uid-of-deleted".into()) });
    still.settle().await;

    engine::assert_quiet(&still.controller, still.now);
    let whys: Vec<Why> = still.controller.keys().iter().map(|key| still.look(key).1.why).collect();
    let expected = [
        Why::Unrecorded,
        Why::Calling,
        Why::BacksOff,
        Why::Problem(Problem::FindClass { class: "none".into() }),
        Why::Bound,
        Why::CallDue,
        Why::Looking,
        Why::Bound,
        Why::Attached,
        Why::Deleted,
        Why::InUse,
        Why::Released,
        Why::FinalizerLeft,
        Why::Unused,
        Why::Looking,
    ];
    assert_eq!(whys, expected);
    assert!(still.controller.bids.get("e-bound").is_some(), "a probe dropped the bid");
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_something_that_is_gone_is_forgotten_by_the_decision_and_not_by_a_probe() {
    let mut still = Still::new().await;
    let (claim, volume) = (Key::Claim("gone".into()), Key::Volume("gone".into()));
    let name = "gone".to_owned();
    still.bid("gone");
    let controller = &still.controller;
    controller.creations.start(name.clone(), async { failed() });
    controller.rooms.start(name.clone(), async { Ended::Done(true) });
    controller.deletions.start(name.clone(), async { failed() });
    for key in [&claim, &volume] {
        controller.told.note(key.clone(), (), Note::normal("Provisioning", "soon"), true, still.now);
    }
    still.settle().await;

    let kept = |still: &Still| {
        let Controller { creations, rooms, deletions, bids, told, .. } = &still.controller;
        let calls =
            [creations.record(&name).is_some(), rooms.record(&name).is_some(), deletions.record(&name).is_some()];
        (calls, bids.get(&name).is_some(), [&claim, &volume].map(|key| !told.known(key).is_empty()))
    };
    for key in [&claim, &volume] {
        assert_eq!(still.look(key).1, Decision::rest(Why::Gone));
    }
    assert_eq!(kept(&still), ([true; 3], true, [true; 2]));
    still.think(&claim);
    assert_eq!(kept(&still), ([false, false, true], false, [false, true]));
    still.think(&volume);
    assert_eq!(kept(&still), ([false; 3], false, [false; 2]));
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_of_a_snapshot_is_forgotten_when_nobody_restores_it_any_more() {
    let mut still = Still::new().await;
    let (origin, seen) = (Origin::snapshot(&ObjectKey::namespaced("shop", "nightly")), content_with(|_| {}));
    let key = Key::Source(origin.clone());
    still.controller.caches.snapshots.observe(snapshot_with(|_| {}));
    still.add_claim("waits", |claim| claim["spec"]["dataSource"] = restoring());
    still.controller.looks.start((*origin.key).clone(), async move { Ended::Done(seen) });
    still.settle().await;
    still.think(&key);
    assert!(still.controller.looks.record(&origin.key).is_some());
    still.add_claim("waits", |claim| {
        claim["spec"]["volumeName"] = "pvc-waits".into();
        claim["metadata"]["resourceVersion"] = "99".into();
    });
    still.think(&key);
    assert!(still.controller.looks.record(&origin.key).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_snapshot_does_not_suit_waits_without_a_clock_where_the_snapshot_is_followed() {
    let still = Still::new().await;
    still
        .controller
        .caches
        .snapshots
        .observe(snapshot_with(|snapshot| snapshot["status"]["restoreSize"] = "2Gi".into()));
    still.add_claim("waits", |claim| claim["spec"]["dataSource"] = restoring());
    let key = Key::Claim("waits".into());
    assert_eq!(still.look(&key).1.why, Why::Looking);
    still.controller.caches.snapshots.set_followed(true);
    let decision = still.look(&key).1;
    assert!(matches!(decision.actions.as_slice(), [Action::Tell(_)]) && decision.wake_at.is_none(), "{decision:?}");
}

/// Sixteen of them kept everything else waiting while they looked at a hundred thousand volumes.
#[tokio::test(start_paused = true)]
async fn cleanups_that_wait_for_the_look_at_all_volumes_leave_others_their_turns() {
    type Answer = Result<http::Response<kube::client::Body>, std::io::Error>;
    let service =
        tower::service_fn(async |_: http::Request<kube::client::Body>| std::future::pending::<Answer>().await);
    let still = Still::asking(kube::Client::new(service, "default"), &[]).await;
    let clean_up = |number| {
        let action = Action::CleanUp { intent: fixture::intent(), handle: fixture::HANDLE.into() };
        still.controller.carry_out(Key::Claim(format!("gone-{number}")), action)
    };
    let cleanups = futures::future::join_all((0..TURNS).map(clean_up));
    let other = still.controller.carry_out(Key::Claim("other".into()), Action::Forget);
    tokio::select! {
        biased;
        ended = cleanups => panic!("{ended:?}"),
        other = tokio::time::timeout(Duration::from_secs(1), other) => other.expect("a turn").unwrap(),
    }
}

/// Another node's or nobody's: not yet said to be of our driver.
fn waiting_for(claim: &mut Value, namespace: &str) {
    claim["metadata"]["namespace"] = namespace.into();
    claim["metadata"]["annotations"] = json!({});
    claim["spec"]["dataSourceRef"] = restoring();
    claim["spec"]["dataSourceRef"]["namespace"] = "shop".into();
}

fn nightly() -> Key {
    Key::Source(Origin::snapshot(&ObjectKey::namespaced("shop", "nightly")))
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_namespace_holds_a_source_only_with_a_grant() {
    let still = Still::new().await;
    still.controller.caches.snapshots.observe(snapshot_with(|snapshot| {
        snapshot["metadata"]["finalizers"] = json!([SNAPSHOT_SOURCE_OF_PROVISIONER]);
    }));
    still.add_claim("stranger", |claim| waiting_for(claim, "elsewhere"));
    assert_ne!(still.look(&nightly()).1.why, Why::InUse);
    let grant = json!({
        "metadata": { "namespace": "shop", "name": "g", "uid": "g", "resourceVersion": "5" },
        "spec": {
            "from": [{ "group": "", "kind": "PersistentVolumeClaim", "namespace": "elsewhere" }],
            "to": [{ "group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot" }],
        },
    });
    still.controller.caches.grants.observe(serde_json::from_value(grant).unwrap());
    assert_eq!(still.look(&nightly()).1.why, Why::InUse);
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_driver_holds_no_source_and_one_of_an_unknown_class_does() {
    for (class, annotation, holds) in
        [("fast", None, true), ("unknown", None, true), ("foreign", None, false), ("unknown", Some("x.example"), false)]
    {
        let still = Still::new().await;
        still.controller.caches.snapshots.observe(snapshot_with(|snapshot| {
            snapshot["metadata"]["finalizers"] = json!([SNAPSHOT_SOURCE_OF_PROVISIONER]);
        }));
        still.controller.caches.classes.observe(class_with(|class| {
            class["metadata"]["name"] = "foreign".into();
            class["provisioner"] = "x.example".into();
        }));
        still.add_claim("waits", |claim| {
            waiting_for(claim, "shop");
            claim["spec"]["storageClassName"] = class.into();
            if let Some(driver) = annotation {
                claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = driver.into();
            }
        });
        assert_eq!(still.look(&nightly()).1.why == Why::InUse, holds, "{class} {annotation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bid_is_dropped_when_the_claim_has_a_node_or_needs_none_and_kept_while_it_waits() {
    let still = Still::new().await;
    still.add_claim("waits", |_| {});
    still.add_claim("bound", |claim| claim["spec"]["volumeName"] = "pvc-bound".into());
    still.add_claim("placed", |claim| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n1".into();
    });
    for (uid, is_kept) in [("waits", true), ("bound", false), ("placed", false)] {
        still.bid(uid);
        still.think(&Key::Claim(uid.into()));
        assert_eq!(still.controller.bids.get(uid).is_some(), is_kept, "{uid}");
    }
}

/// Nodes were copied for each claim that was looked at, also for those that have their volume.
#[tokio::test(start_paused = true)]
async fn only_claims_that_wait_look_at_nodes_and_share_what_the_first_of_them_saw() {
    const NODES: usize = 300;
    let still = Still::of(&[PluginCapability::VolumeAccessibilityConstraints]).await;
    let Caches { nodes, csi_nodes, .. } = &still.controller.caches;
    let labelled = |number: usize, place: &str, revision: usize| {
        let name = format!("n{number:03}");
        let meta = json!({
            "name": name, "uid": name, "resourceVersion": revision.to_string(), "labels": { "node": place },
        });
        nodes.observe(serde_json::from_value(json!({ "metadata": meta })).unwrap());
        let driver = json!({ "name": DRIVER, "nodeID": name, "topologyKeys": ["node"] });
        let body = json!({ "metadata": meta, "spec": { "drivers": [driver] } });
        csi_nodes.observe(serde_json::from_value(body).unwrap());
    };
    (0..NODES).for_each(|number| labelled(number, &number.to_string(), 1));
    let requested = |uid: &str| match still.look(&Key::Claim(uid.into())).1.actions.as_slice() {
        [Action::Record(intent)] => intent.request.places.clone().unwrap().requisite,
        other => panic!("{other:?}"),
    };
    for number in 0..50 {
        still.add_claim(&format!("bound-{number}"), |claim| claim["spec"]["volumeName"] = "pvc-1".into());
        still.add_claim(&format!("waits-{number}"), |_| {});
        still.look(&Key::Claim(format!("bound-{number}")));
    }
    assert_eq!(still.controller.atlas.looks(), 0);
    let first = requested("waits-0");
    assert_eq!(first.all().len(), NODES);
    for number in 0..50 {
        labelled(number, &number.to_string(), 2);
        let places = requested(&format!("waits-{number}"));
        assert!(std::ptr::eq(places.all(), first.all()) && std::ptr::eq(places.parts(), first.parts()));
    }
    assert_eq!(still.controller.atlas.looks(), 1);
    labelled(7, "elsewhere", 3);
    assert!(requested("waits-0").all().iter().any(|place| place["node"] == "elsewhere"));
    assert_eq!(still.controller.atlas.looks(), 2);
}

/// The original counts each try that fails before the driver is asked; ours counted only what the driver refused.
#[tokio::test(start_paused = true)]
async fn every_kind_of_failure_before_the_call_is_counted() {
    type Row = (&'static str, fn(&mut Value), fn(&mut Still));
    let rows: [Row; 6] = [
        ("a class that does not exist", |claim| claim["spec"]["storageClassName"] = "none".into(), |_| {}),
        (
            "a reserved parameter",
            |_| {},
            |still| still.set_class(|class| class["parameters"] = json!({ "csi.storage.k8s.io/unheard": "x" })),
        ),
        (
            "a secret's template",
            |_| {},
            |still| {
                still.set_class(|class| {
                    class["parameters"] = json!({
                        "csi.storage.k8s.io/provisioner-secret-name": "${unheard}",
                        "csi.storage.k8s.io/provisioner-secret-namespace": "default",
                    });
                });
            },
        ),
        (
            "a source that is not ready",
            |claim| claim["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "old" }),
            |_| {},
        ),
        ("no place", |_| {}, |still| Arc::make_mut(&mut still.controller.facts).topology = true),
        (
            "an attributes class that the driver cannot have",
            |claim| claim["spec"]["volumeAttributesClassName"] = "gold".into(),
            |still| {
                let looked_up = LookedUp { name: "gold".into(), class: None };
                still.controller.attributes.start("waits".into(), async { Ended::Done(looked_up) });
            },
        ),
    ];
    for (what, spoil, prepare) in rows {
        let mut still = Still::new().await;
        still.add_claim("waits", spoil);
        prepare(&mut still);
        still.settle().await;
        let key = Key::Claim("waits".into());
        let (_, decision) = still.look(&key);
        assert!(matches!(decision.actions.as_slice(), [Action::Tell(_)]), "{what}: {decision:?}");
        for action in decision.actions {
            still.controller.carry_out(key.clone(), action).await.unwrap();
        }
        let metrics = still.controller.context().metrics.encode();
        let counted = metrics.lines().any(|line| {
            line.starts_with("controller_persistentvolumeclaim_provision_failed_total{") && line.ends_with(" 1")
        });
        assert!(counted, "{what}: {metrics}");
        assert!(still.look(&key).1.actions.is_empty(), "{what}: told and counted once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_deleted_yet_is_counted() {
    for (what, is_attached) in [("still attached", true), ("no capability", false)] {
        let mut still = Still::new().await;
        still.add_volume("old", "Released", |_| {});
        match is_attached {
            true => {
                let attachment = json!({
                    "metadata": { "name": "csi-1", "uid": "attachment-1", "resourceVersion": "5" },
                    "spec": { "attacher": DRIVER, "nodeName": "n1", "source": { "persistentVolumeName": "old" } },
                });
                still.controller.caches.attachments.observe(serde_json::from_value(attachment).unwrap());
            }
            false => Arc::make_mut(&mut still.controller.facts).creates = false,
        }
        let key = Key::Volume("old".into());
        for action in still.look(&key).1.actions {
            still.controller.carry_out(key.clone(), action).await.unwrap();
        }
        let metrics = still.controller.context().metrics.encode();
        assert!(
            metrics.contains("controller_persistentvolume_delete_failed_total{class=\"fast\"} 1"),
            "{what}: {metrics}"
        );
    }
}
