//! ClusterTrustBundle.

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// Certificates of authorities that a cluster trusts.
    pub struct ClusterTrustBundle {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What it says.
        pub spec: ClusterTrustBundleSpec,
    }

    /// Whose certificates, and which.
    pub struct ClusterTrustBundleSpec {
        /// The signer they belong to; empty for none.
        pub signer_name: String,
        /// The certificates, as PEM.
        pub trust_bundle: String,
    }
}

impl Projection for ClusterTrustBundle {
    const KIND: Kind = kinds::CLUSTER_TRUST_BUNDLE;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}
