//! From an attachment and its volume to a driver call, or to the reason why there can be none.

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::volume_capability::MountVolume;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability};
use stowage_model::phase::VolumeMode;
use stowage_model::volume::{CsiSource, SecretRef, VolumeSpec};
use stowage_model::{access_mode, migration};

use crate::snapshot::{Case, Facts, Source};

/// Modes of volumes that may be published to several nodes at once.
const MANY: [Mode; 3] = [Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter];

/// Why the driver cannot be asked. People read it in the attachment's status, and events of pods quote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("spec.source must have exactly one of persistentVolumeName and inlineVolumeSpec")]
    ReadSource,
    #[error(
        "PersistentVolume {name:?} of spec.source does not exist; create it again, or remove the finalizer of this VolumeAttachment once the volume is certainly detached"
    )]
    FindVolume { name: String },
    #[error("the volume is not one of driver {driver:?} that spec.attacher names")]
    MatchDriver { driver: String },
    #[error("PersistentVolume {name:?} is being deleted and is not attached any more; use another claim")]
    KeepVolume { name: String },
    #[error("node {node:?} has no driver {driver:?} in its CSINode; see that the driver runs there and is registered")]
    FindNode { node: String, driver: String },
    #[error("PersistentVolume {name:?}: {source}")]
    Translate { name: String, source: migration::Error },
    #[error("PersistentVolume {name:?}: {source}")]
    MapModes { name: String, source: access_mode::Error },
}

impl Case {
    fn described(&self) -> Result<&VolumeSpec, Problem> {
        match &self.source {
            Source::Volume(volume) => Ok(&volume.spec),
            Source::Inline(spec) => Ok(spec),
            Source::Missing(name) | Source::Unknown(name) => Err(Problem::FindVolume { name: name.clone() }),
            Source::Untranslated(name, error) => Err(Problem::Translate { name: name.clone(), source: error.clone() }),
            Source::Unclear => Err(Problem::ReadSource),
        }
    }

    fn spec<'a>(&'a self, facts: &Facts) -> Result<(&'a VolumeSpec, &'a CsiSource), Problem> {
        let spec = self.described()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == facts.name);
        csi.map(|csi| (spec, csi)).ok_or_else(|| Problem::MatchDriver { driver: facts.name.clone() })
    }

    fn no_node(&self, facts: &Facts) -> Problem {
        Problem::FindNode { node: self.attachment.spec.node_name.clone(), driver: facts.name.clone() }
    }

    pub fn secret(&self) -> Option<SecretRef> {
        let spec = self.described().ok()?;
        spec.csi.as_ref()?.controller_publish_secret_ref.as_deref().cloned()
    }

    /// The call that attaches, without its secrets.
    pub fn publish_request(&self, facts: &Facts) -> Result<ControllerPublishVolumeRequest, Problem> {
        let (spec, csi) = self.spec(facts)?;
        if let Source::Volume(volume) = &self.source
            && volume.meta.is_deleting()
        {
            return Err(Problem::KeepVolume { name: volume.meta.name.clone() });
        }
        Ok(ControllerPublishVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            // No fallback while attaching: only a driver that is registered now can use the volume.
            node_id: self.node_id.clone().ok_or_else(|| self.no_node(facts))?,
            volume_capability: Some(self.capability(spec, csi, facts)?),
            readonly: csi.read_only && facts.can(Call::PublishReadonly),
            volume_context: csi.volume_attributes.clone(),
            ..ControllerPublishVolumeRequest::default()
        })
    }

    /// The id that the node has now, where the volume was published under another.
    pub fn new_id(&self) -> Option<&str> {
        let recorded = self.attachment.node_id()?;
        self.node_id.as_deref().filter(|id| *id != recorded && !id.is_empty())
    }

    /// Whether the volume may be published to several nodes at once.
    pub fn is_for_many_nodes(&self, facts: &Facts) -> bool {
        let multi_writer = facts.can(Call::SingleNodeMultiWriter);
        let mode =
            self.described().ok().and_then(|spec| access_mode::fold_to_csi(spec.access_modes, multi_writer).ok());
        mode.and_then(|mode| Mode::try_from(mode.number()).ok()).is_some_and(|mode| MANY.contains(&mode))
    }

    /// The call that detaches, without its secrets. What was published decides: the node id recorded before the publish
    /// counts more than what the node registered since.
    pub fn unpublish_request(&self, facts: &Facts) -> Result<ControllerUnpublishVolumeRequest, Problem> {
        let (_, csi) = self.spec(facts)?;
        let node_id = self.attachment.node_id().map(str::to_owned).or_else(|| self.node_id.clone());
        Ok(ControllerUnpublishVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            // An empty id would detach the volume from every node.
            node_id: node_id.filter(|id| !id.is_empty()).ok_or_else(|| self.no_node(facts))?,
            ..ControllerUnpublishVolumeRequest::default()
        })
    }

    fn capability(&self, spec: &VolumeSpec, csi: &CsiSource, facts: &Facts) -> Result<VolumeCapability, Problem> {
        let mode =
            access_mode::fold_to_csi(spec.access_modes, facts.can(Call::SingleNodeMultiWriter)).map_err(|source| {
                Problem::MapModes { name: self.attachment.volume_name().unwrap_or_default().into(), source }
            })?;
        let fs_type = if csi.fs_type.is_empty() { &facts.default_fs_type } else { &csi.fs_type };
        let mount =
            MountVolume { fs_type: fs_type.clone(), mount_flags: spec.mount_options.clone(), ..MountVolume::default() };
        Ok(VolumeCapability::new(mode.number(), (spec.volume_mode != VolumeMode::Block).then_some(mount)))
    }
}

/// Whether the volume may be published to this node while it is to another.
pub fn is_for_many_nodes(request: &ControllerPublishVolumeRequest) -> bool {
    let mode = request.volume_capability.as_ref().and_then(|capability| capability.access_mode.as_ref());
    mode.is_some_and(|mode| MANY.contains(&mode.mode()))
}
