//! FlexVolume drivers that come while the service runs, and go.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::stage::{Cluster, Stage};

/// A driver that has nothing to mount: it leaves a file in the directory it is given.
fn install(stage: &Stage) {
    let folder = stage.volume_plugin_dir().join("example~files");
    fs::create_dir_all(&folder).unwrap();
    let script = r#"#!/bin/sh
case "$1" in
init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount) mkdir -p "$2" && printf here > "$2/file" && echo '{"status":"Success"}' ;;
unmount) rm -f "$2/file" && echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' ;;
esac
"#;
    let aside = folder.join(".files");
    fs::write(&aside, script).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(aside, folder.join("files")).unwrap();
}

/// In real time: programs run and directories are watched.
#[tokio::test]
async fn a_pod_waits_for_the_driver_of_its_volume_and_has_it_when_it_comes() {
    let stage = Stage::set_in(Cluster { takes_flex_drivers: true, ..Cluster::default() }).await;
    let node = stage.start();
    let volumes = json!([{ "name": "data", "flexVolume": { "driver": "example/files" } }]);
    stage.create_pod_with("first", volumes.clone()).await;
    stage.event_about("first", "flexVolume").await;
    install(&stage);
    stage.pod_is_running("first").await;
    let dir = stage.root().join("pods").join(stage.uid("first")).join("volumes/example~files/data");
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "here");

    // Found at the next start before anything is looked at, so that the volume can be told and taken down.
    node.crash();
    let _node = stage.start();
    stage.delete_pod("first").await;
    stage.pod_is_gone("first").await;
    stage.dirs_are_gone(&[&dir]).await;

    fs::remove_dir_all(stage.volume_plugin_dir().join("example~files")).unwrap();
    stage.create_pod_with("second", volumes).await;
    stage.event_about("second", "flexVolume").await;
}
