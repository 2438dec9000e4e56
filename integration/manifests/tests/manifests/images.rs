//! Every image that is shipped with a manifest has a Dockerfile, and the tag of this version.

use std::fs;
use std::process::Command;

use manifest_suite::{KUSTOMIZATIONS, containers, documents, pods, repository, service_of, shipped};
use stowage_services::{Image, Place};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn has_dockerfile(service: &str) -> bool {
    repository().join(format!("deploy/images/{service}.Dockerfile")).is_file()
}

#[test]
fn images_in_kubernetes_manifests_are_built_here_with_this_version() {
    for name in KUSTOMIZATIONS {
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            for container in containers(pod) {
                let image = container["image"].as_str().unwrap();
                let service = service_of(image).unwrap();
                assert!(has_dockerfile(service), "{workload}: {image}");
                assert!(image.ends_with(&format!(":{VERSION}")), "{workload}: {image}");
            }
        }
    }
}

#[test]
fn images_in_compose_are_built_here_with_this_version() {
    for compose in documents(&repository().join("compose.yaml")).unwrap() {
        for (name, service) in compose["services"].as_object().unwrap() {
            let image = service["image"].as_str().unwrap();
            let rest = image.strip_prefix("${STOWAGE_PREFIX:-stowage}/").unwrap();
            let (service, tag) = rest.split_once(':').unwrap();
            assert!(has_dockerfile(service), "{name}: {image}");
            assert_eq!(tag, format!("${{STOWAGE_VERSION:-{VERSION}}}"), "{name}");
        }
    }
}

#[test]
fn every_service_has_a_dockerfile_with_labels_that_starts_it() {
    for entry in std::fs::read_dir(repository().join("services")).unwrap() {
        let service = entry.unwrap().file_name().into_string().unwrap();
        let file = repository().join(format!("deploy/images/{service}.Dockerfile"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(text.contains(&format!("ENTRYPOINT [\"/{service}\"]")), "{service}");
        assert!(text.contains("org.opencontainers.image.title"), "{service}");
        let found = stowage_services::find(&service).unwrap_or_else(|| panic!("{service} is not in the table"));
        let on_debian = found.image == Image::Debian;
        assert_eq!(text.contains("FROM scratch"), !on_debian, "{service}");
        // What stands beside other people's drivers runs as their sidecars do; a node mounts.
        let root = on_debian || matches!(found.place, Place::Sidecar | Place::NodeSidecar | Place::Probe);
        assert_eq!(text.contains("USER 65532:65532"), !root, "{service}");
    }
}

/// Runs the base image's RUN line where these programs are all there is; whether it was content, and had to install.
fn prepare_base(there: &[&str], package_manager_brings: &[&str]) -> (bool, bool) {
    let file = fs::read_to_string(repository().join("deploy/images/node-base.Dockerfile")).unwrap();
    let script = file.split_once("\nRUN ").unwrap().1.replace("\\\n", "");
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display();
    let bring: String = package_manager_brings.iter().map(|name| format!("/bin/cp $0 {here}/{name};")).collect();
    let manager = format!(": > {here}/was-asked; {bring} exit 0");
    // The shell writes its programs itself: what this process has open for writing, the child of another test may still
    // hold when it is to be executed.
    let mut prepare = String::new();
    for (name, text) in there.iter().map(|name| (*name, "")).chain([("rm", ""), ("apt-get", &*manager)]) {
        let program = format!("{here}/{name}");
        prepare += &format!("printf '#!/bin/sh\\n%s\\n' '{text}' > {program} && /bin/chmod 755 {program} || exit 9\n");
    }
    let run = Command::new("/bin/sh").arg("-c").arg(prepare + &script).env("PATH", folder.path()).output().unwrap();
    assert_ne!(run.status.code(), Some(9), "{run:?}");
    (run.status.success(), fs::metadata(folder.path().join("was-asked")).is_ok())
}

#[test]
fn the_base_of_node_images_installs_what_is_missing_and_is_not_made_without_it() {
    let all = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mount.nfs"];
    assert_eq!(prepare_base(&all, &[]), (true, false));
    assert_eq!(prepare_base(&all[..1], &all), (true, true), "a pulled Debian has ext4 only");
    assert_eq!(prepare_base(&all[..1], &all[..2]), (false, true), "a package did not bring its program");
}
