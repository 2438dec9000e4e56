//! What can be done with a volume, as decisions see it.

/// What can be done with one volume. Decisions see this and the spec, and nothing else of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// It must be attached to the node first, and is reported in use.
    pub is_attachable: bool,
    /// It is mounted once for the node before it is mounted for pods.
    pub is_device_mountable: bool,
    /// It can be mapped as a device.
    pub supports_block: bool,
    /// The node has a part in its growth.
    pub is_expandable: bool,
    /// When it is set up again although it is mounted.
    pub remount: Remount,
    /// Whether it takes mount options.
    pub supports_mount_options: bool,
    /// Whether it can be mounted with an SELinux context.
    pub supports_se_linux_mount: bool,
    /// Where figures about it come from.
    pub metrics: Metrics,
    /// How containers see it.
    pub attributes: Attributes,
}

/// When a mounted volume is set up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remount {
    /// Never.
    Never,
    /// Whenever what it is made of changes.
    OnChange,
}

/// Where figures about a volume come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metrics {
    /// There are none.
    None,
    /// The file system it is.
    StatFs,
    /// Its files, counted.
    Usage,
    /// Its driver.
    Driver,
}

/// How containers see a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// It may only be read.
    pub read_only: bool,
    /// Its files belong to Kubernetes, which may change their owners.
    pub managed: bool,
    /// Its files may be given the container's label.
    pub se_linux_relabel: bool,
}

impl Traits {
    /// A volume that is only there for one pod and that nothing more can be done with.
    pub const PLAIN: Self = Self {
        is_attachable: false,
        is_device_mountable: false,
        supports_block: false,
        is_expandable: false,
        remount: Remount::Never,
        supports_mount_options: false,
        supports_se_linux_mount: false,
        metrics: Metrics::None,
        attributes: Attributes { read_only: false, managed: true, se_linux_relabel: true },
    };

    /// Whether all pods of the node share it, so that its name does not carry the pod's.
    pub fn is_shared(&self) -> bool {
        self.is_attachable || self.is_device_mountable
    }
}
