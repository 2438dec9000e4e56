//! What the files of a volume hold, from the objects it names.

use std::collections::BTreeMap;

use jiff::Timestamp;

use stowage_model::node_view::NodePod;
use stowage_model::object::Key;
use stowage_model::volume_source::{
    ConfigMapSource, DownwardApiFile, KeyToPath, ProjectionSource, ServiceAccountTokenProjection, VolumeSource,
};
use stowage_runtime::api;

use crate::atomic_writer::{FileProjection, Payload};
use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::objects::SourceId;
use crate::plugin::SetUp;
use crate::tokens::Wanted;

use super::{certificates, downward, keys};

/// Files of things that are the pod's own, such as tokens, when it is known which user or group reads them.
const PRIVATE: u32 = 0o600;

/// The files of a volume.
pub struct Built {
    /// The files.
    pub payload: Payload,
    /// When they must be made again although nothing changes.
    pub again_at: Option<Timestamp>,
}

/// Makes the files; nothing on the machine has changed when this fails.
pub async fn build(host: &VolumeHost, request: &SetUp<'_>) -> Result<Built, Fault> {
    let mut builder = Builder { host, request, payload: Payload::new(), again_at: None, wrong: Vec::new() };
    let spec = request.spec;
    match &spec.source {
        VolumeSource::ConfigMap(source) => {
            let mode = default_mode(spec.source.member(), source.default_mode)?;
            builder.config_map(source, mode).await;
        }
        VolumeSource::Secret(source) => {
            let mode = default_mode(spec.source.member(), source.default_mode)?;
            builder.secret(&source.secret_name, &source.items, source.optional, mode).await;
        }
        VolumeSource::DownwardApi(source) => {
            let mode = default_mode(spec.source.member(), source.default_mode)?;
            builder.downward(&source.items, mode).await;
        }
        VolumeSource::Projected(source) => {
            let mode = default_mode(spec.source.member(), source.default_mode)?;
            for part in &source.sources {
                builder.part(part, mode).await;
            }
        }
        other => return Err(Fault::refused(format!("volume {}: source {other} is not made of files", spec.name))),
    }
    match builder.wrong.is_empty() {
        true => Ok(Built { payload: builder.payload, again_at: builder.again_at }),
        false => Err(Fault::transient(format!("volume {}: {}", spec.name, builder.wrong.join("; ")))),
    }
}

fn default_mode(member: &str, mode: Option<u32>) -> Result<u32, Fault> {
    mode.ok_or_else(|| {
        Fault::transient(format!("{member}.defaultMode is not set, as every API server does; set it, usually to 420"))
    })
}

struct Builder<'a> {
    host: &'a VolumeHost,
    request: &'a SetUp<'a>,
    payload: Payload,
    again_at: Option<Timestamp>,
    /// All that is wrong, so that it can be mended at once.
    wrong: Vec<String>,
}

impl Builder<'_> {
    async fn part(&mut self, part: &ProjectionSource, mode: u32) {
        if let Some(source) = &part.secret {
            self.secret(&source.name, &source.items, source.optional, mode).await;
        } else if let Some(source) = &part.config_map {
            self.config_map(source, mode).await;
        } else if let Some(source) = &part.downward_api {
            self.downward(&source.items, mode).await;
        } else if let Some(source) = &part.service_account_token {
            self.token(source, mode).await;
        } else if let Some(source) = &part.cluster_trust_bundle {
            let found = match certificates::wanted(source) {
                Ok(wanted) => self.host.objects.trust_bundles(&wanted).await.map_err(|error| error.to_string()),
                Err(wrong) => Err(wrong),
            };
            match found.and_then(|bundles| certificates::joined(source, &bundles)) {
                Ok(data) => self.add_private(&source.path, data, mode),
                Err(wrong) => self.wrong.push(wrong),
            }
        } else if let Some(source) = &part.pod_certificate {
            self.wrong.push(format!(
                "podCertificate of signer {:?}: this node requests no certificates; use a CSI driver that does, such as \
                 csi.cert-manager.io, or a Secret",
                source.signer_name
            ));
        } else {
            self.wrong.push("a projected source names nothing that this version knows".to_owned());
        }
    }

    async fn config_map(&mut self, source: &ConfigMapSource, mode: u32) {
        let key = self.key(&source.name);
        let found = self.host.objects.config_map(&key).await;
        let id = SourceId::ConfigMap(key);
        match found {
            Ok(Some(object)) => self.keys(&id, &*object, &source.items, mode, source.optional),
            other => self.absent(&id, source.optional, other.err()),
        }
    }

    async fn secret(&mut self, name: &str, items: &[KeyToPath], optional: bool, mode: u32) {
        let key = self.key(name);
        let found = self.host.objects.secret(&key).await;
        let id = SourceId::Secret(key);
        match found {
            Ok(Some(object)) => self.keys(&id, &*object, items, mode, optional),
            other => self.absent(&id, optional, other.err()),
        }
    }

    fn keys(&mut self, id: &SourceId, object: &dyn keys::Keyed, items: &[KeyToPath], mode: u32, optional: bool) {
        if let Err(wrong) = keys::add(&mut self.payload, object, items, mode, optional) {
            self.wrong.push(format!("{id} {wrong}"));
        }
    }

    /// Only what certainly is not there may be missing: an object that cannot be read may be there.
    fn absent(&mut self, id: &SourceId, optional: bool, error: Option<api::Error>) {
        match error {
            Some(error) => self.wrong.push(format!("{id} cannot be read: {error}")),
            None if optional => {}
            None => self.wrong.push(format!("{id} does not exist; create it, or set optional: true")),
        }
    }

    async fn downward(&mut self, items: &[DownwardApiFile], mode: u32) {
        let pod = self.request.pod;
        let allocatable = match downward::needs_allocatable(items, pod) {
            true => self.host.objects.allocatable().await,
            false => Ok(BTreeMap::new()),
        };
        let added = match allocatable {
            Ok(allocatable) => downward::add(&mut self.payload, items, mode, pod, &allocatable),
            Err(error) => Err(format!("what this node can give cannot be read: {error}")),
        };
        self.wrong.extend(added.err());
    }

    async fn token(&mut self, source: &ServiceAccountTokenProjection, mode: u32) {
        let asked =
            Wanted { audience: source.audience.clone(), expiration_seconds: source.expiration_seconds.or(Some(3600)) };
        match self.host.tokens.get(&self.host.context, self.request.pod, &asked).await {
            Ok(token) => {
                self.again_at = self.again_at.into_iter().chain([token.renew_at]).min();
                self.add_private(&source.path, token.token.into_bytes(), mode);
            }
            Err(error) => self.wrong.push(error.to_string()),
        }
    }

    fn add_private(&mut self, path: &str, data: Vec<u8>, mode: u32) {
        let request = self.request;
        let mode = if request.fs_user.is_some() || request.fs_group.is_some() { PRIVATE } else { mode };
        let uid = request.fs_user.and_then(|user| u32::try_from(user).ok());
        self.payload.insert(path.to_owned(), FileProjection { data, mode, uid });
    }

    fn key(&self, name: &str) -> Key {
        let pod: &NodePod = self.request.pod;
        Key::namespaced(pod.meta.namespace.as_str(), name)
    }
}
