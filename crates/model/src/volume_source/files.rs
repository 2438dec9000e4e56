//! Sources that are files made from objects of the API, or from the pod itself.

use crate::quantity::Quantity;
use crate::selector::LabelSelector;

projection! {
    /// One key of an object as a file.
    pub struct KeyToPath {
        /// The key.
        pub key: String,
        /// The file, relative to the volume.
        pub path: String,
        /// Its permissions; the volume's default if absent.
        pub mode: Option<u32>,
    }

    /// Files from a ConfigMap.
    pub struct ConfigMapSource {
        /// The ConfigMap, in the pod's namespace.
        pub name: String,
        /// Which keys; empty for all.
        pub items: Vec<KeyToPath>,
        /// Permissions of files that do not say their own; the API server always sets it.
        pub default_mode: Option<u32>,
        /// Whether the ConfigMap and its keys may be missing.
        pub optional: bool,
    }

    /// Files from a Secret.
    pub struct SecretSource {
        /// The Secret, in the pod's namespace.
        pub secret_name: String,
        /// Which keys; empty for all.
        pub items: Vec<KeyToPath>,
        /// Permissions of files that do not say their own; the API server always sets it.
        pub default_mode: Option<u32>,
        /// Whether the Secret and its keys may be missing.
        pub optional: bool,
    }

    /// Files about the pod itself.
    pub struct DownwardApiSource {
        /// The files.
        pub items: Vec<DownwardApiFile>,
        /// Permissions of files that do not say their own; the API server always sets it.
        pub default_mode: Option<u32>,
    }

    /// One file about the pod: a field of it, or a resource of one of its containers.
    pub struct DownwardApiFile {
        /// The file, relative to the volume.
        pub path: String,
        /// A field of the pod.
        pub field_ref: Option<FieldRef>,
        /// A resource of a container.
        pub resource_field_ref: Option<ResourceFieldRef>,
        /// Its permissions; the volume's default if absent.
        pub mode: Option<u32>,
    }

    /// A field of a pod.
    pub struct FieldRef {
        /// The path, as in `metadata.labels['app']`.
        pub field_path: String,
    }

    /// A resource of a container.
    pub struct ResourceFieldRef {
        /// The container.
        pub container_name: String,
        /// As in `limits.memory`.
        pub resource: String,
        /// The unit; absent or zero means one.
        pub divisor: Option<Quantity>,
    }

    /// Files from several sources in one directory; a later one wins.
    pub struct ProjectedSource {
        /// The sources, in order.
        pub sources: Vec<ProjectionSource>,
        /// Permissions of files that do not say their own; the API server always sets it.
        pub default_mode: Option<u32>,
    }

    /// One source of a projected volume: exactly one is set.
    pub struct ProjectionSource {
        /// Files from a Secret.
        pub secret: Option<SecretProjection>,
        /// Files from a ConfigMap.
        pub config_map: Option<ConfigMapSource>,
        /// Files about the pod.
        #[serde(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApiSource>,
        /// A token of the pod's service account.
        pub service_account_token: Option<ServiceAccountTokenProjection>,
        /// Certificates of authorities.
        pub cluster_trust_bundle: Option<ClusterTrustBundleProjection>,
        /// A certificate for the pod.
        pub pod_certificate: Option<PodCertificateProjection>,
    }

    /// Files from a Secret, among others.
    pub struct SecretProjection {
        /// The Secret, in the pod's namespace.
        pub name: String,
        /// Which keys; empty for all.
        pub items: Vec<KeyToPath>,
        /// Whether the Secret and its keys may be missing.
        pub optional: bool,
    }

    /// A token of the pod's service account.
    pub struct ServiceAccountTokenProjection {
        /// Whom it is for; empty for the API server.
        pub audience: String,
        /// How long it is good; the API server always sets it.
        pub expiration_seconds: Option<i64>,
        /// The file, relative to the volume.
        pub path: String,
    }

    /// Certificates of authorities.
    pub struct ClusterTrustBundleProjection {
        /// One bundle by name.
        pub name: Option<String>,
        /// Or all of a signer.
        pub signer_name: Option<String>,
        /// Of the signer's, those with these labels.
        pub label_selector: Option<LabelSelector>,
        /// Whether they may be missing.
        pub optional: bool,
        /// The file, relative to the volume.
        pub path: String,
    }

    /// A certificate for the pod.
    pub struct PodCertificateProjection {
        /// Who signs it.
        pub signer_name: String,
        /// What kind of key is made.
        pub key_type: String,
        /// Key and chain in one file.
        pub credential_bundle_path: String,
        /// The key alone.
        pub key_path: String,
        /// The chain alone.
        pub certificate_chain_path: String,
    }
}
