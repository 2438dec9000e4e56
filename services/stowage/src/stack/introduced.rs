//! The objects that a stack makes for its driver, and those of an earlier run on the same root.

use serde_json::{Map, Value, json};

use stowage_model::Kind;
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_runtime::api::Api;

/// Creates an object. One that is there from an earlier run is brought up to date where that is ours to do.
pub async fn create(api: &Api, kind: Kind, wanted: Value) -> anyhow::Result<()> {
    match api.create_raw(kind, wanted.clone()).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(error.into()),
    }
    if kind != kinds::STORAGE_CLASS && kind != kinds::CSI_DRIVER {
        return Ok(());
    }
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let id = ObjectId { kind, key: Key::cluster(name) };
    let Some(found) = api.get_raw(&id).await? else { return Ok(()) };
    let Change { patch, left } = change(kind, &found, &wanted);
    let mut left = left;
    if patch != json!({}) {
        match api.patch_raw(&id, patch.clone()).await {
            Ok(_) => tracing::info!(kind = kind.kind, name, %patch, "brought an object of an earlier run up to date"),
            Err(error) if error.is_invalid() => left.push(patch.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    if !left.is_empty() {
        let (kind, differs) = (kind.kind, left.join("; "));
        tracing::warn!(
            kind,
            name,
            differs,
            "an object of an earlier run is not as this driver needs it and was left: delete it with kubectl and start again"
        );
    }
    Ok(())
}

/// What a CSIDriver says once and for all, as the API server has it.
const FIXED: [&str; 2] = ["attachRequired", "volumeLifecycleModes"];

/// What becomes of an object that is there.
#[derive(Debug, PartialEq)]
struct Change {
    patch: Value,
    /// What somebody may have meant so, or what cannot be changed.
    left: Vec<String>,
}

/// Our own CSIDriver says what the driver that runs now can do: all of its spec is ours. Of somebody else's driver we know only
/// what it answers, and its vendor's object knows better. A class is people's too, who may have changed it: only what is
/// missing is added.
fn change(kind: Kind, found: &Value, wanted: &Value) -> Change {
    let is_driver = kind == kinds::CSI_DRIVER;
    let is_own = wanted["metadata"]["name"] == node_plugin::args::DRIVER_NAME;
    let is_ours = |field: &str| is_driver && !FIXED.contains(&field) && (is_own || field == "storageCapacity");
    let (found, wanted) = if is_driver { (&found["spec"], &wanted["spec"]) } else { (found, wanted) };
    let (mut patch, mut left) = (Map::new(), Vec::new());
    for (field, value) in wanted.as_object().into_iter().flatten().filter(|(field, _)| *field != "metadata") {
        match &found[field] {
            there if there == value => {}
            // Absent and false are the same of a switch.
            Value::Null if *value == false => {}
            Value::Null => drop(patch.insert(field.clone(), value.clone())),
            _ if is_ours(field) => drop(patch.insert(field.clone(), value.clone())),
            there => left.push(format!("{field} is {there}, not {value}")),
        }
    }
    let patch = match (is_driver, patch.is_empty()) {
        (_, true) => json!({}),
        (true, false) => json!({ "spec": patch }),
        (false, false) => patch.into(),
    };
    Change { patch, left }
}

#[cfg(test)]
mod tests {
    use stowage_apiserver::{Options, Server};

    use super::*;
    use crate::objects;

    fn world() -> Api {
        Api::new(kube::Client::new(Server::in_memory(Options::system()).service(), "default"))
    }

    async fn found(api: &Api, kind: Kind, name: &str) -> Value {
        api.get_raw(&ObjectId { kind, key: Key::cluster(name) }).await.unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_class_of_an_old_root_that_does_not_say_whether_claims_may_grow_says_so_afterwards() {
        let api = world();
        let wanted = objects::class("stowage", "d", true, "Immediate", true);
        let mut old = wanted.clone();
        old.as_object_mut().unwrap().remove("allowVolumeExpansion");
        create(&api, kinds::STORAGE_CLASS, old).await.unwrap();
        create(&api, kinds::STORAGE_CLASS, wanted).await.unwrap();
        assert_eq!(found(&api, kinds::STORAGE_CLASS, "stowage").await["allowVolumeExpansion"], true);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_user_has_said_in_a_class_is_left_and_named() {
        let wanted = objects::class("stowage", "d", true, "Immediate", true);
        let mut changed = wanted.clone();
        changed["allowVolumeExpansion"] = false.into();
        changed["volumeBindingMode"] = "WaitForFirstConsumer".into();
        let Change { patch, left } = change(kinds::STORAGE_CLASS, &changed, &wanted);
        assert_eq!(patch, json!({}));
        assert!(left.contains(&"allowVolumeExpansion is false, not true".to_owned()), "{left:?}");
        let api = world();
        create(&api, kinds::STORAGE_CLASS, changed).await.unwrap();
        create(&api, kinds::STORAGE_CLASS, wanted).await.unwrap();
        assert_eq!(found(&api, kinds::STORAGE_CLASS, "stowage").await["allowVolumeExpansion"], false);
    }

    #[tokio::test(start_paused = true)]
    async fn a_csi_driver_of_an_old_root_says_what_the_driver_of_today_needs() {
        let (api, name) = (world(), node_plugin::args::DRIVER_NAME);
        let wanted = objects::own_csi_driver(name, true, true);
        let mut old = wanted.clone();
        old["spec"].as_object_mut().unwrap().remove("fsGroupPolicy");
        old["spec"]["storageCapacity"] = false.into();
        create(&api, kinds::CSI_DRIVER, old).await.unwrap();
        create(&api, kinds::CSI_DRIVER, wanted).await.unwrap();
        let spec = &found(&api, kinds::CSI_DRIVER, name).await["spec"];
        assert_eq!((&spec["fsGroupPolicy"], &spec["storageCapacity"]), (&json!("File"), &json!(true)));
    }

    /// `up` guesses what somebody else's driver wants of the node; its vendor's object knows.
    #[test]
    fn what_a_vendor_says_of_its_driver_is_left_and_named() {
        let vendors = json!({ "spec": { "attachRequired": true, "fsGroupPolicy": "None", "storageCapacity": false } });
        let wanted = |driver: &str| {
            json!({
                "metadata": { "name": driver },
                "spec": { "attachRequired": true, "fsGroupPolicy": "File", "storageCapacity": true },
            })
        };
        let Change { patch, left } = change(kinds::CSI_DRIVER, &vendors, &wanted("vendor.example"));
        assert_eq!(patch, json!({ "spec": { "storageCapacity": true } }));
        assert_eq!(left, ["fsGroupPolicy is \"None\", not \"File\""]);
        let own = change(kinds::CSI_DRIVER, &vendors, &wanted(node_plugin::args::DRIVER_NAME));
        assert_eq!((own.patch["spec"]["fsGroupPolicy"].as_str(), own.left.len()), (Some("File"), 0));
    }
}
