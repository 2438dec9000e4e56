//! Makes a directory on one node for each claim: a whole provisioner, by the library of the CSI provisioner.

use std::{io::ErrorKind, os::unix::fs::PermissionsExt, path::PathBuf};

use clap::Parser;
use provisioner::library::{self, AccessMode, DeleteOptions, Failure, ProvisionOptions, Provisioned, Provisioner};
use serde_json::json;

#[derive(Parser)]
struct HostPath {
    #[command(flatten)]
    library: library::ProvisionerArgs,
    /// Where the directories are made, on the node as in this container
    #[arg(long, default_value = "/var/lib/hostpath-provisioner")]
    directory: PathBuf,
    /// The node that the directories are on
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
}

#[library::async_trait]
impl Provisioner for HostPath {
    async fn provision(&self, options: ProvisionOptions) -> Provisioned {
        let (path, node) = (self.directory.join(&options.volume), &self.node_name);
        if options.selected_node.as_ref().is_some_and(|selected| selected != node) {
            return Provisioned::reschedule(format!("directories are made on node {node:?} only"));
        }
        // Any user of any pod may write, as the claim's namespace decides who has it.
        let open = std::fs::Permissions::from_mode(0o777);
        let made = async { tokio::fs::create_dir_all(&path).await.and(tokio::fs::set_permissions(&path, open).await) };
        if let Err(error) = made.await {
            return Provisioned::in_background(format!("cannot make {}: {error}", path.display()));
        }
        let made = options.made("hostPath", json!({ "path": path, "type": "Directory" }));
        Provisioned::Finished(Ok(made.only_from("kubernetes.io/hostname", node)))
    }

    async fn delete(&self, options: DeleteOptions) -> Result<(), Failure> {
        options.must_be_reached_from("kubernetes.io/hostname", &self.node_name)?;
        let path = self.directory.join(&options.volume);
        if options.location.is_none_or(|location| location.value["path"].as_str() != path.to_str()) {
            return Err(library::not_deleted(format!("it is not {}; see --directory", path.display())));
        }
        match tokio::fs::remove_dir_all(&path).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(library::not_deleted(error)),
            _ => Ok(()),
        }
    }

    fn supports_access_mode(&self, mode: AccessMode) -> bool {
        [AccessMode::ReadWriteOnce, AccessMode::ReadWriteOncePod].contains(&mode)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let provisioner: HostPath = library::parse();
    provisioner.library.clone().run("hostpath.stowage.dev", provisioner).await
}
