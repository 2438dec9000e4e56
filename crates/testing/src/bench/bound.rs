//! A server with bound claims, and a driver that has their volumes.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tower::Layer;

use stowage_csi::connect::Connector;
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use stowage_csi::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability};
use stowage_model::Claim;
use stowage_model::object::kinds;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use super::{Counting, Counts, Running, each};
use crate::{Abilities, Changes, Driver, MemoryMounter};

/// An embedded server, a user of it, and the in-memory driver behind a real socket.
pub struct BoundClaims {
    /// The server.
    pub server: stowage_apiserver::Server,
    /// Who asks for things.
    pub user: Api,
    /// What is removed with all of this.
    pub directory: tempfile::TempDir,
    _driver: Running,
}

impl BoundClaims {
    /// The namespace of the claims, which are called `c0`, `c1` and so on, as their volumes are called `v0`, `v1`.
    pub const NAMESPACE: &str = "default";
    /// The driver's name.
    pub const DRIVER: &str = "driver.test";
    /// The claims' class.
    pub const CLASS: &str = "gold";

    /// So many bound claims of 1Gi; before them, the class and these definitions of kinds.
    ///
    /// # Panics
    /// If the machine has no room for a socket, or the server refuses an object.
    pub async fn start(count: usize, definitions: impl IntoIterator<Item = Value>) -> Self {
        // A watch that falls behind would be told to list again, which is not what is measured.
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let server = stowage_apiserver::Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), Self::NAMESPACE));
        for definition in definitions {
            user.create_raw(kinds::DEFINITION, definition).await.expect("the definition is good");
        }
        let provisioner = Self::DRIVER;
        let class =
            json!({ "metadata": { "name": Self::CLASS }, "provisioner": provisioner, "allowVolumeExpansion": true });
        user.create_raw(kinds::STORAGE_CLASS, class).await.expect("the class is good");
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let driver = Driver::new(Self::DRIVER, Changes::default());
        driver.enable(Abilities::ALL);
        let socket =
            Socket::bind(directory.path().join("csi.sock"), SocketMode::default()).expect("the directory is new");
        let routes = driver.routes("node", MemoryMounter::new(Changes::default()));
        let served = async move { socket.serve(routes, std::future::pending()).await.expect("it is served for ever") };
        let world = Self { server, user, directory, _driver: Running(tokio::spawn(served)) };
        world.fill(count).await;
        world
    }

    /// Where the driver listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// A client of a service, and what it asks for.
    pub fn counting(&self) -> (kube::Client, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let service = Counting(Arc::clone(&counts)).layer(self.server.service());
        (kube::Client::new(service, Self::NAMESPACE), counts)
    }

    async fn fill(&self, count: usize) {
        let connector = stowage_csi::UnixConnector;
        let channel = connector.connect(&format!("unix://{}", self.socket().display())).expect("the address is good");
        each(count, |n| {
            let (user, mut driver) = (self.user.clone(), ControllerClient::new(channel.clone()));
            async move {
                let made = driver.create_volume(request(n)).await.expect("the request is good");
                let handle = made.into_inner().volume.expect("the driver answers with the volume").volume_id;
                let claim = user.create_raw(kinds::CLAIM, claim(n)).await.expect("the claim is good");
                let uid = claim["metadata"]["uid"].clone();
                user.create_raw(kinds::VOLUME, volume(n, &handle, &uid)).await.expect("the volume is good");
                let claim: Claim = serde_json::from_value(claim).expect("the server answers with the claim");
                let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
                let (cache, target) = (Cache::<Claim>::new(), Target::any_version(&claim.meta));
                user.patch(&cache, &target, Part::Status, Patch::Merge(bound)).await.expect("the patch is good");
            }
        })
        .await;
    }
}

fn request(n: usize) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: format!("v{n}"),
        capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_mode: Some(AccessMode { mode: access_mode::Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        ..Default::default()
    }
}

fn claim(n: usize) -> Value {
    json!({
        "metadata": {
            "namespace": BoundClaims::NAMESPACE, "name": format!("c{n}"),
            "annotations": { "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": BoundClaims::CLASS, "volumeName": format!("v{n}"),
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn volume(n: usize, handle: &str, uid: &Value) -> Value {
    json!({
        "metadata": {
            "name": format!("v{n}"), "annotations": { "pv.kubernetes.io/provisioned-by": BoundClaims::DRIVER },
        },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": BoundClaims::CLASS,
            "csi": { "driver": BoundClaims::DRIVER, "volumeHandle": handle },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": BoundClaims::NAMESPACE, "name": format!("c{n}"), "uid": uid,
            },
        },
    })
}
