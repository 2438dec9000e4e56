//! Lease.

use jiff::{SignedDuration, Timestamp};

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// A right that one holder has for a while.
    pub struct Lease {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// Who holds it.
        pub spec: LeaseSpec,
    }

    /// Who holds a lease since when.
    pub struct LeaseSpec {
        /// The holder; empty once it was released.
        pub holder_identity: String,
        /// How long it lasts after it was renewed, in seconds.
        pub lease_duration_seconds: Option<i64>,
        /// When the holder got it.
        pub acquire_time: Option<Timestamp>,
        /// When the holder last renewed it.
        pub renew_time: Option<Timestamp>,
        /// How often it changed hands.
        pub lease_transitions: i64,
    }
}

impl Projection for Lease {
    const KIND: Kind = kinds::LEASE;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl Lease {
    /// Who holds it, if anybody.
    pub fn holder(&self) -> Option<&str> {
        Some(self.spec.holder_identity.as_str()).filter(|holder| !holder.is_empty())
    }

    /// How long it lasts after it was renewed.
    pub fn duration(&self) -> SignedDuration {
        SignedDuration::from_secs(self.spec.lease_duration_seconds.unwrap_or_default())
    }
}
