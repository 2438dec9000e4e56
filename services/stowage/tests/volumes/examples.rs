//! Each example is what it says it is.

use std::fs;
use std::path::PathBuf;

use crate::world::{examples, on_a_stack};

/// Sources that no node of ours mounts, and what their pods are told.
fn refusal(name: &str) -> Option<&'static str> {
    match name {
        "iscsi" => Some("iscsi.csi.k8s.io"),
        "fc" => Some("CSI driver"),
        "git-repo" => Some("init container"),
        // No server is there, and perhaps no kernel for it.
        "nfs" => Some("mount 127.0.0.1:/exports/share"),
        _ => None,
    }
}

#[test]
fn each_example_runs_or_is_refused_with_the_way_out_and_leaves_nothing() {
    on_a_stack(async |world| {
        world.prepare();
        let files = fs::read_dir(examples().join("volumes")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
        files.sort();
        assert!(files.len() >= 18, "{files:?}");
        for file in files {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let objects = world.read(&file);
            world.apply(&objects).await;
            match refusal(&name) {
                Some(says) => world.is_refused(&name, says).await,
                None => {
                    let dir = world.runs(&name).await;
                    let has_token = fs::read_dir(dir.join("volumes/kubernetes.io~projected"))
                        .unwrap()
                        .any(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("kube-api-access-"));
                    assert!(has_token, "{name} has no token");
                }
            }
            world.delete(&objects).await;
        }
        assert_eq!(fs::read_to_string(world.root.join("disk-1/kept")).unwrap(), "kept");
        let pods = world.root.join("nodes").join(crate::world::NODE).join("pods");
        assert_eq!(fs::read_dir(pods).unwrap().count(), 0, "directories of pods are left");
    });
}
