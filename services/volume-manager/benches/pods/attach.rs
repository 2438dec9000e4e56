//! What the attach-detach controller and the attacher say once a node wants a volume, said at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use stowage_model::VolumeAttachment;
use stowage_model::names;
use stowage_model::node::Node;
use stowage_model::object::{Key, kinds};
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::driver::DRIVER;
use crate::volumes::handle;
use crate::world::{World, watch};

/// The VolumeAttachments of the volumes with these numbers, attached.
pub async fn prepare(world: &World, numbers: std::ops::Range<usize>) {
    World::each(numbers, |n| async move {
        let spec =
            json!({ "attacher": DRIVER, "nodeName": "node", "source": { "persistentVolumeName": format!("v{n}") } });
        let attachment = json!({ "metadata": { "name": names::attachment(&handle(n), DRIVER, "node") }, "spec": spec });
        let made = world.user.create_raw(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
        let made: VolumeAttachment = serde_json::from_value(made).unwrap();
        let attached = Patch::Merge(json!({ "status": { "attached": true } }));
        let target = Target::any_version(&made.meta);
        world.user.patch(&Cache::<VolumeAttachment>::new(), &target, Part::Status, attached).await.unwrap();
    })
    .await;
}

/// Lists as attached what the Node says is in use, for ever.
pub async fn attach(user: Api) {
    let (nodes, _fed) = watch::<Node>(&user).await;
    let (sender, mut changes) = tokio::sync::watch::channel(());
    nodes.on_change(move |_| sender.send_replace(()));
    let key = Key::cluster("node");
    loop {
        if let Some(node) = nodes.get(&key) {
            let wanted: BTreeSet<String> = node.status.volumes_in_use.iter().map(ToString::to_string).collect();
            let listed = node.status.volumes_attached.iter().map(|volume| volume.name.to_string()).collect();
            if wanted != listed {
                let attached: Vec<Value> =
                    wanted.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
                let patch = Patch::Merge(json!({ "status": { "volumesAttached": attached } }));
                user.patch(&nodes, &Target::any_version(&node.meta), Part::Status, patch).await.unwrap();
                continue;
            }
        }
        changes.changed().await.unwrap();
    }
}
