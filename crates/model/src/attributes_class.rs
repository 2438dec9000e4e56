//! VolumeAttributesClass.

use std::collections::BTreeMap;

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// A set of a volume's properties that can change while it lives.
    pub struct AttributesClass {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// The driver that understands it.
        pub driver_name: String,
        /// What the driver is told: `mutable_parameters`.
        pub parameters: BTreeMap<String, String>,
    }
}

impl Projection for AttributesClass {
    const KIND: Kind = kinds::ATTRIBUTES_CLASS;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}
