//! Every flag that is shipped is one that its service takes.

use std::ffi::OsString;

use clap::Parser as _;
use manifest_suite::{KUSTOMIZATIONS, containers, documents, pods, repository, service_of, shipped, words};
use stowage_runtime::flags;

/// What a service says to these words.
pub fn parse(service: &str, words: &[String]) -> Result<(), String> {
    let all = || std::iter::once(OsString::from(service)).chain(words.iter().map(OsString::from));
    let said = |error: clap::Error| error.to_string();
    match service {
        "apiserver" => apiserver::Args::try_parse_from(all()).map(drop).map_err(said),
        "attach-detach-controller" => {
            flags::try_parse_from::<attach_detach_controller::args::Args>(all()).map(drop).map_err(said)
        }
        "attacher" => flags::try_parse_from::<attacher::args::Args>(all()).map(drop).map_err(said),
        "livenessprobe" => flags::try_parse_from::<livenessprobe::args::Args>(all()).map(drop).map_err(said),
        "node-plugin" => flags::try_parse_from::<node_plugin::args::Args>(all()).map(drop).map_err(said),
        "provisioner" => flags::try_parse_from::<provisioner::Args>(all()).map(drop).map_err(said),
        "pv-controller" => flags::try_parse_from::<pv_controller::args::Args>(all()).map(drop).map_err(said),
        "registrar" => flags::try_parse_from::<registrar::args::Args>(all()).map(drop).map_err(said),
        "resizer" => flags::try_parse_from::<resizer::args::Args>(all()).map(drop).map_err(said),
        "scheduler" => flags::try_parse_from::<scheduler::args::Args>(all()).map(drop).map_err(said),
        "snapshot-controller" => {
            flags::try_parse_from::<snapshot_controller::args::Args>(all()).map(drop).map_err(said)
        }
        "snapshotter" => flags::try_parse_from::<snapshotter::Args>(all()).map(drop).map_err(said),
        "stowage" => flags::try_parse_from::<stowage::args::Args>(all()).map(drop).map_err(said),
        "volume-manager" => flags::try_parse_from::<volume_manager::args::Args>(all()).map(drop).map_err(said),
        other => Err(format!("there is no service {other}")),
    }
}

#[test]
fn the_flags_in_kubernetes_manifests_are_taken_by_their_services() {
    for name in KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        let pods = pods(&objects);
        assert!(!pods.is_empty(), "{name} has no workload");
        for (workload, pod) in pods {
            for container in containers(pod) {
                let service = service_of(container["image"].as_str().unwrap()).unwrap();
                // The kubelet fills these in.
                let args: Vec<String> =
                    words(&container["args"]).iter().map(|word| word.replace("$(NODE_NAME)", "node-1")).collect();
                assert!(!args.is_empty(), "{workload} gives {service} nothing");
                parse(service, &args).unwrap_or_else(|error| panic!("{workload}: {service}: {error}"));
            }
        }
    }
}

#[test]
fn the_flags_in_compose_files_are_taken_by_their_services() {
    for file in ["compose.yaml", "compose.kubernetes.yaml"] {
        for compose in documents(&repository().join(file)).unwrap() {
            let services = compose["services"].as_object().unwrap();
            for (name, service) in services {
                let image =
                    service["image"].as_str().unwrap_or_default().replace("${STOWAGE_PREFIX:-stowage}", "stowage");
                let Some(binary) = service_of(&image) else { continue };
                let args: Vec<String> = words(&service["command"])
                    .iter()
                    .map(|word| word.replace("${STOWAGE_PORT:-6443}", "6443"))
                    .collect();
                parse(binary, &args).unwrap_or_else(|error| panic!("{file}: {name}: {error}"));
            }
        }
    }
}

#[test]
fn a_flag_that_does_not_exist_would_be_found_for_every_service_of_the_table() {
    for service in stowage_services::names(|service| service.is_process()) {
        let refusal = parse(service, &["--no-such-flag".to_owned()]).unwrap_err();
        assert!(refusal.contains("--no-such-flag"), "{service}: {refusal}");
    }
    assert!(parse("no-such-service", &[]).is_err());
}
