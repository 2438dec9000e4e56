//! hostPath.

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use crate::machine::{Asked, mode, on_a_machine};

#[test]
fn row_141_each_type_takes_what_it_names_makes_what_it_may_and_refuses_the_rest() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        let at = |name: &str| machine.dir.join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), b"").unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(at("dir"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("lost")).unwrap();
        for (name, kind, well) in [
            ("gone", "", true),
            ("dir", "Directory", true),
            ("link", "Directory", true),
            ("file", "Directory", false),
            ("gone", "Directory", false),
            ("lost", "Directory", false),
            ("file", "File", true),
            ("dir", "File", false),
            ("dir", "FileOrCreate", false),
            ("file", "DirectoryOrCreate", false),
            ("socket", "Socket", true),
            ("file", "Socket", false),
            ("pipe", "Socket", false),
            ("file", "CharDevice", false),
            ("file", "BlockDevice", false),
            ("gone/inner", "FileOrCreate", false),
            ("dir", "Folder", false),
        ] {
            let asked = Asked::inline("hostPath", json!({ "path": at(name), "type": kind }), Value::Null);
            let answer = machine.set_up(&host, &asked).await;
            assert_eq!(answer.is_ok(), well, "{name} {kind}: {answer:?}");
            machine.tear_down(&host, &asked).await.unwrap();
        }
        let null = Asked::inline("hostPath", json!({ "path": "/dev/null", "type": "CharDevice" }), Value::Null);
        machine.set_up(&host, &null).await.unwrap();
        for (name, kind, permissions) in [("new/a/b", "DirectoryOrCreate", 0o755), ("dir/new", "FileOrCreate", 0o644)] {
            let asked = Asked::inline("hostPath", json!({ "path": at(name), "type": kind }), Value::Null);
            machine.set_up(&host, &asked).await.unwrap();
            machine.set_up(&host, &asked).await.unwrap();
            assert_eq!(mode(&at(name)), permissions, "{name}");
        }
        assert_eq!(mode(&at("new/a")), 0o755);
        assert_eq!(machine.left(), Vec::<String>::new(), "nothing of it is in the pod's directory");
    });
}

#[test]
fn a_path_that_climbs_is_refused_and_a_container_gets_the_path_itself() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        let path = format!("{}/../x", machine.dir.display());
        let asked = Asked::inline("hostPath", json!({ "path": path, "type": "DirectoryOrCreate" }), Value::Null);
        let fault = machine.set_up(&host, &asked).await.unwrap_err();
        assert!(fault.message.contains("\"..\""), "{fault}");
        let asked = Asked::inline("hostPath", json!({ "path": "/etc" }), Value::Null);
        let plugin = machine.plugin(&asked);
        assert_eq!(plugin.mounter().unwrap().path(&host, &asked.spec, "uid"), std::path::Path::new("/etc"));
        assert!(!plugin.traits(&asked.spec, &host).attributes.managed);
    });
}
