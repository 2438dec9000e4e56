//! CSIDriver.

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// What a CSI driver wants from Kubernetes.
    pub struct CsiDriver {
        /// Metadata; the name is the driver's.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What it wants.
        pub spec: CsiDriverSpec,
    }

    /// What a driver wants.
    pub struct CsiDriverSpec {
        /// Whether volumes are attached first; see [`CsiDriver::needs_attach`].
        pub attach_required: Option<bool>,
        /// Whether publishing is told about the pod.
        pub pod_info_on_mount: bool,
        /// What volumes it has; empty means only persistent ones.
        pub volume_lifecycle_modes: Vec<LifecycleMode>,
        /// Whether the scheduler looks at its free capacity.
        pub storage_capacity: bool,
        /// Who changes the group of a volume's files.
        pub fs_group_policy: FsGroupPolicy,
        /// Service account tokens it wants when publishing.
        pub token_requests: Vec<TokenRequest>,
        /// Whether publishing is repeated now and then.
        pub requires_republish: bool,
        /// Whether it mounts with an SELinux context.
        pub se_linux_mount: bool,
        /// Whether tokens are passed as secrets, not as volume context.
        pub service_account_token_in_secrets: bool,
        /// How often a node's limit is asked for again, in seconds.
        pub node_allocatable_update_period_seconds: Option<i64>,
        /// Whether pods stay away from nodes that do not have the driver.
        pub prevent_pod_scheduling_if_missing: bool,
    }

    /// A service account token a driver wants.
    pub struct TokenRequest {
        /// Whom the token is for.
        pub audience: String,
        /// How long it is good, in seconds.
        pub expiration_seconds: Option<i64>,
    }
}

text_enum! {
    /// How long a driver's volumes live.
    pub enum LifecycleMode {
        /// As long as their PersistentVolume.
        #[default]
        Persistent = "Persistent",
        /// As long as their pod.
        Ephemeral = "Ephemeral",
    }
}

text_enum! {
    /// Who gives a volume's files to the pod's group.
    pub enum FsGroupPolicy {
        /// The node, for single-writer volumes whose file system type is given.
        #[default]
        ReadWriteOnceWithFsType = "ReadWriteOnceWithFSType",
        /// The node, or the driver if it can.
        File = "File",
        /// Nobody.
        None = "None",
    }
}

impl Projection for CsiDriver {
    const KIND: Kind = kinds::CSI_DRIVER;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl CsiDriver {
    /// Whether volumes must be attached before use; so unless the driver says otherwise.
    pub fn needs_attach(&self) -> bool {
        self.spec.attach_required.unwrap_or(true)
    }

    /// Whether it has volumes that live that long.
    pub fn supports(&self, mode: LifecycleMode) -> bool {
        let modes = &self.spec.volume_lifecycle_modes;
        if modes.is_empty() { mode == LifecycleMode::Persistent } else { modes.contains(&mode) }
    }
}
