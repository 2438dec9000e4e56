//! Fields newer than our types survive every write of every service.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use simulation_suite::block_on;
use simulation_suite::claim_life;
use simulation_suite::life::{Script, play};
use stowage_model::object::{Key, Kind, kinds};
use stowage_testing::World;

const KINDS: [Kind; 7] =
    [kinds::CLAIM, kinds::VOLUME, kinds::POD, kinds::NODE, kinds::VOLUME_ATTACHMENT, kinds::CSI_NODE, kinds::LEASE];

/// A field no type of today knows, at the top; in `spec` most kinds are immutable.
const FIELD: &str = "fieldOfTomorrow";

const OTHERS: &str = "example.com/of-others";

fn key_of(object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    Key::namespaced(text("namespace"), text("name"))
}

/// Plants the field into every new object and looks for it in every later version.
async fn plant(world: World, planted: Arc<Mutex<BTreeSet<String>>>, lost: Arc<Mutex<Vec<String>>>) {
    let status = json!({ "status": { FIELD: [1, 2] } });
    let top = json!({ FIELD: { "answer": 42 }, "metadata": { "annotations": { OTHERS: "kept" } } });
    loop {
        let seen = world.changes().count();
        for kind in KINDS {
            for object in world.admin().list_raw(kind) {
                let name = format!("{} {}", kind.kind, object["metadata"]["uid"]);
                let parts = [
                    ("", &top, object[FIELD] == top[FIELD] && object["metadata"]["annotations"][OTHERS] == "kept"),
                    ("/status", &status, object["status"][FIELD] == status["status"][FIELD]),
                ];
                for (part, body, kept) in parts {
                    if !part.is_empty() && object.get("status").is_none() {
                        continue;
                    }
                    if planted.lock().unwrap().insert(format!("{name}{part}")) {
                        // The object may be gone by now: then there is nothing to look after.
                        let _ = world.admin().patch(kind, &key_of(&object), part, body).await;
                    } else if !kept {
                        lost.lock().unwrap().push(format!("{name}{part}: {object}"));
                    }
                }
            }
        }
        world.changes().beyond(seen).await;
    }
}

#[test]
fn fields_and_annotations_of_others_survive_the_whole_life_of_a_claim() {
    block_on(async {
        let world = World::new(5);
        let (planted, lost) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(Vec::new())));
        let planter = tokio::spawn(plant(world.clone(), Arc::clone(&planted), Arc::clone(&lost)));
        let report = play(&world, &Script::plain(5, claim_life::Kind::WaitForFirstConsumer)).await;
        planter.abort();
        assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
        assert_eq!(*lost.lock().unwrap(), [""; 0]);
        let planted = planted.lock().unwrap();
        for kind in KINDS {
            let prefix = format!("{} ", kind.kind);
            assert!(planted.iter().any(|name| name.starts_with(&prefix)), "no {} was looked after", kind.kind);
        }
    });
}
