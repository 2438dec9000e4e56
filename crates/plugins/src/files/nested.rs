//! Directories inside a volume of files to which other volumes of the pod are mounted: nobody could make them later.

use std::path::{Path, PathBuf};

use stowage_model::node_view::{NodeContainer, NodePod};
use stowage_mount::FileKind;

use crate::fault::Fault;
use crate::host::VolumeHost;

/// The places inside a volume, relative to it, that other mounts of the pod's containers need; none is inside another.
pub fn mount_points(volume: &str, pod: &NodePod) -> Vec<String> {
    let mut found: Vec<String> = pod.containers.iter().flat_map(|container| in_container(volume, container)).collect();
    found.sort();
    found.dedup();
    found
}

fn in_container(volume: &str, container: &NodeContainer) -> Vec<String> {
    let mounts = &container.volume_mounts;
    let mut all: Vec<PathBuf> = mounts.iter().map(|mount| clean(&mount.mount_path)).collect();
    all.sort();
    let mut found = Vec::new();
    for own in mounts.iter().filter(|mount| mount.name == volume).map(|mount| clean(&mount.mount_path)) {
        let mut last: Option<&PathBuf> = None;
        for other in all.iter().filter(|other| **other != own && other.starts_with(&own)) {
            if last.is_some_and(|last| other.starts_with(last)) {
                continue;
            }
            last = Some(other);
            let inside = other.strip_prefix(&own).unwrap_or(other);
            found.extend(inside.to_str().map(str::to_owned));
        }
    }
    found
}

/// The path without `.` and `..`, which here lead nowhere but to the container's root.
fn clean(path: &str) -> PathBuf {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    Path::new("/").join(parts.join("/"))
}

/// Makes the directories that are missing. A link in the way is a file of the volume, and stays.
pub async fn make(host: &VolumeHost, dir: &Path, places: &[String]) -> Result<(), Fault> {
    for place in places {
        let mut path = dir.to_owned();
        for (depth, part) in place.split('/').enumerate() {
            // Names that begin so are the writer's own.
            if depth == 0 && part.starts_with("..") {
                break;
            }
            path.push(part);
            let failed = "make a directory that another volume is mounted to";
            match host.mounter.stat(&path).await.map_err(Fault::after(failed))? {
                Some(found) if found.kind == FileKind::Directory => {}
                Some(_) => break,
                None => host.mounter.create_dir_with(&path, 0o755).await.map_err(Fault::after(failed))?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stowage_model::object::Projection as _;

    use super::*;

    fn pod(mounts: &[(&str, &str)]) -> NodePod {
        let mounts: Vec<Value> = mounts.iter().map(|(name, path)| json!({ "name": name, "mountPath": path })).collect();
        let spec = json!({ "containers": [{ "name": "c", "volumeMounts": mounts }] });
        NodePod::read(json!({ "metadata": { "name": "p" }, "spec": spec }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn only_the_first_level_of_what_is_mounted_inside_is_made() {
        let pod = pod(&[
            ("v", "/etc/v/"),
            ("a", "/etc/v/a/b"),
            ("b", "/etc/v/a/b/c"),
            ("c", "/etc/vv"),
            ("d", "/etc/v/a/bc"),
        ]);
        assert_eq!(mount_points("v", &pod), ["a/b", "a/bc"]);
        assert_eq!(mount_points("c", &pod), Vec::<String>::new());
    }

    #[test]
    fn a_path_that_climbs_out_stays_in_the_containers_root() {
        let pod = pod(&[("v", "/../../v"), ("a", "/v/../../v/x/../y")]);
        assert_eq!(mount_points("v", &pod), ["y"]);
    }
}
