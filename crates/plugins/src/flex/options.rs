//! What a driver is told about a volume, as one JSON object of texts.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use stowage_model::node_view::NodePod;
use stowage_model::object::Key;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::spec::VolumeSpec;

use super::Flex;

impl Flex {
    /// The options; the volume's own win. They may hold secrets and are printed nowhere.
    pub(super) async fn options(
        &self,
        host: &VolumeHost,
        spec: &VolumeSpec,
        pod: Option<&NodePod>,
        fs_group: Option<i64>,
    ) -> Result<String, Fault> {
        let source = self.source_of(spec)?;
        let mut options = BTreeMap::new();
        let mut add = |name: &str, value: &str| _ = options.insert(format!("kubernetes.io/{name}"), value.to_owned());
        add("fsType", &source.fs_type);
        add("readwrite", if spec.read_only { "ro" } else { "rw" });
        add("pvOrVolumeName", &spec.name);
        if let Some(group) = fs_group {
            add("mounterArgs.FsGroup", &group.to_string());
        }
        if let Some(pod) = pod {
            add("pod.name", &pod.meta.name);
            add("pod.namespace", &pod.meta.namespace);
            add("pod.uid", &pod.meta.uid);
            add("serviceAccount.name", &pod.spec.service_account_name);
        }
        if let Some(reference) = &source.secret_ref {
            let namespace = match (reference.namespace.as_str(), pod) {
                ("", Some(pod)) => pod.meta.namespace.as_str(),
                (namespace, _) => namespace,
            };
            let key = Key::namespaced(namespace, reference.name.as_str());
            let found = host.objects.secret(&key).await;
            let found = found.map_err(|error| Fault::transient(format!("flexVolume.secretRef {key}: {error}")))?;
            let Some(secret) = found else {
                return Err(Fault::transient(format!("flexVolume.secretRef {key} does not exist; create the Secret")));
            };
            if secret.kind != self.name {
                return Err(Fault::transient(format!(
                    "flexVolume.secretRef {key}: the Secret's type is {:?}, and must be the driver's name {:?}",
                    secret.kind, self.name
                )));
            }
            for name in secret.data.keys() {
                add(&format!("secret/{name}"), &STANDARD.encode(secret.data.get(name).unwrap_or_default()));
            }
        }
        options.extend(source.options.clone());
        serde_json::to_string(&options)
            .map_err(|error| Fault::refused(format!("volume {}: options: {error}", spec.name)))
    }
}
