//! `stowage setup`: what a new stack needs once, before its services: an API server that answers, the driver's objects,
//! and the administrator's kubeconfig where a person finds it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use stowage_csi::UnixConnector;
use stowage_model::Kind;
use stowage_model::object::kinds;
use stowage_runtime::Context;
use stowage_runtime::api::Api;
use stowage_runtime::launch::host_name;

use crate::args::Setup;
use crate::manifest;

/// Between two looks at a server that does not answer yet.
const LOOK: Duration = Duration::from_millis(200);

/// What a driver brings along, in the order in which it is created: definitions before what they define.
const KINDS: [Kind; 5] = [
    kinds::DEFINITION,
    kinds::CSI_DRIVER,
    kinds::STORAGE_CLASS,
    kinds::VOLUME_SNAPSHOT_CLASS,
    kinds::VOLUME_GROUP_SNAPSHOT_CLASS,
];

/// Waits, creates, hands out.
pub async fn run(options: Setup) -> anyhow::Result<()> {
    stowage_runtime::log::init(&options.log)?;
    let objects = read(&options.filenames)?;
    let client = options.client.client(10).await?;
    let context = Context::real(client, Arc::new(UnixConnector), host_name());
    until_it_answers(&context.api, options.timeout.into()).await?;
    for (kind, object) in objects {
        create(&context.api, kind, &object, options.timeout.into()).await?;
    }
    match (&options.hand_out, &options.client.kubeconfig) {
        (Some(to), Some(from)) => hand_out(Path::new(from), to, options.like.as_deref()),
        (Some(_), None) => bail!("--hand-out copies the file given with --kubeconfig; give both"),
        (None, _) => Ok(()),
    }
}

fn read(files: &[std::path::PathBuf]) -> anyhow::Result<Vec<(Kind, Value)>> {
    let mut objects = Vec::new();
    for file in files {
        let found = manifest::read(file).with_context(|| format!("cannot read --filename {}", file.display()))?;
        for object in found {
            let known = KINDS
                .iter()
                .find(|kind| object["kind"] == kind.kind && object["apiVersion"].as_str() == Some(&kind.api_version()));
            match known {
                Some(kind) => objects.push((*kind, object)),
                None => bail!(
                    "--filename {}: {} {} is not something a driver brings; only these are created: {}",
                    file.display(),
                    object["apiVersion"],
                    object["kind"],
                    KINDS.map(|kind| format!("{} {}", kind.api_version(), kind.kind)).join(", ")
                ),
            }
        }
    }
    objects.sort_by_key(|(kind, _)| KINDS.iter().position(|known| known == kind));
    Ok(objects)
}

async fn create(api: &Api, kind: Kind, object: &Value, timeout: Duration) -> anyhow::Result<()> {
    let name = format!("{} {}", kind.kind, object["metadata"]["name"].as_str().unwrap_or_default());
    let deadline = Instant::now() + timeout;
    loop {
        match api.create_raw(kind, object.clone()).await {
            Ok(_) => println!("{name} created"),
            Err(error) if error.is_already_exists() => println!("{name} is there already"),
            // A server begins to serve a kind some time after it took the definition.
            Err(error) if error.is_not_found() && Instant::now() < deadline => {
                sleep(LOOK).await;
                continue;
            }
            Err(error) if error.is_not_found() => bail!(
                "cannot create {name}: the API server does not serve {} {} after {timeout:?}; give the file with its \
                 CustomResourceDefinition with --filename, too",
                kind.api_version(),
                kind.kind
            ),
            Err(error) => return Err(error).with_context(|| format!("cannot create {name}")),
        }
        return Ok(());
    }
}

async fn until_it_answers(api: &Api, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let request = http::Request::get("/readyz").body(Vec::new()).context("cannot make a request")?;
        match api.client().request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("the API server is not ready after {timeout:?}"));
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Copies a secret, to the owner of `like` and nobody else.
fn hand_out(from: &Path, to: &Path, like: Option<&Path>) -> anyhow::Result<()> {
    let failed = || format!("cannot hand out {} to {}", from.display(), to.display());
    let content = fs::read(from).with_context(failed)?;
    let unfinished = to.with_extension("new");
    // What a killed run left may be readable by others; a new file never is, not even for a moment.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(failed),
        _ => {}
    }
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(&unfinished);
    file.and_then(|mut file| file.write_all(&content)).with_context(failed)?;
    if let Some(like) = like {
        let owner = fs::metadata(like).with_context(|| format!("cannot look at --like {}", like.display()))?;
        chown(&unfinished, Some(owner.uid()), Some(owner.gid())).with_context(failed)?;
        if let Some(folder) = to.parent() {
            chown(folder, Some(owner.uid()), Some(owner.gid())).with_context(failed)?;
        }
    }
    fs::rename(&unfinished, to).with_context(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use stowage_apiserver::{Options, Server};
    use stowage_model::annotations;

    use super::*;
    use crate::objects;

    #[test]
    fn objects_of_a_driver_are_read_and_others_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("objects.yaml");
        let driver = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: a}\n";
        fs::write(&file, format!("---\n{driver}---\n{driver}")).unwrap();
        assert_eq!(read(std::slice::from_ref(&file)).unwrap().len(), 2);
        fs::write(&file, "apiVersion: v1\nkind: Pod\n").unwrap();
        let error = read(&[file]).unwrap_err().to_string();
        assert!(error.contains("\"Pod\"") && error.contains("storage.k8s.io/v1 CSIDriver"), "{error}");
    }

    fn snapshot_class() -> Value {
        objects::snapshot_class("a", "d", annotations::DEFAULT_SNAPSHOT_CLASS)
    }

    #[test]
    fn definitions_come_before_classes_whatever_the_order_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let [class, definitions] = ["class.yaml", "definitions.yaml"].map(|name| folder.path().join(name));
        fs::write(&class, "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\n").unwrap();
        fs::write(&definitions, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n").unwrap();
        let kinds: Vec<&str> = read(&[class, definitions]).unwrap().iter().map(|(kind, _)| kind.kind).collect();
        assert_eq!(kinds, ["CustomResourceDefinition", "VolumeSnapshotClass"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_class_is_created_once_its_kind_is_served() {
        let server = Server::in_memory(Options::system());
        let api = Api::new(kube::Client::new(server.service(), "default"));
        let minute = Duration::from_secs(60);
        let defined = async {
            sleep(minute / 2).await;
            for definition in stowage_crds::definitions() {
                create(&api, kinds::DEFINITION, &definition.object(), minute).await.unwrap();
            }
        };
        let body = snapshot_class();
        let ((), created) = tokio::join!(defined, create(&api, kinds::VOLUME_SNAPSHOT_CLASS, &body, minute));
        created.unwrap();
        create(&api, kinds::VOLUME_SNAPSHOT_CLASS, &body, minute).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_class_whose_kind_is_never_served_is_refused_with_the_way_out() {
        let server = Server::in_memory(Options::system());
        let api = Api::new(kube::Client::new(server.service(), "default"));
        let minute = Duration::from_secs(60);
        let refused = create(&api, kinds::VOLUME_SNAPSHOT_CLASS, &snapshot_class(), minute).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("VolumeSnapshotClass a") && error.contains("--filename"), "{error}");
    }

    #[test]
    fn a_kubeconfig_is_handed_out_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("kubeconfig"));
        fs::write(&from, "secret").unwrap();
        // As a run that was killed leaves it.
        fs::write(to.with_extension("new"), "sec").unwrap();
        hand_out(&from, &to, Some(folder.path())).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "secret");
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
    }
}
