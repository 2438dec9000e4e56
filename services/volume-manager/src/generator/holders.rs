//! Who holds what could not be taken away, for the sentence that people read.

use std::path::PathBuf;

use stowage_mount::Held;
use stowage_plugins::plugin::TearDown;
use stowage_plugins::{Certainty, Fault, VolumeSpec};

use crate::controller::Controller;

/// Of so many mounts at most is it asked who holds them: parts of a volume can be many.
const ASKED: usize = 4;

/// What a driver says that was not asked to the end; who holds the mount has nothing to do with it.
const UNRELATED: [&str; 5] = ["Unavailable", "DeadlineExceeded", "Canceled", "Aborted", "Unimplemented"];

impl Controller {
    /// The places where a pod's volume, or a part of it, may still be mounted.
    pub(super) fn pod_places(&self, uid: &str, spec: &VolumeSpec) -> Vec<PathBuf> {
        let request = TearDown { name: &spec.name, pod_uid: uid };
        let plugin = self.plugin_of(spec).ok();
        let unmounter = plugin.as_ref().and_then(|plugin| plugin.unmounter());
        let mut places = unmounter.map(|by| by.mount_points(&self.host, &request)).unwrap_or_default();
        places.push(self.host.layout.volume_sub_paths(uid, &spec.name));
        places
    }

    /// The same fault; where something is still mounted at these places and somebody holds it, it says who.
    pub(super) async fn with_holders(&self, fault: Fault, places: Vec<PathBuf>) -> Fault {
        let is_related = fault.certainty != Certainty::Transient && !UNRELATED.contains(&fault.code.as_str());
        if !is_related || fault.message.contains("held by") {
            return fault;
        }
        let mounter = &self.host.mounter;
        // What cannot be found out is left out: the fault itself is what matters.
        let Ok(table) = mounter.mounts().await else { return fault };
        let mut held = Vec::new();
        for place in places {
            let Ok(Some(place)) = mounter.resolve(&place).await else { continue };
            held.extend(
                table.iter().filter(|mount| mount.target.starts_with(&place)).map(|mount| mount.target.clone()),
            );
        }
        let mut message = fault.message.clone();
        for target in held.into_iter().take(ASKED) {
            match mounter.holders(&Held::Mount(target.clone())).await {
                Ok(holders) if !holders.found.is_empty() => {
                    message.push_str(&format!("; {} is held by {holders}", target.display()));
                }
                _ => {}
            }
        }
        Fault { message, ..fault }
    }
}
