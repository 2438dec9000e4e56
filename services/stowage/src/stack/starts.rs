//! How each service of the table is started in a stack of one process. A service that is missing here fails a test, and
//! keeps every stack from starting.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use stowage_csi::Endpoint;
use stowage_mount::LinuxMounter;
use stowage_runtime::{Context, Stop};

/// Starts a service, and starts it again.
pub(super) type Start = Box<dyn FnMut() -> BoxFuture<'static, Result<(), Stop>> + Send>;

/// The start of a service that there is once for the cluster or once beside the driver's controller.
pub(super) fn of_controller(service: &str, context: Context, csi_address: String) -> Option<Start> {
    Some(match service {
        "attach-detach-controller" => {
            let options = attach_detach_controller::Options::default();
            Box::new(move || attach_detach_controller::run(context.clone(), options.clone()))
        }
        "attacher" => {
            let mut options = attacher::Options::default();
            options.driver.csi_address = csi_address;
            Box::new(move || attacher::run(context.clone(), options.clone()))
        }
        "provisioner" => {
            let capacity = Some(provisioner::Capacity::default());
            let mut options = provisioner::Options { capacity, ..Default::default() };
            options.driver.csi_address = csi_address;
            Box::new(move || provisioner::run(context.clone(), options.clone()))
        }
        "pv-controller" => {
            // Nothing here runs the containers of a recycler pod.
            let recycling = pv_controller::Recycling { eraser: pv_controller::Eraser::Plugin, ..Default::default() };
            let options = pv_controller::Options { recycling, ..Default::default() };
            Box::new(move || pv_controller::run(context.clone(), options.clone()))
        }
        "resizer" => {
            let mut options = resizer::Options::default();
            options.driver.csi_address = csi_address;
            Box::new(move || resizer::run(context.clone(), options.clone()))
        }
        "snapshot-controller" => {
            let options = snapshot_controller::Options::default();
            Box::new(move || snapshot_controller::run(context.clone(), options.clone()))
        }
        "snapshotter" => {
            let mut options = snapshotter::Options::default();
            options.driver.csi_address = csi_address;
            Box::new(move || snapshotter::run(context.clone(), options.clone()))
        }
        "scheduler" => Box::new(move || scheduler::run(context.clone(), scheduler::Options::default())),
        _ => return None,
    })
}

/// What services on a node need.
#[derive(Clone)]
pub(super) struct OnNode {
    pub(super) volume_manager: volume_manager::Options,
    /// Where drivers register.
    pub(super) registry: PathBuf,
    /// Where the node's driver listens.
    pub(super) endpoint: Endpoint,
}

/// The start of a service that runs on each node.
pub(super) fn of_node(service: &str, context: Context, node: OnNode) -> Option<Start> {
    Some(match service {
        "registrar" => {
            let (process, csi) = (context.process.clone(), Arc::clone(&context.csi));
            let options = registrar::Options {
                // A kubelet knows paths only; the volume manager in its place knows every endpoint.
                kubelet_registration_path: match node.endpoint.path() {
                    Some(path) => path.display().to_string(),
                    None => node.endpoint.to_string(),
                },
                csi_address: node.endpoint.to_string(),
                plugin_registration_path: node.registry,
                ..Default::default()
            };
            let serve = Arc::new(registrar::serve::UnixServe);
            Box::new(move || registrar::run(process.clone(), Arc::clone(&csi), serve.clone(), options.clone()).boxed())
        }
        "volume-manager" => {
            let (plugins, options) =
                (volume_manager::plugin_watcher::RegistryDir::new(node.registry), node.volume_manager);
            let plugins = Arc::new(plugins);
            Box::new(move || {
                volume_manager::run(context.clone(), Arc::new(LinuxMounter), plugins.clone(), options.clone())
            })
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use stowage_services::{Place, assembled, names};

    use super::*;

    #[tokio::test]
    async fn every_service_of_the_table_has_its_start_in_a_stack() {
        let context = Context::deaf();
        for service in assembled(&[Place::Cluster, Place::Sidecar]) {
            assert!(of_controller(service, context.clone(), String::new()).is_some(), "{service}");
        }
        let endpoint = Endpoint::at("/tmp/csi.sock").unwrap();
        let node = OnNode { volume_manager: volume_manager::Options::default(), registry: "/tmp".into(), endpoint };
        for service in assembled(&[Place::NodeSidecar, Place::Node]) {
            assert!(of_node(service, context.clone(), node.clone()).is_some(), "{service}");
        }
        let others = names(|service| matches!(service.place, Place::Server | Place::Driver | Place::Command));
        assert_eq!(others, ["apiserver", "node-plugin", "stowage"], "the stack starts these in its own way");
        let probes = names(|service| service.place == Place::Probe);
        assert_eq!(probes, ["livenessprobe"], "its supervisor sees by itself when a driver ends, and nobody asks");
    }
}
