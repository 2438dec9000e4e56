//! The expected writes, written out apart from the code that makes them.

use serde_json::{Value, json};

pub const BBC: &str = "pv.kubernetes.io/bound-by-controller";
pub const BC: &str = "pv.kubernetes.io/bind-completed";
pub const MT: &str = "pv.kubernetes.io/migrated-to";
pub const SP: &str = "volume.kubernetes.io/storage-provisioner";
pub const BETA_SP: &str = "volume.beta.kubernetes.io/storage-provisioner";

pub fn line(path: &str, body: Value) -> String {
    format!("{path} {body}")
}

fn reference() -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "n", "name": "c", "uid": "u" })
}

/// The volume points at claim `c`, with the controller's mark.
pub fn pv_ref_marked(volume: &str) -> String {
    let body = json!({ "metadata": { "annotations": { BBC: "yes" } }, "spec": { "claimRef": reference() } });
    line(&format!("pv/{volume}"), body)
}

/// The volume points at claim `c`, without the mark.
pub fn pv_ref(volume: &str) -> String {
    line(&format!("pv/{volume}"), json!({ "spec": { "claimRef": reference() } }))
}

pub fn pv_phase(volume: &str, phase: &str) -> String {
    line(&format!("pv/{volume}/status"), json!({ "status": { "phase": phase, "message": null } }))
}

pub fn pv_failed(volume: &str, message: &str) -> String {
    line(&format!("pv/{volume}/status"), json!({ "status": { "phase": "Failed", "message": message } }))
}

pub fn pv_finalizers(volume: &str, list: &[&str]) -> String {
    line(&format!("pv/{volume}"), json!({ "metadata": { "finalizers": list } }))
}

/// A marked volume loses its pointer and the mark.
pub fn pv_free(volume: &str) -> String {
    let body = json!({ "metadata": { "annotations": { BBC: null } }, "spec": { "claimRef": null } });
    line(&format!("pv/{volume}"), body)
}

/// An unmarked volume only loses the uid.
pub fn pv_blank(volume: &str) -> String {
    line(&format!("pv/{volume}"), json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } }))
}

pub fn pvc_done_marked(volume: &str) -> String {
    let body = json!({ "metadata": { "annotations": { BC: "yes", BBC: "yes" } }, "spec": { "volumeName": volume } });
    line("pvc/c", body)
}

pub fn pvc_done(volume: &str) -> String {
    line("pvc/c", json!({ "metadata": { "annotations": { BC: "yes" } }, "spec": { "volumeName": volume } }))
}

pub fn pvc_bound(size: &str) -> String {
    let modes = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    let body = json!({ "status": { "phase": "Bound", "accessModes": modes, "capacity": { "storage": size } } });
    line("pvc/c/status", body)
}

/// A bound claim's status becomes this phase and loses all else.
pub fn pvc_cleared(phase: &str) -> String {
    line("pvc/c/status", json!({ "status": { "phase": phase, "accessModes": null, "capacity": null } }))
}

pub fn pvc_asks(provisioner: &str) -> String {
    line("pvc/c", json!({ "metadata": { "annotations": { SP: provisioner, BETA_SP: provisioner } } }))
}

pub fn pvc_class(class: &str) -> String {
    line("pvc/c", json!({ "spec": { "storageClassName": class } }))
}

pub fn text(line: &str) -> String {
    line.to_owned()
}

/// All four writes of a binding that the controller chose.
pub fn chosen(volume: &str, size: &str) -> Vec<String> {
    vec![pv_ref_marked(volume), pv_phase(volume, "Bound"), pvc_done_marked(volume), pvc_bound(size)]
}

/// All four writes of a binding for which the volume was reserved by name.
pub fn reserved(volume: &str, size: &str) -> Vec<String> {
    vec![pv_ref(volume), pv_phase(volume, "Bound"), pvc_done_marked(volume), pvc_bound(size)]
}

/// The writes of a binding for which the volume was reserved by uid.
pub fn provided(volume: &str, size: &str) -> Vec<String> {
    vec![pv_phase(volume, "Bound"), pvc_done_marked(volume), pvc_bound(size)]
}

/// All four writes of a binding for which the claim named the volume.
pub fn named(volume: &str, size: &str) -> Vec<String> {
    vec![pv_ref_marked(volume), pv_phase(volume, "Bound"), pvc_done(volume), pvc_bound(size)]
}
