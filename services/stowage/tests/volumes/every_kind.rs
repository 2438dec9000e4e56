//! One pod with a volume of every kind: what a kubelet would make of it, byte for byte, with owners and modes.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde_json::{Value, json};

use stowage_mount::MountTable;

use crate::world::{examples, on_a_stack};

/// Kind, mode, owner and group of a file, as `ls -l` would say them.
fn about(path: &Path) -> (&'static str, u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let kind = match found.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "link",
        kind if kind.is_file() => "file",
        _ => "other",
    };
    (kind, found.mode() & 0o7777, found.uid(), found.gid())
}

fn file_system(path: &Path) -> Option<String> {
    MountTable::read().unwrap().at(path).map(|mount| mount.fs_type.clone())
}

/// The example, and what needs more than it: a local volume, an image, a driver's program.
pub fn objects(mut objects: Vec<Value>, local: Vec<Value>) -> Vec<Value> {
    let pod = objects.last_mut().unwrap();
    let more = [
        json!({ "name": "image", "image": { "reference": "registry.example/team/app:v1" } }),
        json!({ "name": "flex", "flexVolume": { "driver": "example/memory" } }),
        json!({ "name": "disk", "persistentVolumeClaim": { "claimName": "local" } }),
    ];
    for volume in more {
        let mount = json!({ "name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap()) });
        pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
        pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
    }
    let is_pod = |object: &Value| object["kind"] == "Pod";
    local.into_iter().filter(|object| !is_pod(object)).chain(objects).collect()
}

#[test]
fn a_pod_with_a_volume_of_every_kind_has_what_a_kubelet_would_give_it() {
    on_a_stack(async |world| {
        world.prepare();
        let local = world.read(&examples().join("volumes/local.yaml"));
        let objects = objects(world.read(&examples().join("volumes-of-every-kind.yaml")), local);
        world.apply(&objects).await;
        let pod = world.runs("kinds").await;
        let volumes = pod.join("volumes");

        for (dir, mode) in [("", 0o750), ("plugins", 0o750), ("volumes", 0o750), ("volumes/kubernetes.io~csi", 0o750)] {
            assert_eq!(about(&pod.join(dir)), ("directory", mode, 0, 0), "{dir}");
        }
        for kind in ["configmap", "secret", "downward-api", "projected", "empty-dir"] {
            assert_eq!(about(&volumes.join(format!("kubernetes.io~{kind}"))), ("directory", 0o755, 0, 0), "{kind}");
        }

        // Directories of the pod's group, with its bit; what is in memory is a tmpfs.
        for (volume, mode, kind) in [
            ("kubernetes.io~empty-dir/scratch", 0o2777, None),
            ("kubernetes.io~empty-dir/memory", 0o3777, Some("tmpfs")),
            ("kubernetes.io~configmap/config", 0o2777, None),
            ("kubernetes.io~secret/secret", 0o3777, Some("tmpfs")),
            ("kubernetes.io~downward-api/about", 0o3777, Some("tmpfs")),
            ("kubernetes.io~projected/together", 0o3777, Some("tmpfs")),
            ("example~memory/flex", 0o3777, Some("tmpfs")),
        ] {
            let path = volumes.join(volume);
            assert_eq!(about(&path), ("directory", mode, 0, 2000), "{volume}");
            assert_eq!(file_system(&path).as_deref(), kind, "{volume}");
        }

        for (volume, name, mode, contents) in [
            ("kubernetes.io~configmap/config", "greeting", 0o644, "hello\n"),
            ("kubernetes.io~secret/secret", "password", 0o644, "secret"),
            ("kubernetes.io~downward-api/about", "labels", 0o644, "app=\"kinds\""),
            ("kubernetes.io~downward-api/about", "memory", 0o644, "67108864"),
            ("kubernetes.io~projected/together", "greeting", 0o644, "hello\n"),
            ("kubernetes.io~projected/together", "password", 0o644, "secret"),
        ] {
            let dir = volumes.join(volume);
            let link = fs::read_link(dir.join(name)).unwrap();
            assert_eq!(link, Path::new("..data").join(name), "{volume}");
            let data = fs::read_link(dir.join("..data")).unwrap();
            assert!(data.to_str().unwrap().starts_with("..20"), "{volume}: {}", data.display());
            assert_eq!(about(&dir.join(&data)), ("directory", 0o2755, 0, 2000), "{volume}");
            assert_eq!(about(&dir.join(&data).join(name)), ("file", mode, 0, 2000), "{volume}/{name}");
            assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), contents, "{volume}/{name}");
        }

        // Tokens are nobody's but the pod's group's; the one that was not asked for has its authority and namespace.
        let automatic = fs::read_dir(volumes.join("kubernetes.io~projected")).unwrap();
        let automatic = automatic.map(|entry| entry.unwrap().path()).find(|path| !path.ends_with("together")).unwrap();
        for dir in [&automatic, &volumes.join("kubernetes.io~projected/together")] {
            let token = dir.join("token");
            assert_eq!(fs::read_to_string(&token).unwrap().split('.').count(), 3);
            assert_eq!(about(&token.canonicalize().unwrap()), ("file", 0o640, 0, 2000));
        }
        assert_eq!(fs::read_to_string(automatic.join("namespace")).unwrap(), "default");
        let authority = fs::read_to_string(automatic.join("ca.crt")).unwrap();
        assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"), "{authority}");

        let image = volumes.join("kubernetes.io~image/image");
        assert_eq!(fs::read_to_string(image.join("sub/file")).unwrap(), "from an image");
        assert_eq!(about(&image.join("sub/file")), ("file", 0o644, 7, 8), "an image keeps its owners");
        assert!(fs::write(image.join("new"), "").is_err());
        assert_eq!(fs::read_to_string(volumes.join("kubernetes.io~local-volume/disk-1/kept")).unwrap(), "kept");

        // The claims beside them: a file system of the driver, and a device.
        let claims: Vec<_> = fs::read_dir(volumes.join("kubernetes.io~csi")).unwrap().collect();
        assert_eq!(claims.len(), 1);
        let files = claims[0].as_ref().unwrap().path().join("mount");
        assert_eq!(file_system(&files).as_deref(), Some("ext4"));
        let (kind, mode, owner, group) = about(&files);
        assert_eq!((kind, mode & 0o2770, owner, group), ("directory", 0o2770, 0, 2000));
        fs::write(files.join("data"), "written").unwrap();
        let devices: Vec<_> = fs::read_dir(pod.join("volumeDevices/kubernetes.io~csi")).unwrap().collect();
        let device = devices[0].as_ref().unwrap().path();
        assert!(fs::metadata(&device).unwrap().file_type().is_block_device(), "{}", device.display());

        world.delete(&objects[..]).await;
        assert!(!pod.try_exists().unwrap());
    });
}
