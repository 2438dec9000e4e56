//! Carries out one action of the lane.

use serde_json::{Value, json};

use stowage_csi::code::Family;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{GetCapacityRequest, Topology};
use stowage_model::class::StorageClass;
use stowage_model::labels::{CAPACITY_DRIVER, CAPACITY_MANAGER};
use stowage_model::quantity::Quantity;
use stowage_model::storage_capacity::StorageCapacity;
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::caller::{NO_LEASE, Rpc};
use stowage_runtime::engine::Error;

use super::book::Answer;
use super::decide::Action;
use super::item::Item;
use super::lane::{Labels, Lane};

const GET_CAPACITY: Rpc = Rpc { path: "/csi.v1.Controller/GetCapacity", family: Family::Read };

/// The driver did not say how much room there is.
#[derive(Debug, thiserror::Error)]
#[error("GetCapacity of class {item}: {message} ({code}); what was published stays, and the driver is asked again")]
struct Unanswered {
    item: Item,
    code: String,
    message: String,
}

impl Lane {
    pub async fn carry_out(&self, action: Action) -> Result<(), Error> {
        match action {
            Action::Ask { item, class } => self.ask(item, &class).await,
            Action::Create { item, answer } => self.create(&item, &answer).await,
            Action::Update { object, answer } => self.update(&object, &answer).await,
            Action::Delete(object) => {
                let (api, target) = (&self.caller.context().api, Target::any_version(&object.meta));
                let deleted = api.delete(&self.capacities, &target, Deletion::default()).await;
                deleted.map_err(Error::write("delete a CSIStorageCapacity"))
            }
        }
    }

    /// A question changes nothing in the driver, so the round itself waits for the answer: there are never more questions
    /// than `--capacity-threads`, and a shutdown drops them.
    async fn ask(&self, item: Item, class: &StorageClass) -> Result<(), Error> {
        self.shared.book().asking(&item);
        let request = GetCapacityRequest {
            // As the original: room is taken not to depend on how volumes are used, and the class is passed on whole.
            volume_capabilities: Vec::new(),
            parameters: class.parameters.clone(),
            accessible_topology: Some(Topology { segments: (*item.place).clone() }),
        };
        let call = self.caller.call(GET_CAPACITY, request, async |channel, request| {
            ControllerClient::new(channel).get_capacity(request).await
        });
        let context = self.caller.context();
        let Some(answer) = context.unless_shutdown(call).await else { return Ok(()) };
        match answer {
            Ok(answer) => {
                let answer = Answer {
                    // Less than nothing is a driver that counts what it has promised; the API takes no such number.
                    available: answer.available_capacity.max(0),
                    largest: answer.maximum_volume_size.map(|bytes| bytes.max(0)),
                    at: context.clock.now(),
                };
                self.shared.book().answered(&item, answer);
                Ok(())
            }
            Err(refused) => {
                self.shared.book().unanswered(&item);
                let failure = refused.failure();
                if failure.code == NO_LEASE {
                    return Err(Error::Deposed);
                }
                Err(Error::other(Unanswered { item, code: failure.code, message: failure.message }))
            }
        }
    }

    async fn create(&self, item: &Item, answer: &Answer) -> Result<(), Error> {
        let api = &self.caller.context().api;
        let created = api.create(&self.capacities, self.body(item, answer)).await;
        if created.as_ref().is_err_and(|error| error.is_unanswered()) {
            // The server chose its name, if it is there.
            let Labels { driver, managed_by } = &self.labels;
            let query = format!("labelSelector={CAPACITY_DRIVER}%3D{driver}%2C{CAPACITY_MANAGER}%3D{managed_by}");
            let listed = api.list::<StorageCapacity>(self.namespace(), &query).await;
            let listed = listed.map_err(Error::read("the CSIStorageCapacities"))?;
            listed.into_iter().for_each(|object| {
                self.capacities.observe(object);
            });
        }
        created.map(drop).map_err(Error::write("create a CSIStorageCapacity"))
    }

    pub fn body(&self, item: &Item, answer: &Answer) -> Value {
        let Labels { driver, managed_by } = &self.labels;
        let mut body = json!({
            "metadata": {
                "namespace": self.namespace(),
                "generateName": "csisc-",
                "labels": { CAPACITY_DRIVER: driver, CAPACITY_MANAGER: managed_by },
            },
            "storageClassName": &*item.class,
            "nodeTopology": { "matchLabels": &*item.place },
            "capacity": size(answer.available),
        });
        if let Some(owner) = &self.owner {
            body["metadata"]["ownerReferences"] = json!([owner.reference()]);
        }
        if let Some(largest) = answer.largest {
            body["maximumVolumeSize"] = size(largest);
        }
        body
    }

    async fn update(&self, object: &StorageCapacity, answer: &Answer) -> Result<(), Error> {
        let set = |path: &str, value: Value| json!({ "op": "add", "path": path, "value": value });
        let mut operations = vec![set("/capacity", size(answer.available))];
        match (answer.largest, object.maximum_volume_size) {
            (Some(largest), _) => operations.push(set("/maximumVolumeSize", size(largest))),
            (None, Some(_)) => operations.push(json!({ "op": "remove", "path": "/maximumVolumeSize" })),
            (None, None) => {}
        }
        operations.extend(self.own(object));
        let (api, target) = (&self.caller.context().api, Target::exact(&object.meta));
        let patched = api.patch(&self.capacities, &target, Part::Main, Patch::Json(operations)).await;
        patched.map(drop).map_err(Error::write("update a CSIStorageCapacity"))
    }

    /// Makes our owner the object's: an object has one managing owner, so one of an earlier deployment is replaced.
    fn own(&self, object: &StorageCapacity) -> Option<Value> {
        let owner = self.owner.as_ref()?;
        let owners = &object.meta.owner_references;
        let (op, path, value) = match owners.iter().position(|of| of.controller) {
            Some(at) if owners[at].uid == owner.uid => return None,
            Some(at) => ("replace", format!("/metadata/ownerReferences/{at}"), owner.reference()),
            None if owners.is_empty() => ("add", "/metadata/ownerReferences".into(), json!([owner.reference()])),
            None => ("add", "/metadata/ownerReferences/-".into(), owner.reference()),
        };
        Some(json!({ "op": op, "path": path, "value": value }))
    }
}

fn size(bytes: i64) -> Value {
    Quantity::from_bytes(bytes).to_string().into()
}
